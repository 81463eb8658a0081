"""LLVM: IR text in, machine code out. The only user of llvmlite.binding, imported where the library will not do."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from convgrad.plan.host import host_triple
from convgrad.plan.machine import Machine
from convgrad.runtime.elf import Loaded
from convgrad.runtime.llvm_library import Refused, library
from convgrad.runtime.object_file import UnsupportedObject
from convgrad.runtime.undisturbed import undisturbed

# Kernels come vectorised, unrolled and blocked by the compiler's own plan, and LLVM only has to clean them up and to
# allocate registers. Its standard pipeline (O2, even without vectorisers and unrolling) took 40 to 60 ms more per
# kernel than these passes and made nothing faster; docs/runtime.md has the figures.
PASSES = ("sroa", "simplify_cfg", "instruction_combine", "simplify_cfg")
CODEGEN_LEVEL = 2  # of the back end: 1 and 3 take as long and run as fast
IN_HASTE = 0  # the level that takes a quarter of that, without passes, for code whose own instructions do not matter
OPTIONS = f"{' '.join(PASSES)}, codegen {CODEGEN_LEVEL} pic small"  # part of the cache key: what shapes code but the IR


# Held by whoever uses LLVM, and by a fork: LLVM and llvmlite have locks of their own, which a child that was forked in
# the middle of a compilation would wait for without end.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


class CompileError(RuntimeError):
    """LLVM refused what the compiler wrote: a fault of convgrad, not of its caller."""


def compile_ir(ir: str, machine: Machine, level: int = CODEGEN_LEVEL) -> bytes:
    """Object code of a module written without target triple and data layout."""
    with LOCK:
        known = None if _is_foreign(machine.triple) else undisturbed(library)
        if known is None:
            return _emit(ir, machine, lambda module, target: target.emit_object(module), level)
        target = machine.triple, machine.cpu, machine.features
        try:
            return undisturbed(lambda: known.object_code(ir, target, _passes_of(level), level))
        except Refused as error:
            raise CompileError(f"LLVM does not accept the module: {error}") from error


def assembly(ir: str, machine: Machine) -> str:
    """The same code, to be read."""
    with LOCK:
        return _emit(ir, machine, lambda module, target: target.emit_assembly(module))


def optimised_ir(ir: str, machine: Machine) -> str:
    """The module after LLVM's passes, for looking at what they did."""
    with LOCK:
        return _emit(ir, machine, lambda module, target: str(module))


def load(objects: bytes, symbols: tuple[str, ...]) -> tuple[dict[str, int], object]:
    """Addresses of the symbols of an object, and what must be kept alive for as long as they are used."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(UnsupportedObject):
            loaded = Loaded(objects, symbols)
            return loaded.addresses, loaded
    return load_with_llvm(objects, symbols)


def load_with_llvm(objects: bytes, symbols: tuple[str, ...]) -> tuple[dict[str, int], object]:
    """The same by LLVM's loader, which takes every kind of object but has to be imported first."""
    with LOCK:
        addresses, engine = undisturbed(lambda: _loaded(objects, symbols))
    missing = [symbol for symbol, address in addresses.items() if not address]
    if missing:
        raise CompileError(f"there is no symbol {', '.join(missing)} in the object")
    return addresses, engine


def _loaded(objects: bytes, symbols: tuple[str, ...]) -> tuple[dict[str, int], object]:
    llvm = _llvm()
    target = _target(host_triple(), "", "")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly("", context=llvm.create_context()), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(objects))
    engine.finalize_object()
    return {symbol: engine.get_function_address(symbol) for symbol in symbols}, engine


def llvm_version() -> str:
    """Of the LLVM inside llvmlite."""
    return ".".join(map(str, _llvm().llvm_version_info))


def _emit(ir: str, machine: Machine, form: Callable[[Any, Any], Any], level: int = CODEGEN_LEVEL) -> Any:
    """Parse, clean up and write; an interrupt in the middle of llvmlite would make it free strings of LLVM twice."""
    return undisturbed(lambda: _emitted(ir, machine, form, level))


def _emitted(ir: str, machine: Machine, form: Callable[[Any, Any], Any], level: int) -> Any:
    """What the module becomes, which ends with this function, and so under the lock."""
    target, manager, builder = _passes(machine.triple, machine.cpu, machine.features, level)
    llvm = _llvm()
    if _is_foreign(machine.triple) and re.search(r'\basm (sideeffect )?"[^"]', ir):  # LLVM would end the process
        raise CompileError(
            f"the module holds assembly for {machine.triple}, which this process, on {host_triple()}, cannot read: "
            "compile it on such a machine"
        )
    try:
        # A context of its own, so that types do not pile up in the global one.
        module = llvm.parse_assembly(ir, context=llvm.create_context())
        with contextlib.closing(module):  # an error may keep both alive, and end with the context first
            module.triple = target.triple
            module.data_layout = str(target.target_data)
            module.verify()
            manager.run(module, builder)
            return form(module, target)
    except RuntimeError as error:
        raise CompileError(f"LLVM does not accept the module: {error}") from error


def _passes_of(level: int) -> tuple[str, ...]:
    return () if level == IN_HASTE else PASSES


@cache
def _passes(triple: str, cpu: str, features: str, level: int) -> tuple[Any, Any, Any]:
    """Target, pass manager and pass builder, kept: llvmlite does not give back all memory of the last two (5 KiB)."""
    llvm, target = _llvm(), _target(triple, cpu, features, level)
    manager = llvm.create_new_module_pass_manager()
    for name in _passes_of(level):
        getattr(manager, f"add_{name}_pass")()
    return target, manager, llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=2))


def _target(triple: str, cpu: str, features: str, level: int = CODEGEN_LEVEL) -> Any:
    return (
        _llvm(all_targets=_is_foreign(triple))
        .Target.from_triple(triple)
        .create_target_machine(cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small")
    )


def _is_foreign(triple: str) -> bool:
    """Whether it names another architecture than the host's."""
    return triple.split("-")[0] != host_triple().split("-")[0]


@cache
def _llvm(all_targets: bool = False) -> Any:
    """llvmlite.binding, with the targets that are needed set up."""
    import llvmlite.binding as llvm

    if all_targets:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
    return llvm
