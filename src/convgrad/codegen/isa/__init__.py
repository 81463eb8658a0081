"""Instruction sets, a file each."""

from convgrad.codegen.isa import avx2, avx512, neon, portable
from convgrad.codegen.isa.base import Isa

ISAS: dict[str, Isa] = {module.ISA.name: module.ISA for module in (portable, avx2, avx512, neon)}
for beyond in ("avx512_bf16_emulated", "amx_emulated"):  # f32 arithmetic is the same
    ISAS[beyond] = avx512.ISA
for beyond in ("avx512_bf16", "amx"):
    ISAS[beyond] = avx512.ISA_BF16
