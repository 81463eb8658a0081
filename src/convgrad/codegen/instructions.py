"""Functions of LLVM IR, written instruction by instruction.

llvmlite's own IR layer builds an object per instruction and prints it afterwards; writing the text at once is several
times faster, and the time of a first call is part of the product (docs/measured_facts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from convgrad.codegen.ir_module import Index, Module, Value, constant, index, like


class Instructions:
    """One function, and the block into which its instructions are written."""

    def __init__(
        self,
        module: Module,
        name: str,
        arguments: Sequence[tuple[str, str]],
        *,
        exported: bool = False,
        inline: bool = True,
    ):
        self.module = module
        self._names = 0
        self._blocks = 0
        self.block = "entry"
        self._known: dict[Any, Value] = {}  # what has been computed in blocks that come before the current one for sure
        self.arguments = [Value(type_.split()[0], f"%{arg}") for type_, arg in arguments]
        listed = ", ".join(f"{type_} %{arg}" for type_, arg in arguments)
        linkage = "" if exported else "internal "
        attributes = "nounwind" if inline else "nounwind noinline"
        self._lines = [f'define {linkage}void @{name}({listed}) {attributes} "stackrealign" {{', "entry:"]

    def finish(self) -> None:
        """Return, and hand the function to the module."""
        self._lines += ["  ret void", "}"]
        self.module.add("\n".join(self._lines))

    def emit(self, type_: str, text: str) -> Value:
        """An instruction with a result."""
        self._names += 1
        name = f"%v{self._names}"
        self._lines.append(f"  {name} = {text}")
        return Value(type_, name)

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self._lines.append(f"  {text}")

    def binary(self, op: str, x: Value, y: Value) -> Value:
        """Any two-operand instruction on equal types."""
        return self.emit(x.type, f"{op} {x}, {y.text}")

    def call(self, result: str, name: str, *arguments: Value) -> Value:
        """An intrinsic with a result; declared on the way."""
        self.module.declare(result, name, [argument.type for argument in arguments])
        return self.emit(result, f"call {result} @{name}({', '.join(map(str, arguments))})")

    def call_void(self, name: str, *arguments: Value | int) -> None:
        """A function of this module."""
        self.do(f"call void @{name}({', '.join(str(index(a)) for a in arguments)})")

    def cast(self, op: str, x: Value, type_: str) -> Value:
        """Any conversion."""
        return self.emit(type_, f"{op} {x} to {type_}")

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        """Lane by lane where the condition is a vector."""
        return self.emit(x.type, f"select {condition}, {x}, {y}")

    def compare(self, op: str, x: Index, y: Index) -> Value:
        """Of two i64, or of two vectors of integers."""
        x, y = index(x), index(y)
        return self.emit(like(x, "i1"), f"icmp {op} {x}, {y.text}")

    def compare_like(self, op: str, x: Value, number: int) -> Value:
        """Of an integer, or each lane of a vector of them, with a constant."""
        return self.emit(like(x, "i1"), f"icmp {op} {x}, {constant(x.type, number).text}")

    def compare_floats(self, op: str, x: Value, y: Value) -> Value:
        """Of two floating-point numbers, or lane by lane."""
        return self.emit(like(x, "i1"), f"fcmp {op} {x}, {y.text}")

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What `make()` has written, here or where the program has come by for sure; else it writes it now."""
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = make()
        return value
