"""AVX2 with FMA and F16C: 32-byte vectors, sixteen registers."""

from convgrad.codegen.isa.base import Isa

ISA = Isa(name="avx2", vector_bytes=32, registers=16, fma=True, half=True, masks=False, assembly=True)
