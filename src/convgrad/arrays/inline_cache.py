"""An inline cache for calls of small layers, whose checks in Python would take longer than the arithmetic.

A call that came often is admitted: what it was called with is written down as patterns for compiled code
(`patterns.py`, `inline_cache_ir.py`), and the name that the public functions call becomes that code. A call that
matches an entry in every pattern runs the entry's kernel without any step of the interpreter; all others go on to the
Python function, which checks them.

Source of the technique: L. P. Deutsch, A. M. Schiffman, "Efficient implementation of the Smalltalk-80 system", 1984.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from convgrad.arrays.inline_cache_ir import COMMON, ENTRY, FUNCTION, TABLE, inline_cache_ir
from convgrad.arrays.patterns import Words, layout_holds, pattern
from convgrad.arrays.record import Record
from convgrad.problem.canonicalize import ROLES
from convgrad.runtime import Kernel, driver
from convgrad.runtime.memory import Workspace
from convgrad.runtime.threads import team

MOST_ENTRIES = 64  # they are looked at one after the other, some 10 ns each
ROOM = 256 << 10  # bytes of workspace; what needs more takes longer than its checks anyway

# Of kernels that leave words of two numbers behind, and of others, see `Workspace`. Zero while a call has it; others go
# the slow way then.
WORKSPACES = ("workspace", "workspace_of_words")

METH_FASTCALL = 0x80  # of CPython's methodobject.h


class Entry(NamedTuple):
    """What the words of an entry point to, kept alive: by the list of entries, and by a call that runs."""

    words: Words
    held: tuple[Any, ...]


class InlineCache:
    """Of one operation, whose calls `slow` checks and runs. Callers hold `jit.LOCK`, but not those of the function."""

    def __init__(self, op: str, slow: Callable[..., Any]):
        self.op, self.slow = op, slow
        self._entries: list[Entry] = []
        self._words: Words = np.zeros(len(TABLE), np.int64)
        self._function: Callable[..., Any] | None = None

    def admit(self, arguments: Sequence[Any], record: Record) -> Callable[..., Any] | None:
        """Write down a call that was checked; the function to call from now on, or None if there is nothing to gain.

        `arguments` are those of `slow`; the last has a default, with which calls may leave it out.
        """
        kernel = record.kernel
        if kernel is None or kernel.workspace_bytes(kernel.most_tasks) > ROOM or not layout_holds():
            return None
        if len(self._entries) >= MOST_ENTRIES:
            self.forget()
        entry = self._entry(arguments, record, kernel)
        entry.words[ENTRY.index("next")] = self._words[TABLE.index("entries")]
        self._entries.append(entry)
        self._words[TABLE.index("entries")] = entry.words.ctypes.data
        if self._function is None:
            self._function = self._make()
        return self._function

    def forget(self) -> None:
        """Drop all entries; the function stays good."""
        self._words[TABLE.index("entries")] = 0
        self._entries.clear()

    def _make(self) -> Callable[..., Any]:
        """The compiled function, with the words of this operation as its self.

        What the words point to lives with this cache, so the function keeps that, too: as what a function of the
        interpreter has for its module, which may be any object.
        """
        self._words[TABLE.index("slow")] = id(self.slow)
        self._words[TABLE.index("common")] = _common().ctypes.data
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
        make = new(("PyCFunction_NewEx", ctypes.pythonapi))
        return make(ctypes.addressof(_method()), self._words, self)

    def _entry(self, arguments: Sequence[Any], record: Record, kernel: Kernel) -> Entry:
        held: list[Any] = [record, kernel]  # and what patterns need, which is no array
        patterns = [pattern(argument, held) for argument in arguments]
        roles = ROLES[self.op]
        words = {
            "least": len(patterns) - (arguments[-1] == "code"),
            "kernel": kernel.address,
            "most_tasks": kernel.most_tasks,
            "workspace": 8 * COMMON.index(WORKSPACES[kernel.words]),
            "shared": kernel.shared_bytes,
            "scratch": kernel.scratch_bytes,
            "out_mask": record.output_mask,
            "out_field": _field(roles[2]),
            "first_field": _field(roles[0]),
            "second_field": _field(roles[1]),
        }
        words |= {f"pattern_{n}": pattern for n, pattern in enumerate(patterns)}
        low, high = record.span
        given = ("first", "second", "bias") if arguments[2] is not None else ("first", "second")
        for name, (first, last) in zip(given, (record.spans[0], record.spans[1], record.spans[-1]), strict=False):
            words |= {f"{name}_mask": record.input_mask, f"{name}_low": low - last, f"{name}_high": high - first}
        for name, function in (("new", record.empty), ("fall_back", record.fall_back)):
            held.append(function)
            words[name] = id(function)
        entry = Entry(np.array([words.get(name, 0) for name in ENTRY], np.int64), tuple(held))
        entry.words[ENTRY.index("owner")] = id(entry)
        return entry


def _field(name: str) -> int:
    return 8 * driver.RECORD_FIELDS.index(name)


class _MethodDef(ctypes.Structure):
    """PyMethodDef of CPython's methodobject.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def _method() -> _MethodDef:
    """The compiled function; its code is never unloaded."""
    from convgrad.runtime import jit
    from convgrad.runtime.support import support_code

    objects = support_code("inline cache of calls", inline_cache_ir())
    addresses, loaded = jit.load(objects, (FUNCTION,))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    return _MethodDef(b"call", addresses[FUNCTION], METH_FASTCALL, None)


@cache
def _common() -> Words:
    """The words that the entries of all operations share."""

    def address(name: str) -> int:
        return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0

    workspaces = {name: Workspace(ROOM) for name in WORKSPACES}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(workspaces))
    named = {
        "save": address("PyEval_SaveThread"),
        "restore": address("PyEval_RestoreThread"),
        "call": address("PyObject_Vectorcall"),
        "keep": address("Py_IncRef"),
        "drop": address("Py_DecRef"),
        "as_int": address("PyLong_AsLongLongAndOverflow"),
        "array_type": id(np.ndarray),
        "int_type": id(int),
        "list_type": id(list),
        "tuple_type": id(tuple),
        "none": id(None),
        "team": ctypes.addressof(team.published),
    }
    named |= {name: workspace.address for name, workspace in workspaces.items()}
    words = np.array([named[name] for name in COMMON], np.int64)

    def give_back() -> None:
        for name, workspace in workspaces.items():
            words[COMMON.index(name)] = workspace.address

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=give_back)  # the thread that had it stayed behind
    return words
