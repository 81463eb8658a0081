"""The baseline of any LLVM target: 16-byte vectors, no fused multiply-add, f16 by integer arithmetic."""

from convgrad.codegen.isa.base import Isa

ISA = Isa(name="portable", vector_bytes=16, registers=16, fma=False, half=False, masks=False)
