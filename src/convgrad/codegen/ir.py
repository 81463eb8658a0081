"""A small writer of LLVM IR text: instructions, arithmetic of indices, and here memory, branches and loops."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from convgrad.codegen.index_arithmetic import IndexArithmetic
from convgrad.codegen.ir_module import Index, Value, index


class Builder(IndexArithmetic):
    """Writes one function, instruction by instruction, into the current block."""

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

    def prefetch(self, address: Value, keep: int, *, write: bool = False) -> None:
        """Ask for a cache line, wherever it is, to be kept in L1 (3) or L2 (2), and perhaps to be written."""
        self.module.declare("void", "llvm.prefetch.p0", ["ptr", "i32", "i32", "i32"])
        self.do(f"call void @llvm.prefetch.p0({address}, i32 {int(write)}, i32 {keep}, i32 1)")

    def hidden(self, pointer: Value) -> Value:
        """The same address, of which LLVM does not know how it came to be.

        It spends half of the time of compilation on comparing ways to step many addresses through nested loops, where
        one register and constant offsets from it is what is wanted.
        """
        return self.emit("ptr", f'call ptr asm "", "=r,0"({pointer})')

    def here(self, vector: Value) -> Value:
        """The same vector, on x86, which LLVM may not put off: it spills what that is made of."""
        return self.emit(vector.type, f'call {vector.type} asm sideeffect "", "=v,0"({vector})')

    def unknown(self, number: Index) -> Value:
        """The same number, of which LLVM does not know that."""
        return self.emit("i64", f'call i64 asm "", "=r,0"({index(number)})')

    def in_turn(self) -> None:
        """What memory is read for from here on is read after what came before.

        LLVM reads vectors together that lie side by side, and as early as it can, whatever they drive out of registers.
        """
        self.do('call void asm sideeffect "", ""()')

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

    def either(self, condition: Value, yes: Callable[[], object], no: Callable[[], object]) -> None:
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
