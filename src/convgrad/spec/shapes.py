"""Relations between the extents of one spatial axis, and what auto_pad makes of the pads.

Per axis: X elements on the image side, Y on the window side, K taps, stride S, dilation D, pads PB and PE, output
padding OP. A window spans EK = (K - 1) * D + 1 elements, and  X = S * (Y - 1) + EK - PB - PE + OP.
"""

from __future__ import annotations

from typing import NamedTuple

from convgrad.errors import ShapeError
from convgrad.spec.attributes import LARGEST


class Axis(NamedTuple):
    """One spatial axis, as far as it is known; messages are written from it."""

    op: str
    name: str  # "axis 0", the outermost spatial one
    image: str  # name of the tensor on the image side
    window: str
    taps: int  # K
    stride: int  # S
    dilation: int  # D
    output_padding: int  # OP
    output_padding_given: bool  # as a list that is not all zeros

    @property
    def reach(self) -> int:
        """EK, the elements that one window spans."""
        return (self.taps - 1) * self.dilation + 1

    @property
    def where(self) -> str:
        """How a message begins."""
        return f"{self.op}: {self.name}"


def resolve_pads(
    axis: Axis,
    *,
    auto_pad: str,
    family: str,
    pads: tuple[int, int],
    image: int | None,
    window: int | None,
    page: bool,
) -> tuple[int, int]:
    """PB and PE of one axis.

    SAME pads are those of the forward operation with the same attributes, so that each gradient is its adjoint. The
    odd element goes to the end for SAME_UPPER and to the beginning for SAME_LOWER. `page` asks for the formulas on
    the page of ConvolutionBackwardData: its total, and its sides, which are the other way round.
    """
    if auto_pad == "NONE":
        return pads
    if auto_pad == "VALID":
        return 0, 0
    total = max(0, _same_total(axis, family, image, window, page))
    smaller, larger = total // 2, total - total // 2
    at_the_end = (auto_pad == "SAME_UPPER") is not page
    return (smaller, larger) if at_the_end else (larger, smaller)


def _same_total(axis: Axis, family: str, image: int | None, window: int | None, page: bool) -> int:
    """PB + PE before it is cut off at zero."""
    if family == "transposed" and (image is None or axis.output_padding_given):
        return axis.reach - axis.stride
    assert image is not None, "an image extent is known wherever it is not the unknown"
    if page or (family == "convolution" and axis.output_padding_given):
        # Only ConvolutionBackwardData comes here. With an output padding it is the transposed convolution of that
        # output padding, and its pads are the ones that make the relation above hold.
        assert window is not None
        return axis.stride * (window - 1) + axis.reach - image + axis.output_padding
    return axis.reach - (image % axis.stride or axis.stride)


def count_windows(axis: Axis, image: int, pads: tuple[int, int]) -> int:
    """Y of an image extent: the positions of the window, counted with floor division.

    An output padding that was given must be exact: Y = (X - OP + PB + PE - EK) / S + 1.
    """
    spare = image - axis.output_padding + sum(pads) - axis.reach
    if axis.output_padding_given and spare % axis.stride:
        raise ShapeError(
            f"{axis.where}: no extent of {axis.window} gives the {image} elements of {axis.image}: {image} - "
            f"{axis.output_padding} (output_padding) + {pads[0]} + {pads[1]} (pads) - {axis.reach} (elements that "
            f"{axis.taps} taps with dilation {axis.dilation} span) = {spare} is not a multiple of the stride "
            f"{axis.stride}; change output_padding or leave it out"
        )
    windows = spare // axis.stride + 1
    if windows < 0:
        raise ShapeError(
            f"{axis.where}: the kernel does not fit: {axis.taps} taps with dilation {axis.dilation} span {axis.reach} "
            f"elements, but the padded extent of {axis.image} is {pads[0]} + {image} + {pads[1]}"
            + (f" - {axis.output_padding} (output_padding)" if axis.output_padding else "")
            + f" = {spare + axis.reach}, more than a stride of {axis.stride} short; add padding or shrink the kernel"
        )
    return windows


def image_extent(axis: Axis, window: int, pads: tuple[int, int]) -> int:
    """X of a window extent."""
    image = axis.stride * (window - 1) + axis.reach - sum(pads) + axis.output_padding
    if image < 0:
        raise ShapeError(
            f"{axis.where}: {axis.image} would have {axis.stride} * ({window} - 1) + {axis.reach} - {pads[0]} - "
            f"{pads[1]} + {axis.output_padding} = {image} elements; make pads_begin and pads_end smaller"
        )
    return image


def check_relation(axis: Axis, image: int, window: int, pads: tuple[int, int], *, auto_pad: str) -> None:
    """Both extents are given: they must be those of one convolution."""
    if axis.output_padding_given:
        expected = axis.stride * (window - 1) + axis.reach - sum(pads) + axis.output_padding
        if expected != image:
            raise ShapeError(
                f"{axis.where}: {axis.image} has {image} elements, but {axis.stride} * ({window} - 1) + {axis.reach} - "
                f"{pads[0]} - {pads[1]} + {axis.output_padding} (output_padding) = {expected} belong to the {window} "
                f"of {axis.window}; {_repair(auto_pad)} or output_padding"
            )
        return
    expected = (image + sum(pads) - axis.reach) // axis.stride + 1
    if expected != window:
        raise ShapeError(
            f"{axis.where}: {axis.window} has {window} elements, but ({image} + {pads[0]} + {pads[1]} - {axis.reach}) "
            f"// {axis.stride} + 1 = {expected} belong to the {image} of {axis.image} ({axis.taps} taps with dilation "
            f"{axis.dilation}); {_repair(auto_pad)}, strides or dilations, or give the output_padding of the "
            "transposed convolution"
        )


def check_reach(axis: Axis, image: int, window: int, pads: tuple[int, int]) -> None:
    """Positions must be numbers that 64-bit addresses can be computed from."""
    furthest = axis.stride * max(window - 1, 0) + axis.reach + image + sum(pads)
    if furthest >= LARGEST:
        raise ShapeError(
            f"{axis.where}: strides, dilations and pads reach {furthest} elements far, which is not below 2**62; make "
            "them smaller"
        )


def per_axis(op: str, name: str, values: tuple[int, ...] | None, rank: int, *, absent: int) -> tuple[int, ...]:
    """The entries of an attribute for `rank` spatial axes; `absent` everywhere if it was not given."""
    if values is None:
        return (absent,) * rank
    if len(values) != rank:
        raise ShapeError(
            f"{op}: {name} has {len(values)} entries, {list(values)}, but the tensors have {rank} spatial axes; "
            f"give {rank} entries"
        )
    return values


def _repair(auto_pad: str) -> str:
    if auto_pad == "NONE":
        return "change a shape, pads_begin, pads_end"
    return f"auto_pad = {auto_pad} chose these pads: change a shape, auto_pad"
