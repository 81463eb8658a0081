"""A processor that has AVX2 in the place of one that has AVX-512, dot products or tiles: for one kernel, or for all."""

from collections.abc import Callable
from dataclasses import replace

from codegen.emitted import run_here
from convgrad.codegen.module import KernelModule
from convgrad.plan import host, machine
from convgrad.plan.machine import LEVELS, Machine, why_not
from convgrad.runtime import jit
from stand_in.instructions import translated

OTHER = "avx2"
LEVELS_BEYOND = ("avx512", "avx512_bf16", "amx")
PRESENT = why_not(OTHER) is None
LACKING = [isa for isa in LEVELS_BEYOND if PRESENT and why_not(isa) is not None]


def other(target: Machine) -> Machine:
    """What is compiled for in the place of a machine."""
    return replace(target, isa=OTHER, cpu=LEVELS[OTHER].cpu, features=LEVELS[OTHER].features)


def put_in_other_words(module: KernelModule) -> KernelModule:
    """A kernel, and its fallback when that is made."""
    fallback = module.fallback
    if fallback is not None:
        lower: Callable[[], KernelModule] = fallback.lower
        fallback = replace(fallback, lower=lambda: put_in_other_words(lower()))
    return replace(module, ir=translated(module.ir), fallback=fallback)


def run_in_other_words(module: KernelModule, target: Machine, arrays, **keywords):
    """Like `emitted.run_here`, of a kernel for any level of this architecture."""
    return run_here(put_in_other_words(module), other(target), arrays, **keywords)


def stand_in() -> None:
    """From now on this process counts as running on a processor that has everything that AVX2 can stand in for."""
    if not LACKING:
        return
    flags = host.cpu_flags() | {need for isa in LEVELS_BEYOND for need in LEVELS[isa].needs}
    compiled = jit.compile_ir

    def compile_ir(ir: str, target: Machine, level: int = jit.CODEGEN_LEVEL) -> bytes:
        if target.cpu == LEVELS["avx512"].cpu:
            ir, target = translated(ir), other(target)
        return compiled(ir, target, level)

    machine.cpu_flags, machine.amx_refusal = lambda: flags, lambda: None
    for cached in (machine.why_not, machine.available_isas, machine._current):
        cached.cache_clear()
    jit.compile_ir = compile_ir
