"""Object code by the functions of llvmlite's library, called as they are.

`llvmlite.binding` says the same in Python. Importing it also imports llvmlite's own builder of IR, zip files and
temporary folders: 20 of the 30 ms that LLVM takes to come into a process. `runtime.jit` uses it for all else, and for
this where the library is not one that is known here.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from typing import Any, NamedTuple

KNOWN = range(46, 51)  # of llvmlite 0.x: versions whose library has the functions that are declared here

_Text = POINTER(c_char_p)
_SETUP = tuple(f"InitializeNative{part}" for part in ("Target", "AsmPrinter", "AsmParser"))
_PASSES = {
    "sroa": "module_AddSROAPass",
    "simplify_cfg": "module_AddSimplifyCFGPass",
    "instruction_combine": "module_AddInstCombinePass",
}
_DECLARED: dict[str, tuple[Any, tuple[Any, ...]]] = {  # what a function gives, and what it is given
    **dict.fromkeys(_SETUP, (None, ())),
    "ContextCreate": (c_void_p, ()),
    "ContextDispose": (None, (c_void_p,)),
    "ParseAssembly": (c_void_p, (c_void_p, c_char_p, _Text)),
    "VerifyModule": (c_bool, (c_void_p, _Text)),
    "SetTarget": (None, (c_void_p, c_char_p)),
    "SetDataLayout": (None, (c_void_p, c_char_p)),
    "DisposeModule": (None, (c_void_p,)),
    "GetTargetFromTriple": (c_void_p, (c_char_p, _Text)),
    "CreateTargetMachine": (c_void_p, (c_void_p, *[c_char_p] * 3, c_int, *[c_char_p] * 2, c_int, c_int, c_char_p)),
    "CreateTargetMachineData": (c_void_p, (c_void_p,)),
    "CopyStringRepOfTargetData": (None, (c_void_p, _Text)),
    "DisposeTargetData": (None, (c_void_p,)),
    "CreateNewModulePassManager": (c_void_p, ()),
    **dict.fromkeys(_PASSES.values(), (None, (c_void_p,))),
    "CreatePipelineTuningOptions": (c_void_p, ()),
    "CreatePassBuilder": (c_void_p, (c_void_p, c_void_p)),
    "RunNewModulePassManager": (None, (c_void_p,) * 3),
    "TargetMachineEmitToMemory": (c_void_p, (c_void_p, c_void_p, c_int, _Text)),
    "GetBufferStart": (c_void_p, (c_void_p,)),
    "GetBufferSize": (c_size_t, (c_void_p,)),
    "DisposeMemoryBuffer": (None, (c_void_p,)),
    "DisposeString": (None, (c_char_p,)),
}


class _Target(NamedTuple):
    """What modules are compiled with: handles of LLVM, and a data layout."""

    machine: int
    layout: bytes
    manager: int
    builder: int


class Refused(Exception):
    """What LLVM says of a module or a target that it does not accept."""


class Library:
    """LLVM, set up for this processor. Who uses it holds `jit.LOCK`."""

    def __init__(self, path: str):
        library = ctypes.CDLL(path)
        self._call: dict[str, Any] = {}
        for name, (gives, given) in _DECLARED.items():
            self._call[name] = function = getattr(library, f"LLVMPY_{name}")
            function.restype, function.argtypes = gives, given
        for name in _SETUP:
            self._call[name]()
        self._targets: dict[tuple[Any, ...], _Target] = {}

    def object_code(self, ir: str, target: tuple[str, str, str], passes: tuple[str, ...], level: int) -> bytes:
        """Of a module, for a triple, a processor and its features, after some passes, by the back end at a level.

        Raises `Refused` if LLVM does not accept it.
        """
        to = self._target(target, passes, level)
        with self._module(ir) as module:
            self._call["SetTarget"](module, target[0].encode())
            self._call["SetDataLayout"](module, to.layout)
            refused, said = self._said("VerifyModule", module)
            if refused:
                raise Refused(said)
            self._call["RunNewModulePassManager"](to.manager, module, to.builder)
            buffer = self._made("TargetMachineEmitToMemory", to.machine, module, 1)
            try:
                return ctypes.string_at(self._call["GetBufferStart"](buffer), self._call["GetBufferSize"](buffer))
            finally:
                self._call["DisposeMemoryBuffer"](buffer)

    @contextmanager
    def _module(self, ir: str) -> Iterator[int]:
        """What a text says, in a context of its own, so that types do not pile up in the global one."""
        context = self._call["ContextCreate"]()
        try:
            module = self._made("ParseAssembly", context, ir.encode())
            try:
                yield module
            finally:
                self._call["DisposeModule"](module)
        finally:
            self._call["ContextDispose"](context)

    def _target(self, target: tuple[str, str, str], passes: tuple[str, ...], level: int) -> _Target:
        """Kept, since there is no way to give back all memory of a pass manager and a builder (5 KiB)."""
        known = self._targets.get((target, passes, level))
        if known is not None:
            return known
        triple, cpu, features = (text.encode() for text in target)
        found = self._made("GetTargetFromTriple", triple)
        machine = self._call["CreateTargetMachine"](found, triple, cpu, features, level, b"pic", b"small", 0, 0, b"")
        if not machine:
            raise Refused(f"there is no {target[1]} with {target[2]}")
        data = self._call["CreateTargetMachineData"](machine)
        _, layout = self._said("CopyStringRepOfTargetData", data)
        self._call["DisposeTargetData"](data)
        manager = self._call["CreateNewModulePassManager"]()
        for name in passes:
            self._call[_PASSES[name]](manager)
        builder = self._call["CreatePassBuilder"](machine, self._call["CreatePipelineTuningOptions"]())
        self._targets[target, passes, level] = made = _Target(machine, layout.encode(), manager, builder)
        return made

    def _made(self, name: str, *arguments: Any) -> int:
        """What a function makes, if it does."""
        made, said = self._said(name, *arguments)
        if not made:
            raise Refused(said)
        return made

    def _said(self, name: str, *arguments: Any) -> tuple[Any, str]:
        """What a function gives, and the text that it leaves."""
        text = c_char_p()
        result = self._call[name](*arguments, byref(text))
        said = (text.value or b"").decode(errors="replace")
        if text:
            self._call["DisposeString"](text)
        return result, said


@cache
def library() -> Library | None:
    """None where it is not one that is known here."""
    import llvmlite

    known = any(llvmlite.__version__.startswith(f"0.{minor}.") for minor in KNOWN)
    if not (known and sys.platform.startswith("linux")):
        return None
    try:
        return Library(os.path.join(os.path.dirname(llvmlite.__file__), "binding", "libllvmlite.so"))
    except (OSError, AttributeError):  # it lies elsewhere, or was made with other functions
        return None
