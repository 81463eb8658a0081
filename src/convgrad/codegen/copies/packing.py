"""Weights in the order in which the microkernels read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.interleave import pick
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.plan.general.room import staged_channels, staged_taps
from convgrad.plan.strides import row_major
from convgrad.problem.conv import Ints
from convgrad.values import replace


def pack_weights_panel(
    b: Builder, copy: Copy, source: Value, target: Value, staging: Value, *,
    lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int], taps: list[tuple[int, int]],
    width: int, whole: bool,
) -> None:  # fmt: skip
    """target[taps, channel, lane] = source.

    lanes     (extent, packed step, source step) of each axis of the lanes
    channels  (how many there are, how many the panel has room for, source step)
    taps      (extent, source step) per spatial axis
    whole     every lane is written; else the panel is zeroed first
    staging   room for `staged_channels` of `staged_taps`. Where taps lie closer in the source than both lanes and
              channels, some channels are made in the order of the source first, so that long runs of the source are
              transposed, and then put in order by vectors.
    """
    count, room, channel_step = channels
    extents = tuple(extent for extent, _ in taps)
    total, at_once = prod(extents), staged_taps(extents, width * BYTES[copy.compute])
    staged = _is_staged(copy, lanes, channel_step, taps)
    if at_once != extents and staged:

        def piece(firsts: list[Index], counts: list[int]) -> None:
            of, to = at_taps(b, firsts, taps)
            pack_weights_panel(
                b, copy, b.at(source, of, STORAGE[copy.src_dtype]),
                b.at(target, b.mul(to, room * width), STORAGE[copy.compute]), staging, lanes=lanes, channels=channels,
                taps=[(n, step) for n, (_, step) in zip(counts, taps, strict=True)], width=width, whole=whole,
            )  # fmt: skip

        in_pieces(b, extents, at_once, piece)
        return
    if not whole:
        emit_zero(b, copy.isa, copy.compute, target, total * room * width)
    tap_dims, step = [], room * width
    for extent, source_step in reversed(taps):
        tap_dims.insert(0, (extent, step, source_step))
        step *= extent
    if not staged:
        copy.emit(b, source, target,
                  [Dim(n, src, dst) for n, dst, src in [*lanes, (count, width, channel_step), *tap_dims]])  # fmt: skip
        return
    some = staged_channels(total, width, room, BYTES[copy.compute])
    if not whole:
        emit_zero(b, copy.isa, copy.compute, staging, total * some * width)

    def part(first: Index, count: Index) -> None:
        origin = b.at(source, b.mul(first, channel_step), STORAGE[copy.src_dtype])
        there = b.at(target, b.mul(first, width), STORAGE[copy.compute])
        _pack_in_order(b, copy, origin, there, staging, lanes, (count, some, channel_step), tap_dims, width)

    parts = b.floor_div(count, some)
    b.loop(0, parts, lambda n, _: part(b.mul(n, some), some), name="part")
    rest = b.sub(count, b.mul(parts, some))
    if isinstance(rest, Value):
        with b.when(b.compare("sgt", rest, 0)):
            part(b.mul(parts, some), rest)
    elif rest:
        part(b.mul(parts, some), rest)


def in_pieces(b: Builder, extents: Ints, some: Ints, emit: Callable[[list[Index], list[int]], None]) -> None:
    """Pieces of a box, of at most `some` places on every axis, from the first place and the extent on each."""

    def nest(firsts: list[Index], counts: list[int]) -> None:
        if len(firsts) == len(extents):
            emit(firsts, counts)
            return
        extent, most = extents[len(firsts)], max(1, some[len(firsts)])
        whole, rest = divmod(extent, most)
        if whole:
            b.loop(0, whole, lambda n, _: nest([*firsts, b.mul(n, most)], [*counts, most]), name="piece")
        if rest:
            nest([*firsts, whole * most], [*counts, rest])

    nest([], [])


def at_taps(b: Builder, firsts: Sequence[Index], taps: Sequence[tuple[int, int]]) -> tuple[Index, Index]:
    """Where a tap lies in the source, of whose axes extent and step are given, and which one it is."""
    extents = tuple(extent for extent, _ in taps)
    of = b.dot([(first, step) for first, (_, step) in zip(firsts, taps, strict=True)])
    return of, b.dot(list(zip(firsts, row_major(extents, 1), strict=True)))


def _is_staged(
    copy: Copy, lanes: list[tuple[Index, int, int]], channel_step: int, taps: list[tuple[int, int]]
) -> bool:  # fmt: skip
    if any(src == 1 for _, dst, src in lanes if dst == 1):
        return False
    runs = all(abs(src) < abs(channel_step) for *_, src in lanes) and copy.interleaves(prod(n for n, _ in taps))
    if runs and not any(isinstance(n, int) and n % copy.isa.lanes(copy.compute) for n, *_ in lanes):
        return False  # lanes and their taps, which are taken apart as they lie
    return any(extent > 1 and abs(step) < abs(channel_step) for extent, step in taps)


def _pack_in_order(
    b: Builder, copy: Copy, source: Value, target: Value, staging: Value, lanes: list[tuple[Index, int, int]],
    channels: tuple[Index, int, int], taps: list[tuple[int, int, int]], width: int,
) -> None:  # fmt: skip
    """Some channels by way of `staging`; `taps` are (extent, packed step, source step) here."""
    count, room, channel_step = channels
    staged, back, place = [], [], width
    order = sorted([(room, count, channel_step, width), *((n, n, src, dst) for n, dst, src in taps)],
                   key=lambda axis: abs(axis[2]))  # fmt: skip
    for capacity, extent, src, dst in order:
        staged.append(Dim(extent, src, place))
        back.append(Dim(extent, place, dst))
        place *= capacity
    copy.emit(b, source, staging, [*(Dim(n, src, dst) for n, dst, src in lanes), *staged])
    inside = Copy(isa=copy.isa, compute=copy.compute, src_dtype=copy.compute, dst_dtype=copy.compute)
    inside.emit(b, staging, target, [Dim(width, 1, 1), *back])


def unpack_weights(
    b: Builder, copy: Copy, sums: Value, target: Value, staging: Value, lanes: list[Dim], rows: tuple[Dim, int],
    taps: list[Dim], width: int, first: Index = 0,
) -> None:  # fmt: skip
    """target = sums[taps, row, first + lane]; `rows` comes with the room that `staging` has for it.

    Where rows and taps lie closer in the target than lanes, the sums are put in the target's order by vectors first, so
    that long runs of the target are written at once; those of `staged_taps` at a time. Not where the taps of a lane
    are whole vectors of the target in any case, nor where rows are farther apart than lanes.
    """
    row, room = rows
    extents = tuple(tap.extent for tap in taps if isinstance(tap.extent, int))
    one = prod(extents) == 1
    beside = all(abs(row.dst) > abs(lane.dst) for lane in lanes)
    if one or beside or any(abs(lane.dst) <= 1 for lane in lanes) or _fill_vectors(b, copy, taps):
        copy.emit(b, b.at(sums, first, STORAGE[copy.compute]), target, [*lanes, row, *taps])
        return
    at_once = staged_taps(extents, room * width * BYTES[copy.compute])
    if at_once != extents:

        def piece(firsts: list[Index], counts: list[int]) -> None:
            of = b.dot([(n, tap.src) for n, tap in zip(firsts, taps, strict=True)])
            to = b.dot([(n, tap.dst) for n, tap in zip(firsts, taps, strict=True)])
            unpack_weights(
                b, copy, b.at(sums, of, STORAGE[copy.compute]), b.at(target, to, STORAGE[copy.dst_dtype]), staging,
                lanes, rows, [replace(tap, extent=n) for n, tap in zip(counts, taps, strict=True)], width, first,
            )  # fmt: skip

        in_pieces(b, extents, at_once, piece)
        return
    axes = sorted([(row, room), *((tap, tap.extent) for tap in taps)], key=lambda axis: abs(axis[0].dst))
    place, there, back = width, [], []
    for axis, capacity in axes:
        there.append(Dim(axis.extent, axis.src, place))
        back.append(Dim(axis.extent, place, axis.dst))
        assert isinstance(capacity, int)
        place *= capacity
    inside = Copy(isa=copy.isa, compute=copy.compute, src_dtype=copy.compute, dst_dtype=copy.compute)
    inside.emit(b, sums, staging, [Dim(width, 1, 1), *there])
    copy.emit(b, b.at(staging, first, STORAGE[copy.compute]), target, [*lanes, *back])


def _fill_vectors(b: Builder, copy: Copy, axes: list[Dim]) -> bool:
    """Whether the numbers of some axes lie side by side in the target, and are whole vectors."""
    merged = copy.merged(b, axes)
    extent = merged[0].extent if len(merged) == 1 and merged[0].dst == 1 else 1
    return isinstance(extent, int) and extent % copy.isa.lanes(copy.compute) == 0


def can_spread_by_vectors(
    copy: Copy, groups: Index, channels: int, lanes_per_group: int, channel_step: int, group_step: int
) -> bool:  # fmt: skip
    """Whether the channels of all groups lie side by side and a vector holds whole groups.

    Without masks, as many groups have to be known to be there as fill a vector: the last one is read early. Channels
    that only one lane reads are not spread, but taken apart, as copies do.
    """
    lanes = copy.isa.lanes(copy.compute)
    together = lanes % lanes_per_group == 0 and (channels == 1 or channel_step == 1) and group_step == channels
    if copy.isa.masks:
        return together
    return together and lanes_per_group > 1 and isinstance(groups, int) and groups * channels >= lanes


def spread_groups(
    b: Builder, copy: Copy, source: Value, target: Value, axes: list[Dim], *,
    groups: Index, channels: int, lanes_per_group: int, width: int,
) -> None:  # fmt: skip
    """target[axes, i, lane] = source[axes, group of the lane, i], for all i < channels at once.

    Every `lanes_per_group` lanes read the same channel; see `can_spread_by_vectors`.
    """
    lanes = copy.isa.lanes(copy.compute)
    per_vector = lanes // lanes_per_group
    parts_per_vector = -(-per_vector * channels // lanes)
    present = b.mul(groups, channels)

    early = present - lanes if isinstance(present, int) and not copy.isa.masks else None

    def vector(src: Value, dst: Value, v: int) -> None:
        first = v * per_vector * channels
        starts = [first + m * lanes for m in range(parts_per_vector)]
        if early is not None:
            starts = [min(start, early) for start in starts]
        parts = []
        for start in starts:
            address = b.at(src, start, STORAGE[copy.src_dtype])
            count = None
            if not (isinstance(present, int) and present >= start + lanes):
                count = index(b.minimum(b.maximum(b.sub(present, start), 0), lanes))
            parts.append(copy.isa.load(b, copy.src_dtype, address, lanes, count))

        def lane_of(number: int) -> int:
            part = (number - first) // lanes
            return part * lanes + number - starts[part]

        for i in range(channels):
            wanted = [lane_of(first + lane // lanes_per_group * channels + i) for lane in range(lanes)]
            place = b.at(dst, i * width + v * lanes, STORAGE[copy.dst_dtype])
            copy.isa.store(b, copy.dst_dtype, pick(b, parts, wanted), place)

    def position(src: Value, dst: Value) -> None:
        for v in range(width // lanes):
            vector(src, dst, v)

    copy.nest(b, source, target, axes, position)
