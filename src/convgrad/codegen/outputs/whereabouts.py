"""Where the lines of an output are: in the caches, where they had better stay, or in memory.

Lines that are written past the caches are not read before, but they leave the caches, and memory takes them slowly. If
the caches hold an output, because it was read or written just before, usual stores take less time, provided that its
lines are asked for early enough. Which of the two it is depends on the caller, so a kernel looks: it times loads of a
few lines. Stores past the caches would keep an output from ever being there, so a kernel that is asked for the same
output again tries usual stores once, and looks the next time whether that was of use. Results are the same either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES
from convgrad.plan.costs import LINE
from convgrad.problem.conv import ConvProblem

if TYPE_CHECKING:
    from convgrad.codegen.microkernels.contract import Tile

# Lines of an output that are looked at, in twelfths of it. Two threads write a half each, and what they wrote last is
# in their own L2: these are lines before that. The L3 of other cores, if they have one, is as far as memory.
PLACES = 1, 2, 7, 8
MOST = 3  # of these have to be near
NEAR_TICKS = 130  # of the time stamp counter, for a load from any cache near a core: 52 to 104; memory takes 340
OTHER_LINE = 2048  # bytes, a bit of an address: another line of the same page
CALLS_BETWEEN = 16  # of the same output, from a try that was of no use to the next
NEAR, LAST, WAITING = "near", "last.output", "waiting"  # variables of a module


def look(b: Builder, problem: ConvProblem, output: Value) -> None:
    """Decide, for all tiles of a call, how its output is stored, if any of them asks. `output` is where it begins."""
    if not b.module.has_variable(NEAR):
        return
    places = b.module.table([_place(problem, twelfths) for twelfths in PLACES])

    def probe(n: Index, so_far: dict[int, Value]) -> dict[int, Value]:
        ticks = _ticks(b, b.at(output, b.lookup(places, n), "i8"))
        found = b.emit("i64", f"zext {b.compare('slt', ticks, NEAR_TICKS)} to i64")
        return {0: index(b.add(so_far[0], found))}

    found = b.loop(0, len(PLACES), probe, carried={0: index(0)}, name="probe")[0]
    near = b.compare("sge", found, MOST)
    number = b.cast("ptrtoint", output, "i64")
    last, waiting = _read(b, LAST), _read(b, WAITING)
    same = b.compare("eq", number, last)
    over = b.both(same, b.compare("eq", waiting, 0))
    left = b.select(over, index(CALLS_BETWEEN), index(b.sub(waiting, 1)))
    left = b.select(same, left, index(0))
    _write(b, WAITING, b.select(near, index(0), left))
    _write(b, LAST, number)
    _write(b, NEAR, b.select(near, index(1), b.emit("i64", f"zext {over} to i64")))


def is_far(b: Builder) -> Value:
    """What was decided."""
    return b.compare("eq", _read(b, NEAR), 0)


def ask_for(b: Builder, tile: Tile, c: Value) -> None:
    """The lines that a tile writes at c, if they are in the caches: to be written soon."""
    size = BYTES[tile.c_dtype or tile.compute]
    lines = {size * (row + column) // LINE for row in tile.c_rows for column in tile.c_columns}
    with b.when(b.compare("ne", _read(b, NEAR), 0)):
        for line in sorted(lines):
            b.prefetch(b.beyond(c, LINE * line), 3, write=True)


def _place(problem: ConvProblem, twelfths: int) -> int:
    """Bytes from the beginning to one of the elements that are looked at, inside of the tensor on every axis."""
    shape, strides = problem.shapes[problem.solved], problem.strides[problem.solved]
    places = (twelfths * extent // 12 * step for extent, step in zip(shape, strides, strict=True))
    return BYTES[problem.out_dtype] * sum(places)


def _ticks(b: Builder, address: Value) -> Index:
    """From before to after the load of a line, once a load of its page has found out where that is."""
    b.module.declare("void", "llvm.x86.sse2.lfence", [])
    number = b.cast("ptrtoint", address, "i64")
    other = b.emit("ptr", f"inttoptr {b.emit('i64', f'xor {number}, {OTHER_LINE}')} to ptr")
    fence = "call void @llvm.x86.sse2.lfence()"
    b.emit("i8", f"load volatile i8, {other}, align 1")
    b.do(fence)
    before = b.call("i64", "llvm.readcyclecounter")
    b.do(fence)
    b.emit("i8", f"load volatile i8, {address}, align 1")
    b.do(fence)
    return b.sub(b.call("i64", "llvm.readcyclecounter"), before)


def _read(b: Builder, name: str) -> Value:
    """A variable, which other threads may write: whatever they find, results are the same."""
    return b.emit("i64", f"load atomic i64, {b.module.variable(name)} monotonic, align 8")


def _write(b: Builder, name: str, number: Index) -> None:
    b.do(f"store atomic {index(number)}, {b.module.variable(name)} monotonic, align 8")
