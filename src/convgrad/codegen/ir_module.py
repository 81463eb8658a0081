"""Values of LLVM IR, and modules of functions, tables and declarations, as text."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from convgrad.values import frozen


@frozen
class Value:
    """An SSA value, global or constant: its LLVM type and how it is written."""

    type: str
    text: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


Index = int | Value  # an i64, known now or at run time
_VARIABLE = "internal global i64 0, align 8"


def constant(type_: str, value: float | int) -> Value:
    """A scalar, or the splat of one, of any integer or floating type."""
    if (match := re.fullmatch(r"<(\d+) x (.*)>", type_)) is not None:
        return Value(type_, f"splat ({constant(match[2], value)})")
    if type_ in ("float", "double"):
        bits = struct.unpack("<Q", struct.pack("<d", value))[0]  # LLVM reads decimal only where it is exact
        return Value(type_, f"0x{bits:016X}")
    return Value(type_, str(int(value)))


def vector_of(lanes: int, type_: str) -> str:
    """The vector type."""
    return f"<{lanes} x {type_}>"


def lanes_of(x: Value) -> int:
    """Of a vector."""
    return int(x.type[1:].split()[0])


def like(x: Value, kind: str) -> str:
    """The type with the lanes of x."""
    return vector_of(lanes_of(x), kind) if x.type.startswith("<") else kind


class Module:
    """Functions, declarations and constant tables, in the order they are made."""

    def __init__(self, prefix: str = "") -> None:
        """With a prefix for the names of its tables, it can be `joined` to another one."""
        self._prefix = prefix
        self._functions: list[str] = []
        self._declarations: dict[str, str] = {}
        self._globals: list[str] = []
        self._metadata: dict[str, str] = {}
        self.notes: set[str] = set()  # what emitters have added that a module needs once

    def declare(self, result: str, name: str, arguments: Sequence[str]) -> None:
        """Make an intrinsic known; again is harmless."""
        self._declarations[name] = f"declare {result} @{name}({', '.join(arguments)})"

    def table(self, values: Sequence[int]) -> Value:
        """A constant array of i64."""
        name = f"@{self._prefix}table{len(self._globals)}"
        body = ", ".join(f"i64 {value}" for value in values)
        self._globals.append(f"{name} = private unnamed_addr constant [{len(values)} x i64] [{body}], align 64")
        return Value("ptr", name)

    def opaque(self, type_: str, value: str) -> Value:
        """Where a constant lies that LLVM must not reason about; equal ones are one."""
        text = f"private unnamed_addr externally_initialized constant {type_} {value}, align 64"
        for line in self._globals:
            if line.endswith(text):
                return Value("ptr", line.split(" = ", 1)[0])
        name = f"@{self._prefix}opaque{len(self._globals)}"
        self._globals.append(f"{name} = {text}")
        return Value("ptr", name)

    def variable(self, name: str) -> Value:
        """An i64 that is zero at first and lives as long as the module is loaded; equal names are one."""
        if not self.has_variable(name):
            self._globals.append(f"@{self._prefix}{name} = {_VARIABLE}")
        return Value("ptr", f"@{self._prefix}{name}")

    def has_variable(self, name: str) -> bool:
        """Whether somebody asked for it."""
        return f"@{self._prefix}{name} = {_VARIABLE}" in self._globals

    def metadata(self, text: str) -> str:
        """The name of what instructions say about themselves; equal texts are one."""
        return self._metadata.setdefault(text, f"!{len(self._metadata)}")

    def bytes(self, values: bytes) -> Value:
        """A constant block of bytes, on cache lines of its own; equal blocks are one."""
        body = ", ".join(f"i8 {value}" for value in values)
        text = f"private unnamed_addr constant [{len(values)} x i8] [{body}], align 64"
        for line in self._globals:
            if line.endswith(text):
                return Value("ptr", line.split()[0])
        name = f"@{self._prefix}bytes{len(self._globals)}"
        self._globals.append(f"{name} = {text}")
        return Value("ptr", name)

    def add(self, text: str) -> None:
        """Append a finished function."""
        self._functions.append(text)

    def __str__(self) -> str:
        said = (f"{name} = !{{{text}}}" for text, name in self._metadata.items())
        last = [*self._declarations.values(), *said]
        return "\n\n".join(["\n".join(self._globals), *self._functions, "\n".join(last)]) + "\n"


def joined(text: str, more: Module) -> str:
    """The text of a module and what another one has that it lacks; names of tables differ."""
    known = {line for line in text.splitlines() if line.startswith("declare ")}
    return "\n".join([text, *(line for line in str(more).splitlines() if line not in known), ""])


def index(x: Index) -> Value:
    """As an operand."""
    return Value("i64", str(x)) if isinstance(x, int) else x
