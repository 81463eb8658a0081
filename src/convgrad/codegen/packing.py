"""Weights in the order in which the microkernels read them."""

from __future__ import annotations

from convgrad.codegen.copying import Copy, Dim, emit_zero
from convgrad.codegen.ir import Builder, Index, Value


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
    staging   room for a panel. Where taps lie closer in the source than lanes, the panel is made in the order of the
              source first, so that long runs of the source are transposed, and then put in order by vectors.
    """
    count, room, channel_step = channels
    total = 1
    for extent, _ in taps:
        total *= extent
    if not whole:
        emit_zero(b, copy.isa, copy.compute, target, total * room * width)
    tap_dims, step = [], room * width
    for extent, source_step in reversed(taps):
        tap_dims.insert(0, (extent, step, source_step))
        step *= extent
    direct = [Dim(n, src, dst) for n, dst, src in [*lanes, (count, width, channel_step), *tap_dims]]
    if total == 1 or any(src == 1 for _, dst, src in lanes if dst == 1):
        copy.emit(b, source, target, direct)
        return
    staged, place = [], width
    order = sorted([(room, count, channel_step, width), *((n, n, src, dst) for n, dst, src in tap_dims)],
                   key=lambda axis: abs(axis[2]))  # fmt: skip
    back = []
    for capacity, extent, src, dst in order:
        staged.append(Dim(extent, src, place))
        back.append(Dim(extent, place, dst))
        place *= capacity
    if not whole:
        emit_zero(b, copy.isa, copy.compute, staging, total * room * width)
    copy.emit(b, source, staging, [*(Dim(n, src, dst) for n, dst, src in lanes), *staged])
    inside = Copy(isa=copy.isa, compute=copy.compute, src_dtype=copy.compute, dst_dtype=copy.compute)
    inside.emit(b, staging, target, [Dim(width, 1, 1), *back])
