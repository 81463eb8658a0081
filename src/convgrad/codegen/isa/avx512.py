"""AVX-512 (F, BW, DQ, VL): 64-byte vectors, thirty-two registers, masks."""

from convgrad.codegen.isa.base import Isa
from convgrad.values import replace

ISA = Isa(
    name="avx512",
    vector_bytes=64,
    registers=32,
    fma=True,
    half=True,
    masks=True,
    halves=True,
    assembly=True,
    permute="llvm.x86.avx512.permvar",
)
ISA_BF16 = replace(ISA, name="avx512_bf16", bfloat=True)
