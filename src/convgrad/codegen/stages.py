"""The frame around the tasks of a stage: who claims what, and where things are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value, index
from convgrad.codegen.module import CALL_FIELDS, Stage
from convgrad.values import frozen

if TYPE_CHECKING:
    from convgrad.codegen.watch.verdict import Verdict

MANY = 32  # tasks, of which the last ones even out what differs
_POINTERS = ("x", "w", "y", "bias", "shared", "scratch")


@frozen
class Places:
    """Where a task finds its tensors and its memory; `scratch` is its thread's own slice.

    `threads` is how many were at work when the task was claimed, on the same half: its thread's next one is likely to
    be so much further.
    """

    x: Value
    w: Value
    y: Value
    bias: Value
    shared: Value
    scratch: Value
    threads: Value

    def of(self, tensor: str) -> Value:
        """By the name of a tensor."""
        return getattr(self, tensor)


class Stages(Protocol):
    """What a plan is lowered to: the stages of a kernel, and the memory that they need."""

    @property
    def shared_bytes(self) -> int:
        """Of memory that lives through all stages, but for what a verdict is formed of."""
        ...

    @property
    def scratch_bytes(self) -> int:
        """Of any task."""
        ...

    @property
    def most_tasks(self) -> int:
        """Of a stage."""
        ...

    @property
    def verdict(self) -> Verdict | None:
        """Where tasks look at their data: what becomes of a call whose data are beyond the plan."""
        ...

    def emit(self, module: Module) -> tuple[Stage, ...]:
        """Write the stages, in the order in which they run."""
        ...


def emit_stage(
    module: Module, symbol: str, tasks: int, scratch_bytes: int, body: Callable[[Builder, Places, Value], None], *,
    alike: bool = False, before: Callable[[Builder, dict[str, Value]], None] | None = None,
) -> Stage:  # fmt: skip
    """A function for the task and one, exported, that claims tasks until there are none left.

    Where tasks are `alike`, or many, threads begin with a half each: what a thread reads and writes lies together.
    One of the threads does what comes `before`, with pointers by name, while others may have begun.
    """
    arguments = [("i64", "task"), *(("ptr noalias", name) for name in _POINTERS), ("i64", "threads")]
    inner = Builder(module, f"{symbol}.task", arguments)
    task, *places = inner.arguments
    body(inner, Places(*places), task)
    inner.finish()
    _emit_claims(module, symbol, tasks, scratch_bytes, halved=alike or tasks >= MANY, before=before)
    return Stage(symbol=symbol, tasks=tasks)


def emit_part(module: Module, symbol: str, numbers: Sequence[str], body: Callable[..., None]) -> None:
    """A function of what tasks do again and again: `body(builder, places, *numbers)`; `call_part` calls it."""
    arguments = [
        *(("i64", name) for name in numbers),
        *(("ptr noalias", name) for name in _POINTERS),
        ("i64", "threads"),
    ]
    b = Builder(module, symbol, arguments, inline=False)
    given = b.arguments[: len(numbers)]
    body(b, Places(*b.arguments[len(numbers) :]), *given)
    b.finish()


def call_part(b: Builder, symbol: str, at: Places, *numbers: Index) -> None:
    """From a task, or another part."""
    b.call_void(symbol, *numbers, *(at.of(name) for name in _POINTERS), at.threads)


def _emit_claims(
    module: Module, symbol: str, tasks: int, scratch_bytes: int, *, halved: bool,
    before: Callable[[Builder, dict[str, Value]], None] | None,
) -> None:  # fmt: skip
    """If tasks are `halved`, threads with odd slots begin with the second half; all end with what others have left."""
    b = Builder(module, symbol, [("ptr", "call")], exported=True)
    call = b.arguments[0]
    field = {name: b.at(call, i, "i64") for i, name in enumerate(CALL_FIELDS)}
    pointer = {name: b.load("ptr", field[name], 8) for name in _POINTERS}
    own, other, work, done = (b.new_label(name) for name in ("own", "other", "work", "done"))
    slot = b.emit("i64", f"atomicrmw add {field['slots']}, i64 1 monotonic")
    if before is not None:
        with b.when(b.compare("eq", slot, 0)):
            before(b, pointer)
    pointer["scratch"] = b.at(pointer["scratch"], b.mul(slot, scratch_bytes), "i8")
    odd = b.compare("ne", b.emit("i64", f"and {slot}, 1"), 0)
    first = tasks - tasks // 2 if halved else tasks
    halves = (field["tasks"], index(0), index(first)), (field["others"], index(first), index(tasks))
    b.branch(own)
    found = []
    for here, otherwise, (even, uneven) in ((own, other, halves), (other, done, halves[::-1])):
        b.open(here)
        counter, start, stop = (b.select(odd, x, y) for x, y in zip(uneven, even, strict=True))
        task = b.add(b.emit("i64", f"atomicrmw add {counter}, i64 1 monotonic"), start)
        b.do(f"br {b.compare('slt', task, stop)}, label %{work}, label %{otherwise}")
        found.append(f"[{index(task).text}, %{here}]")
    b.open(work)
    claimed = b.emit("i64", f"phi i64 {', '.join(found)}")
    threads = b.emit("i64", f"load atomic i64, {field['slots']} monotonic, align 8")
    if halved:
        threads = b.emit("i64", f"lshr {b.add(threads, 1)}, 1")
    b.call_void(f"{symbol}.task", claimed, *(pointer[name] for name in _POINTERS), threads)
    b.branch(own)
    b.open(done)
    b.finish()
