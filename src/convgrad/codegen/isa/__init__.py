"""Instruction sets, a file each."""

from convgrad.codegen.isa import avx2, avx512, neon, portable
from convgrad.codegen.isa.base import Isa

ISAS: dict[str, Isa] = {module.ISA.name: module.ISA for module in (portable, avx2, avx512, neon)}
ISAS["amx"] = ISAS["amx_emulated"] = avx512.ISA  # tiles come on top of AVX-512; f32 arithmetic is the same
