"""AArch64 Advanced SIMD: 16-byte vectors, thirty-two registers."""

from convgrad.codegen.isa.base import Isa

ISA = Isa(name="neon", vector_bytes=16, registers=32, fma=True, half=True, masks=False)
