"""Functions and kernels straight from the emitters, compiled and called without the runtime's caches or threads."""

import ctypes
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import pytest

from codegen.buffers import Buffer
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Module
from convgrad.codegen.module import CALL_FIELDS, VERDICT
from convgrad.plan.machine import LEVELS, available_isas, machine_for, why_not
from convgrad.runtime import jit
from convgrad.runtime.kernel import build

HOST_ISAS = available_isas()
each_isa = pytest.mark.parametrize("isa", HOST_ISAS)
outer_isas = pytest.mark.parametrize("isa", sorted({HOST_ISAS[0], HOST_ISAS[-1]}))  # of what plans decide, not lanes

_STOOD_IN_FOR = set()
_CTYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64}


@contextmanager
def stood_in_for(isa):
    """Inside, something else executes the instructions of a level that the processor lacks."""
    _STOOD_IN_FOR.add(isa)
    try:
        yield
    finally:
        _STOOD_IN_FOR.remove(isa)


def skip_where_it_cannot_run(machine):
    """An instruction that the processor does not have would end the process."""
    reason = why_not(machine.isa)
    if reason and machine.isa not in _STOOD_IN_FOR:
        pytest.skip(reason)


def kernel_here(problem, module, machine, variant=0):
    """The kernel that the runtime makes of a module."""
    skip_where_it_cannot_run(machine)
    return build(problem, machine, lower=lambda *_: module, variant=variant)


def compile_function(isa, arguments, body):
    """A callable of the function that `body(builder, *arguments)` writes; arguments are types, ptr or i64."""
    machine = machine_for(isa)
    module = Module()
    builder = Builder(module, "f", [(type_, f"a{n}") for n, type_ in enumerate(arguments)], exported=True)
    body(builder, *builder.arguments)
    builder.finish()
    addresses, keep = _loaded(str(module), machine, ("f",))
    call = ctypes.CFUNCTYPE(None, *(_CTYPES[type_] for type_ in arguments))(addresses["f"])
    call.keep = keep
    return call


def load_here(module, machine):
    """The addresses of the stages of a kernel, and what keeps them there."""
    symbols = [stage.symbol for stage in module.stages] + [VERDICT] * bool(module.fallback)
    if machine.isa == "avx512_bf16" and "bf16" not in module.ir:  # the same code, see test_isa.py
        machine = replace(machine, isa="avx512", features=LEVELS["avx512"].features)
    return _loaded(module.ir, machine, tuple(symbols))


@lru_cache(maxsize=256)  # a test meets some kernels again, of other blocks, sets, or ways to the same code
def _loaded(ir, machine, symbols):
    skip_where_it_cannot_run(machine)
    return jit.load(jit.compile_ir(ir, machine), symbols)


def run_here(module, machine, arrays, *, low=False, loaded=None, shared=None, beyond=()):
    """All stages of a kernel in this thread, with a workspace between guards that holds NaN at first.

    `arrays` are x, w, y and bias, or None for none; `loaded` is what `load_here` gave, for a kernel that runs often.
    `shared` is the shared memory of the kernel that this one is the fallback of, as that has left it; `beyond` are
    numbers behind the record of the call.
    Returns the symbols of the stages that were run, those of the fallback with "again." before them.
    """
    addresses, keep = loaded or load_here(module, machine)
    shared = shared or Buffer(module.all_shared_bytes, low=low)
    assert module.scratch_bytes % 64 == 0
    scratch = Buffer(module.scratch_bytes, low=low)
    places = (array.address if array else 0 for array in arrays)
    fields = dict(zip(("x", "w", "y", "bias"), places, strict=True))
    fields |= {"shared": shared.address, "scratch": scratch.address}
    ran = []
    for number, stage in enumerate((*module.stages, None)):
        record = [*(fields.get(name, 0) for name in CALL_FIELDS), *beyond]
        call = (ctypes.c_int64 * len(record))(*record)
        if module.fallback and number == module.fallback.after and is_bad(addresses[VERDICT], call):
            again, code = fallback_here(module.fallback, machine)
            return ran + [
                f"again.{symbol}" for symbol in run_here(again, machine, arrays, low=low, loaded=code, shared=shared)
            ]
        if stage is None:
            break
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(addresses[stage.symbol])(ctypes.addressof(call))
        claimed = sum(call[CALL_FIELDS.index(name)] for name in ("tasks", "others"))
        assert claimed >= stage.tasks, f"{stage.symbol} left tasks behind"
        ran.append(stage.symbol)
        assert shared.redzone_is_whole(), f"{stage.symbol} wrote beside the shared memory"
        assert scratch.redzone_is_whole(), f"{stage.symbol} wrote beside the scratch"
    del keep
    return ran


@lru_cache(maxsize=2)  # of a kernel that runs often, and of the fallback itself
def fallback_here(fallback, machine):
    """The module of a fallback, which is as large as was told, and what `load_here` gives for it."""
    module = fallback.lower()
    assert (module.all_shared_bytes, module.all_scratch_bytes) == (fallback.shared_bytes, fallback.scratch_bytes)
    assert module.most_tasks == fallback.most_tasks
    return module, load_here(module, machine)


def is_bad(verdict, call):
    """What a kernel says of the data of a call."""
    answer = ctypes.c_int64(-1)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(verdict)(ctypes.addressof(call), ctypes.addressof(answer))
    assert answer.value in (0, 1)
    return bool(answer.value)
