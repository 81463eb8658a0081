"""The second stage of a WeightsPlan: chunks are added and written as weights, the bias gradient beside."""

from __future__ import annotations

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.packing import unpack_weights
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, BYTES, STORAGE
from convgrad.codegen.module import round64
from convgrad.codegen.outputs.sums import across, pairwise
from convgrad.codegen.stages import Places
from convgrad.plan.general.weights import WeightsPlan
from convgrad.values import replace


def chunk_numbers(plan: WeightsPlan) -> int:
    """From the sums of one chunk to those of the next."""
    return round64(BYTES[plan.compute] * plan.shared_sums) // BYTES[plan.compute]


def first_group(plan: WeightsPlan, b: Builder, bundle: Index) -> Index:
    """Of a bundle. A direct plan reads whole vectors, so its last bundle begins early and repeats some groups."""
    first = b.mul(bundle, plan.lane_groups)
    return b.minimum(first, plan.problem.groups - plan.lane_groups) if plan.direct else first


def finish(plan: WeightsPlan, b: Builder, at: Places, task: Value) -> None:
    """Some rows of one lane block: chunks added pairwise, in an order that the plan fixes, and written as weights."""
    bundle, block, share = b.split(task, plan.finish_grid)
    first = b.mul(share, plan.finish_rows)
    rows: Index = plan.finish_rows
    if not plan.finishes_evenly:
        rows = b.minimum(b.sub(plan.row_count, first), rows)
    which = b.add(b.mul(bundle, plan.lane_blocks), block)
    sums = b.at(at.shared, b.dot([(which, plan.sum_block), (first, plan.width)]), ARITHMETIC[plan.compute])
    write_rows(plan, b, at, sums, bundle, block, first, rows, chunks=plan.chunks)


def write_rows(
    plan: WeightsPlan, b: Builder, at: Places, sums: Value, bundle: Index, block: Index, first: Index, rows: Index, *,
    chunks: int = 1,
) -> None:  # fmt: skip
    """The sums of some rows of a lane block, at most `plan.finish_rows`, as weights; scratch holds them in between.

    Those of several chunks are added first.
    """
    if chunks > 1:
        _add_chunks(plan, b, sums, rows)
    if plan.along_windows:
        write_added(plan, b, at, sums, bundle, block, first, rows)
        return
    p = plan.problem
    group, k, c = p.w_strides[:3]
    lane_step, row_step = (k, c) if plan.rows_shift else (c, k)
    first_lane: Index = 0
    of_run = plan.lanes_along_taps
    taps, (step, of_row) = [], plan.sum_steps
    for extent, stride in [*zip(p.taps, p.w_strides[3:], strict=True)][-2 if of_run else -1 :: -1]:
        taps.append(Dim(extent, step, stride))
        step *= extent
    if plan.spread:
        groups = b.sub(p.groups, b.mul(bundle, plan.lane_groups))
        groups = plan.lane_groups if plan.direct else b.minimum(groups, plan.lane_groups)
        lanes = [Dim(groups, plan.lane_count, group), Dim(plan.lane_count, 1, lane_step)]
    elif of_run:
        lanes = [Dim(p.taps[-1], plan.lane_count, p.w_strides[-1]), Dim(plan.lane_count, 1, lane_step)]
    else:
        count: Index = plan.width
        if plan.lane_count % plan.width:
            count = b.minimum(b.sub(plan.lane_count, b.mul(block, plan.width)), plan.width)
        lanes = [Dim(count, 1, lane_step)]
        if plan.lanes_in_place:  # the last block begins early
            first_lane = b.sub(plan.width, count)
    origin = b.dot(
        [(first_group(plan, b, bundle), group), (block, plan.width * lane_step), (first, row_step)]
    )  # fmt: skip
    target = b.at(at.w, origin, STORAGE[p.out_dtype])
    of_rows = (Dim(rows, of_row, row_step), plan.finish_rows)

    def unpack(target: Value, lanes: list[Dim], first_lane: Index) -> None:
        if plan.taps_inside:
            here = b.at(sums, first_lane, ARITHMETIC[plan.compute])
            weights_copy(plan).emit(b, here, target, [*lanes, of_rows[0], *taps])
            return
        unpack_weights(b, weights_copy(plan), sums, target, at.scratch, lanes, of_rows, taps, plan.width, first_lane)

    many = plan.groups_of_part
    if not many:
        unpack(target, lanes, first_lane)
        return
    of_groups, of_lanes = lanes  # vector by vector, of which lanes are left over
    vectors = b.floor_div(of_groups.extent, many)
    unpack(target, [Dim(vectors, plan.lanes, many * group), replace(of_groups, extent=many), of_lanes], 0)
    if p.groups % many:
        there = b.at(target, b.mul(vectors, many * group), STORAGE[p.out_dtype])
        rest = replace(of_groups, extent=b.sub(of_groups.extent, b.mul(vectors, many)))
        unpack(there, [rest, of_lanes], b.mul(vectors, plan.lanes))


def write_added(
    plan: WeightsPlan, b: Builder, at: Places, sums: Value, bundle: Index, block: Index, first: Index, rows: Index
) -> None:
    """The same where the lanes of a vector are parts of one sum: they are added on the way to scratch."""
    p, lanes, kind = plan.problem, plan.lanes, ARITHMETIC[plan.compute]
    group, k, c = p.w_strides[:3]
    lane_step, row_step = (k, c) if plan.rows_shift else (c, k)
    isa, columns = ISAS[plan.isa], plan.vectors
    numbers = -(-plan.finish_rows * columns // lanes) * lanes  # of scratch, per tap

    def vector(base: Value, i: Index) -> Value:
        return isa.load(b, plan.compute, b.at(base, b.mul(i, lanes), kind), lanes)

    def of_tap(tap: Index, _: object) -> None:
        here = b.at(sums, b.mul(tap, plan.sum_rows * plan.width), kind)
        there = b.at(at.scratch, b.mul(tap, numbers), kind)
        total = b.mul(rows, columns)
        whole = b.mul(b.floor_div(total, lanes), lanes)

        def several(i: Index, _: object) -> None:
            turned = isa.load_transposed(b, plan.compute, b.at(here, b.mul(i, lanes), kind), lanes)
            isa.store(b, plan.compute, pairwise(b, turned), b.at(there, i, kind))

        def one(i: Index, _: object) -> None:
            isa.store(b, plan.compute, across(b, vector(here, i)), b.at(there, i, kind))

        b.loop(0, whole, several, step=lanes, name="lanes")
        b.loop(whole, total, one, name="lanes")

    b.loop(0, plan.taps, of_tap, name="tap")
    taps, step = [], numbers
    for extent, stride in zip(reversed(p.taps), reversed(p.w_strides[3:]), strict=True):
        taps.append(Dim(extent, step, stride))
        step *= extent
    count = b.minimum(b.sub(plan.lane_count, b.mul(block, columns)), columns)
    origin = b.dot([(bundle, group), (block, columns * lane_step), (first, row_step)])
    target = b.at(at.w, origin, STORAGE[p.out_dtype])
    box = [Dim(count, 1, lane_step), Dim(rows, columns, row_step), *taps]
    weights_copy(plan).emit(b, b.at(at.scratch, 0, kind), target, box)


def weights_copy(plan: WeightsPlan) -> Copy:
    """From sums to weights."""
    p = plan.problem
    return Copy(
        isa=ISAS[plan.isa], compute=plan.compute, src_dtype=plan.compute, dst_dtype=p.out_dtype,
        accumulate=p.accumulate, ordinary=plan.ordinary_sums, past_caches=plan.turned_past_caches,
        of_results=plan.turned_past_caches,
    )  # fmt: skip


def _add_chunks(plan: WeightsPlan, b: Builder, sums: Value, rows: Index) -> None:
    isa, kind = ISAS[plan.isa], ARITHMETIC[plan.compute]
    step = chunk_numbers(plan)

    def of_tap(tap: Index, _: object) -> None:
        start = b.mul(tap, plan.padded_rows * plan.width)

        def vector(i: Index, _: object) -> None:
            place = b.add(start, i)
            parts = [
                isa.load(b, plan.compute, b.at(sums, b.add(place, chunk * step), kind), plan.lanes)
                for chunk in range(plan.chunks)
            ]
            isa.store(b, plan.compute, pairwise(b, parts), b.at(sums, place, kind))

        b.loop(0, b.mul(rows, plan.width), vector, step=plan.lanes, name="add")

    b.loop(0, plan.taps, of_tap, name="tap")
