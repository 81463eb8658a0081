"""A small writer of LLVM IR text.

Index arithmetic takes Python ints and SSA values alike and folds what is known, so that emitters read like the formula.
llvmlite's own IR layer builds an object per instruction and prints it afterwards; writing the text at once is several
times faster, and the time of a first call is part of the product (docs/measured_facts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import contextmanager
from typing import Any

from convgrad.codegen.ir_module import Index, Module, Value, constant, index


class Builder:
    """Writes one function, instruction by instruction, into the current block."""

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

    # --- instructions

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
        bits = "i1" if x.type == "i64" else x.type.split(" x ")[0] + " x i1>"
        return self.emit(bits, f"icmp {op} {x}, {y.text}")

    def compare_like(self, op: str, x: Value, number: int) -> Value:
        """Of an integer, or each lane of a vector of them, with a constant."""
        bits = f"{x.type.split(' x ')[0]} x i1>" if x.type.startswith("<") else "i1"
        return self.emit(bits, f"icmp {op} {x}, {constant(x.type, number).text}")

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What `make()` has written, here or where the program has come by for sure; else it writes it now."""
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = make()
        return value

    # --- index arithmetic

    def add(self, x: Index, y: Index) -> Index:
        """x + y"""
        if isinstance(x, int) and isinstance(y, int):
            return x + y
        if x == 0 or y == 0:
            return y if x == 0 else x
        return self.emit("i64", f"add nsw {index(x)}, {index(y).text}")

    def sub(self, x: Index, y: Index) -> Index:
        """x - y"""
        if isinstance(x, int) and isinstance(y, int):
            return x - y
        return x if y == 0 else self.emit("i64", f"sub nsw {index(x)}, {index(y).text}")

    def mul(self, x: Index, y: Index) -> Index:
        """x * y"""
        if isinstance(x, int) and isinstance(y, int):
            return x * y
        if x == 0 or y == 0:
            return 0
        if x == 1 or y == 1:
            return y if x == 1 else x
        return self.emit("i64", f"mul nsw {index(x)}, {index(y).text}")

    def floor_div(self, x: Index, y: int) -> Index:
        """Floor of x / y for y > 0."""
        if isinstance(x, int):
            return x // y
        if y == 1:
            return x
        rest = self.emit("i64", f"srem {x}, {y}")
        negative = self.emit("i64", f"ashr {rest}, 63")
        return self.add(self.emit("i64", f"sdiv {x}, {y}"), negative)

    def shift_right(self, x: Index, bits: int) -> Index:
        """x / 2^bits for x >= 0, rounded down."""
        if isinstance(x, int):
            return x >> bits
        return self.emit("i64", f"lshr {x}, {bits}") if bits else x

    def both(self, x: Value, y: Value) -> Value:
        """Whether two conditions hold."""
        return self.emit("i1", f"and {x}, {y.text}")

    def split(self, x: Index, extents: Sequence[int]) -> list[Index]:
        """The indices of a flat, non-negative row-major index."""
        indices: list[Index] = []
        for extent in reversed(extents[1:]):
            if extent == 1:
                indices.insert(0, 0)
            elif isinstance(x, int):
                x, rest = divmod(x, extent)
                indices.insert(0, rest)
            else:
                indices.insert(0, self.emit("i64", f"urem {x}, {extent}"))
                x = self.emit("i64", f"udiv {x}, {extent}")
        return [x, *indices] if extents[0] != 1 else [0, *indices]

    def minimum(self, x: Index, y: Index) -> Index:
        """The smaller, signed."""
        return self._extreme("llvm.smin.i64", min, x, y)

    def maximum(self, x: Index, y: Index) -> Index:
        """The larger, signed."""
        return self._extreme("llvm.smax.i64", max, x, y)

    def _extreme(self, name: str, fold: Callable[[int, int], int], x: Index, y: Index) -> Index:
        if isinstance(x, int) and isinstance(y, int):
            return fold(x, y)
        return self.call("i64", name, index(x), index(y))

    def dot(self, terms: Sequence[tuple[Index, Index]], start: Index = 0) -> Index:
        """start + Σ x · y"""
        for x, y in terms:
            start = self.add(start, self.mul(x, y))
        return start

    # --- memory

    def at(self, base: Value, offset: Index, type_: str) -> Value:
        """The address `offset` elements of `type_` beyond `base`."""
        return base if offset == 0 else self.emit("ptr", f"getelementptr inbounds {type_}, {base}, {index(offset)}")

    def load(self, type_: str, address: Value, align: int) -> Value:
        """A plain load."""
        return self.emit(type_, f"load {type_}, {address}, align {align}")

    def store(self, value: Value, address: Value, align: int) -> None:
        """A plain store."""
        self.do(f"store {value}, {address}, align {align}")

    def store_past_caches(self, value: Value, address: Value, align: int) -> None:
        """A store of what nobody reads soon; on x86 an order among others only comes with a fence."""
        self.do(f"store {value}, {address}, align {align}, !nontemporal {self.module.metadata('i32 1')}")

    def beyond(self, base: Value, offset: Index) -> Value:
        """The address `offset` bytes beyond `base`, which may lie outside of everything: not to be read."""
        return base if offset == 0 else self.emit("ptr", f"getelementptr i8, {base}, {index(offset)}")  # not inbounds

    def prefetch(self, address: Value, keep: int) -> None:
        """Ask for the cache line at an address, wherever that is, to be kept in L1 (3) or L2 (2)."""
        self.module.declare("void", "llvm.prefetch.p0", ["ptr", "i32", "i32", "i32"])
        self.do(f"call void @llvm.prefetch.p0({address}, i32 0, i32 {keep}, i32 1)")

    def hidden(self, pointer: Value) -> Value:
        """The same address, of which LLVM does not know how it came to be.

        It spends half of the time of compilation on comparing ways to step many addresses through nested loops, where
        one register and constant offsets from it is what is wanted.
        """
        return self.emit("ptr", f'call ptr asm "", "=r,0"({pointer})')

    def lookup(self, table: Value, i: Index) -> Value:
        """Entry i of a table of i64."""
        return self.load("i64", self.at(table, i, "i64"), 8)

    # --- control

    def open(self, label: str, known: dict[Any, Value] | None = None) -> None:
        """Begin a block; `known` is what has been computed on every way there."""
        self._lines.append(f"{label}:")
        self.block, self._known = label, dict(known or {})

    def new_label(self, name: str) -> str:
        """A label that no block has."""
        self._blocks += 1
        return f"{name}{self._blocks}"

    def branch(self, label: str) -> None:
        """Unconditional."""
        self.do(f"br label %{label}")

    @contextmanager
    def when(self, condition: Value):
        """Run the body where an i1 holds."""
        yes, done = self.new_label("then"), self.new_label("done")
        self.do(f"br {condition}, label %{yes}, label %{done}")
        known = self._known
        self.open(yes, known)
        yield
        self.branch(done)
        self.open(done, known)

    def either(self, condition: Value, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """One of two bodies."""
        one, other, done = self.new_label("then"), self.new_label("else"), self.new_label("done")
        self.do(f"br {condition}, label %{one}, label %{other}")
        known = self._known
        for label, body in ((one, yes), (other, no)):
            self.open(label, known)
            body()
            self.branch(done)
        self.open(done, known)

    def one_of(
        self, condition: Value, yes: Callable[[], list[Value]], no: Callable[[], list[Value]]
    ) -> list[Value]:  # fmt: skip
        """The values of one of two bodies, of equal types."""
        found: list[tuple[list[Value], str]] = []

        def keep(body: Callable[[], list[Value]]) -> None:
            values = body()
            found.append((values, self.block))  # where the body ended

        self.either(condition, lambda: keep(yes), lambda: keep(no))
        (of_one, one), (of_other, other) = found
        return [
            self.emit(x.type, f"phi {x.type} [{x.text}, %{one}], [{y.text}, %{other}]")
            for x, y in zip(of_one, of_other, strict=True)
        ]

    def loop(
        self,
        start: Index,
        stop: Index,
        body: Callable[[Any, dict[Any, Value]], dict[Any, Value] | None],
        *,
        step: int = 1,
        carried: dict[Any, Value] | None = None,
        name: str = "i",
    ) -> dict[Any, Value]:
        """`for i in range(start, stop, step): carried = body(i, carried)`; zero trips give `carried` as it was.

        A loop known to run exactly once is no loop.
        """
        carried = carried or {}
        if isinstance(start, int) and isinstance(stop, int):
            if start >= stop:
                return carried
            if start + step >= stop:
                return body(start, carried) or {}
        known = self._known
        entry, head, done = self.block, self.new_label(f"{name}.body"), self.new_label(f"{name}.done")
        certain = isinstance(start, int) and isinstance(stop, int)
        if certain:
            self.branch(head)
        else:
            self.do(f"br {self.compare('slt', start, stop)}, label %{head}, label %{done}")
        self.open(head, known)
        slot, blocks = len(self._lines), self._blocks
        self._names += 1
        i = Value("i64", f"%{name}{self._names}")
        now: dict[Any, Value] = {}
        for key, value in carried.items():
            self._names += 1
            now[key] = Value(value.type, f"%c{self._names}")
        then = body(i, now) or {}
        following = self.emit("i64", f"add nsw {i}, {step}")
        again = self.compare("slt", following, stop)
        latch = self.block
        self.do(f"br {again}, label %{head}, label %{done}")
        counter = i.text if self._blocks == blocks else f"{i.text}.counter"
        phis = [f"  {counter} = phi i64 [{index(start).text}, %{entry}], [{following.text}, %{latch}]"]
        phis += [
            f"  {now[key].text} = phi {first.type} [{first.text}, %{entry}], [{then[key].text}, %{latch}]"
            for key, first in carried.items()
        ]
        if self._blocks != blocks:
            phis.append(f'  {i.text} = call i64 asm "", "=r,0"(i64 {counter})')
        self._lines[slot:slot] = phis
        self.open(done, known)
        if certain:
            return then
        return {
            key: self.emit(first.type, f"phi {first.type} [{first.text}, %{entry}], [{then[key].text}, %{latch}]")
            for key, first in carried.items()
        }
