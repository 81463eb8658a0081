"""The register tile against its formula, for everything the contract allows."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.emitted import compile_function, each_isa
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.microkernels.contract import Tile
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.dtypes import numpy_dtype
from convgrad.plan.machine import machine_for
from convgrad.runtime import jit

BOTH = pytest.mark.parametrize("compute", ["f32", "f64"])
SHAPES = [(1, 1), (2, 3), (5, 2), (1, 4), (6, 1)]  # rows and columns


def tile_of(isa, compute, rows, columns, **others):
    """A tile whose rows and columns lie at odd places."""
    lanes = ISAS[isa].lanes(compute)
    return Tile(
        isa=ISAS[isa], compute=compute,
        rows=tuple(3 * r + r % 2 for r in range(rows)),
        columns=tuple(v * (lanes + 1) for v in range(columns)),
        c_rows=tuple(r * (columns * lanes + 5) for r in range(rows)),
        c_columns=tuple(v * lanes for v in reversed(range(columns))),
        **others,
    )  # fmt: skip


def by_formula(tile, a, x, c, reductions, taps, start=None):
    """C[r, v] += Σ A[rows[r] + Σ i·a_step + a] · B[columns[v] + Σ i·b_step + b], number by number."""
    lanes, result = tile.isa.lanes(tile.compute), c.copy()
    lane = np.arange(lanes)
    for (r, row), (v, column) in product(enumerate(tile.rows), enumerate(tile.columns)):
        place = tile.c_rows[r] + tile.c_columns[v] + lane
        total = c[place] if start is None else np.asarray(start(r, v), float)
        for steps in product(*(range(first, stop) for first, stop, *_ in reductions)):
            for a_tap, b_tap in taps:
                moved = [(i * at, bt[i] if isinstance(bt, list) else i * bt)
                         for i, (_, _, at, bt) in zip(steps, reductions, strict=True)]  # fmt: skip
                at_a = row + a_tap + sum(m for m, _ in moved)
                at_b = column + b_tap + sum(m for _, m in moved)
                factor = a[at_a + v * lanes + lane] if tile.a_vector else a[at_a]
                total = total + factor * x[at_b + lane]
        result[place] = total
    return result


def assert_tile(tile, reductions, taps=((0, 0),), *, known=True, fresh=False, rng=None, low=False):
    """Run a tile on whole numbers; `reductions` are (start, stop, a step, b step or list of them)."""
    rng = rng or np.random.default_rng(5)
    lanes = tile.isa.lanes(tile.compute)
    most_a, most_b = reach(tile, reductions, taps)
    dtypes = [numpy_dtype(name or tile.compute) for name in (tile.a_dtype, tile.b_dtype, tile.c_dtype)]
    size = max(tile.c_rows) + max(tile.c_columns) + lanes
    a, x, c = (
        StridedArray((count,), (1,), dtype, low=low)
        for count, dtype in zip((most_a, most_b, size), dtypes, strict=True)
    )
    for array in (a, x, c):
        array.view[...] = rng.integers(-3, 4, array.view.shape).astype(array.view.dtype)
    bounds = [bound for first, stop, *_ in reductions for bound in (first, stop)]

    def start(r, v):
        return [10 * r + v] * lanes

    def body(b, *arguments):
        seen = bounds if known else arguments[3:]
        axes = [
            Reduction(seen[2 * n], seen[2 * n + 1], at, b.module.table(bt) if isinstance(bt, list) else bt)
            for n, (_, _, at, bt) in enumerate(reductions)
        ]
        kind = {"f32": "float", "f64": "double"}[tile.compute]
        first = [
            tile.isa.splat(b, Value(kind, f"{10.0 * r + v}"), lanes)
            for r in range(len(tile.rows))
            for v in range(len(tile.columns))
        ]
        tile.emit(b, *arguments[:3], axes, first if fresh else None, taps)

    call = compile_function(tile.isa.name, ("ptr",) * 3 + ("i64",) * len(bounds), body)
    numbers = [array.view.astype(np.float64) for array in (a, x, c)]
    expected = by_formula(tile, *numbers, reductions, taps, start if fresh else None)
    call(a.address, x.address, c.address, *bounds)
    np.testing.assert_array_equal(c.view.astype(np.float64), expected.astype(c.view.dtype).astype(np.float64))
    assert c.only_elements_changed()


def reach(tile, reductions, taps):
    """How many numbers of A and of B a tile may read."""
    lanes = tile.isa.lanes(tile.compute)
    furthest = []
    for side, places in ((2, tile.rows), (3, tile.columns)):
        last = max(places) + max(tap[side - 2] for tap in taps)
        for axis in reductions:
            trips = max(0, axis[1] - 1)
            last += max(axis[side]) if isinstance(axis[side], list) else axis[side] * trips
        furthest.append(last + lanes)
    furthest[0] += (len(tile.columns) - 1) * lanes if tile.a_vector else 1 - lanes
    return furthest


@each_isa
@BOTH
@pytest.mark.parametrize("a_vector", [False, True], ids=["numbers of A", "vectors of A"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_reduction(shape, a_vector, compute, isa):
    tile = tile_of(isa, compute, *shape, a_vector=a_vector)
    for trips in (0, 1, 2, 9):
        assert_tile(tile, [(0, trips, 7, 5)], known=bool(trips % 2), low=bool(trips % 2))


@each_isa
@pytest.mark.parametrize("known", [True, False], ids=["known bounds", "bounds at run time"])
@pytest.mark.parametrize("a_vector", [False, True], ids=["numbers of A", "vectors of A"])
def test_several_reductions_in_order(a_vector, known, isa):
    tile = tile_of(isa, "f32", 3, 2, a_vector=a_vector)
    assert_tile(tile, [(0, 2, 40, 60), (1, 4, 9, 13), (0, 3, 1, 2)], known=known)
    assert_tile(tile, [(0, 2, 12, 24), (0, 3, 4, 8), (0, 4, 1, 2)], known=known)  # each continues the next
    assert_tile(tile, [(0, 2, 4, 8), (1, 4, 1, 2)], known=known)  # would, if it began at zero
    assert_tile(tile, [(0, 3, 0, 8), (0, 4, 1, 2)], known=known)  # B alone does
    assert_tile(tile, [(0, 1, 5, 5), (2, 3, 5, 5)], known=known)


@each_isa
@pytest.mark.parametrize("known", [True, False], ids=["known bounds", "bounds at run time"])
def test_no_trips_of_any_reduction_leave_the_tile_as_it_was(known, isa):
    tile = tile_of(isa, "f32", 2, 2)
    for reductions in ([(0, 0, 1, 1), (0, 5, 1, 1)], [(0, 5, 1, 1), (3, 3, 1, 1)], [(0, 2, 1, 1), (4, 1, 1, 1)]):
        for fresh in (False, True):
            assert_tile(tile, reductions, known=known, fresh=fresh)
    for unroll in (2, 4):
        assert_tile(replace(tile, unroll=unroll), [(5, 2, 1, 1)], known=known)


@each_isa
def test_no_reductions_are_one_product(isa):
    assert_tile(tile_of(isa, "f32", 3, 2), [])


@each_isa
def test_no_taps_are_no_products(isa):
    tile = tile_of(isa, "f32", 2, 2)
    size = max(tile.c_rows) + max(tile.c_columns) + tile.isa.lanes("f32")
    c = StridedArray((size,), (1,), np.float32)
    c.view[...] = np.arange(size)

    def body(b, pointer):
        tile.emit(b, pointer, pointer, pointer, [Reduction(0, 3, 1, 1)], None, ())

    compile_function(isa, ("ptr",), body)(c.address)
    np.testing.assert_array_equal(c.view, np.arange(size))


@each_isa
@BOTH
@pytest.mark.parametrize("shape", [(7, 4), (15, 2), (31, 1)], ids=str)
def test_the_last_vector_of_b_stays_in_memory_where_sums_leave_it_no_register(shape, compute, isa):
    emitter = ISAS[isa]
    tile = tile_of(isa, compute, *shape, ahead=256)
    for trips in (0, 1, 5):
        assert_tile(tile, [(0, 2, 90, 200), (0, trips, 3, 70)], known=bool(trips % 2), fresh=bool(trips % 2))
    module = Module()
    b = Builder(module, "tile", [("ptr", "a"), ("ptr", "x"), ("ptr", "c")], exported=True)
    tile.emit(b, *b.arguments, [Reduction(0, 6, 1, 100)], None)
    b.finish()
    if shape == (7, 4) and emitter.registers == 32 and emitter.vector_bytes == 64:
        code = jit.assembly(str(module), machine_for(isa))
        assert not re.search(r"zmm.*\(%rsp|\(%rsp.*zmm", code), "a register on the stack"
        assert len(re.findall(r"prefetcht0", code)) == shape[1], "a line is asked for once"


@each_isa
@BOTH
def test_sums_may_start_from_given_vectors(compute, isa):
    for trips in (0, 1, 4):
        assert_tile(tile_of(isa, compute, 3, 2), [(0, trips, 2, 3)], fresh=True)


@each_isa
@pytest.mark.parametrize("a_vector", [False, True], ids=["numbers of A", "vectors of A"])
@pytest.mark.parametrize("taps", [
    ((0, 0), (1, 40), (2, 80)),
    ((0, 9), (9, 0)),
    ((0, 0), (0, 0)),
    tuple((t, 3 - t) for t in range(4)),
    tuple((3 * t, 40 * t) for t in range(5)),  # A at places of other rows
    tuple((100 * t, t) for t in range(5)),
    tuple((100 * t, 4 * t) for t in range(5)),  # B at places of its own, and again
], ids=str)  # fmt: skip
def test_taps_written_out(taps, a_vector, isa):
    for rows, columns in ((1, 1), (4, 1), (3, 2)):
        tile = tile_of(isa, "f32", rows, columns, a_vector=a_vector)
        assert_tile(tile, [(0, 3, 200, 300)], taps)
        assert_tile(tile, [(0, 3, 200, 300)], taps, fresh=True, known=False)


@each_isa
def test_taps_that_read_what_neighbours_read(isa):
    """As the outputs of a row do: row r at tap t reads what row r + 1 reads at tap t − 1."""
    for lanes_apart in (False, True):
        lanes = ISAS[isa].lanes("f32")
        step = lanes if lanes_apart else 1
        tile = replace(tile_of(isa, "f32", 4, 1, a_vector=True), rows=tuple(step * r for r in range(4)))
        assert_tile(tile, [(0, 2, 150, 90)], tuple((step * t, lanes * t) for t in range(3)))


@each_isa
@pytest.mark.parametrize("known", [True, False], ids=["known bounds", "bounds at run time"])
def test_steps_of_b_from_a_table(known, isa):
    tile = tile_of(isa, "f32", 3, 2)
    for trips in (0, 1, 5):
        assert_tile(tile, [(0, trips, 4, [0, 33, 7, 66, 2]), (0, 3, 1, 11)], known=known)
        assert_tile(tile, [(0, 2, 30, 80), (0, trips, 4, [0, 33, 7, 66, 2])], known=known)


@each_isa
@pytest.mark.parametrize("known", [True, False], ids=["known bounds", "bounds at run time"])
@pytest.mark.parametrize("unroll", [2, 4])
def test_steps_written_out_together(unroll, known, isa):
    tile = tile_of(isa, "f32", 3, 2, unroll=unroll)
    for first, stop in ((0, 0), (0, 1), (0, 3), (0, 4), (0, 9), (2, 9), (1, 2)):
        assert_tile(tile, [(0, 2, 30, 80), (first, stop, 3, 5)], ((0, 0), (1, 2)), known=known)


@each_isa
@pytest.mark.parametrize("dtypes", [("bf16", "bf16", ""), ("f16", "", ""), ("", "f16", "bf16"), ("", "", "f16")],
                         ids="-".join)  # fmt: skip
@pytest.mark.parametrize("a_vector", [False, True], ids=["numbers of A", "vectors of A"])
def test_operands_in_types_of_storage(a_vector, dtypes, isa):
    a, b, c = dtypes
    tile = tile_of(isa, "f32", 3, 2, a_vector=a_vector, a_dtype=a, b_dtype=b, c_dtype=c)
    for trips in (0, 3):
        assert_tile(tile, [(0, trips, 7, 5)], ((0, 0), (1, 3)))


@each_isa
@pytest.mark.parametrize(("pitch", "fetched"), [(6, 1), (7, 0)], ids=["in one piece", "with gaps"])
def test_tiles_in_turn_fetch_what_follows_in_one_piece(pitch, fetched, isa):
    lanes = ISAS[isa].lanes("f32")
    module = Module()
    b = Builder(module, "tile", [("ptr", "a"), ("ptr", "x"), ("ptr", "c"), ("ptr", "end")])
    *arguments, end = b.arguments
    tile = replace(tile_of(isa, "f32", 5, 2, a_end=end), rows=tuple(pitch * r for r in range(5)))
    tile.emit(b, *arguments, [Reduction(0, 6, 1, 2 * lanes)], None)
    b.finish()
    assert str(module).count("call void @llvm.prefetch") == fetched
    assert (f"i64 {5 * 6 * 4}" in str(module)) == bool(fetched), "from this tile's rows to the next one's"


@each_isa
def test_sums_are_in_order(isa):
    """One chain per number: the last bit tells the order of the sum."""
    emitter, trips = ISAS[isa], 50
    lanes = emitter.lanes("f32")
    tile = Tile(isa=emitter, compute="f32", rows=(0,), columns=(0,), c_rows=(0,), c_columns=(0,))
    rng = np.random.default_rng(3)
    a, x = rng.standard_normal(trips).astype(np.float32), np.ones((trips, lanes), np.float32)
    c = np.zeros(lanes, np.float32)

    def body(b, *pointers):
        tile.emit(b, *pointers, [Reduction(0, trips, 1, lanes)], None)

    compile_function(isa, ("ptr",) * 3, body)(a.ctypes.data, x.ctypes.data, c.ctypes.data)
    total = np.float32(0)
    for number in a:
        total += number  # times one: fused or not
    np.testing.assert_array_equal(c, total)


@each_isa
def test_zeros_are_a_start(isa):
    tile = tile_of(isa, "f32", 2, 2)
    assert [value.text for value in tile.zeros()] == ["zeroinitializer"] * 4
