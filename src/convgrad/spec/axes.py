"""From attributes and extents to the geometry of every spatial axis."""

from __future__ import annotations

from typing import Any

from convgrad.spec.schemas import SIDES, Schema
from convgrad.spec.shapes import Axis, check_reach, check_relation, count_windows, image_extent, per_axis, resolve_pads

Ints = tuple[int, ...]


def resolve_axes(
    schema: Schema,
    attributes: dict[str, Any],
    kernel: Ints,
    image: Ints | None,
    window: Ints | None,
    *,
    page: bool,
) -> dict[str, Ints]:
    """Pads and extents, axis by axis; an extent that is None is computed from the other."""
    op, rank = schema.op, len(kernel)
    given_padding = attributes.get("output_padding")
    strides = per_axis(op, "strides", attributes["strides"], rank, absent=1)
    dilations = per_axis(op, "dilations", attributes["dilations"], rank, absent=1)
    auto_pad = attributes["auto_pad"]
    begin, end = (_stated_pads(op, name, attributes[name], rank, auto_pad) for name in ("pads_begin", "pads_end"))
    padding = per_axis(op, "output_padding", given_padding, rank, absent=0)
    columns: list[tuple[int, int, int, int]] = []
    for i in range(rank):
        axis = Axis(
            op=op,
            name=f"spatial axis {i}",
            image=SIDES[op][0],
            window=SIDES[op][1],
            taps=kernel[i],
            stride=strides[i],
            dilation=dilations[i],
            output_padding=padding[i],
            output_padding_given=given_padding is not None,
        )
        x, y = None if image is None else image[i], None if window is None else window[i]
        pads = resolve_pads(
            axis, auto_pad=auto_pad, family=schema.family, pads=(begin[i], end[i]), image=x, window=y, page=page
        )
        if x is None:
            assert y is not None, "one side is given by the inputs or by a told shape"
            x = image_extent(axis, y, pads)
        elif y is None:
            y = count_windows(axis, x, pads)
        else:
            check_relation(axis, x, y, pads, auto_pad=auto_pad)
        check_reach(axis, x, y, pads)
        columns.append((x, y, *pads))
    x, y, low, high = zip(*columns, strict=True)
    return {
        "image_extent": x,
        "window_extent": y,
        "strides": strides,
        "dilations": dilations,
        "pads_begin": low,
        "pads_end": high,
        "output_padding": padding,
    }


def _stated_pads(op: str, name: str, values: Ints | None, rank: int, auto_pad: str) -> Ints:
    if values == () and auto_pad != "NONE":  # graph files write the pads that auto_pad replaces as empty lists
        values = None
    return per_axis(op, name, values, rank, absent=0)
