"""Convolution layers that take the place of those of `torch.nn`.

Each is a subclass of the layer of the same name: the same constructor, initialisation and state_dict, and `isinstance`
says what it said. What they can do beyond it is said by `padding`, which may also be

    pairs        ((begin, end), ...), one pair for each spatial axis, such as Conv2d(3, 8, 3, padding=((1, 2), (0, 1)))
    same_upper   SAME pads of the specification, for any stride, with the odd element at the end
    same_lower   the same with the odd element at the beginning

`auto_pad` says the last two, or valid, by the name that the specification has for it; unless it is none, it replaces
`padding`. A convolution then has ceil(extent / stride) elements per axis, a transposed one stride · extent +
output_padding wherever a kernel spans at least a stride.

Source: the layers of PyTorch (https://docs.pytorch.org/docs/stable/nn.html#convolution-layers), and the operation
pages of the oneDNN Graph specification for auto_pad.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from convgrad.errors import AttributeRuleError, ShapeError
from convgrad.torch import forward

Ints = tuple[int, ...]

AUTO_PADS = ("none", "same_upper", "same_lower", "valid")


class _Layer:
    """What all six have in common; stands before a layer of `torch.nn` in the order of bases.

    `padding` alone tells the pads, so that an object of the layer of `torch.nn` needs nothing but its class changed.
    """

    rank: int  # number of spatial axes

    def _get_name(self) -> str:
        return f"convgrad.{type(self).__name__}"

    def _set_padding(self, padding: str | Ints | tuple[Ints, ...]) -> None:
        """Keep pads that the constructor of `torch.nn` does not take."""
        if padding is not None:
            self.padding = padding


class _Convolution(_Layer):
    """A convolution; the arguments are those of `torch.nn.Conv2d`, and `auto_pad`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Ints,
        stride: int | Ints = 1,
        padding: str | int | Ints | Sequence[Ints] = 0,
        dilation: int | Ints = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        auto_pad: str = "none",
    ):
        plain, beyond = _divide(type(self).__name__, padding, auto_pad, self.rank)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, plain, dilation, groups, bias, padding_mode, device, dtype
        )
        self._set_padding(beyond)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution of (batch, in_channels, *extents) or, without a batch, (in_channels, *extents)."""
        return forward.convolution(
            input, weight, bias, self.stride, self.padding, self.dilation, self.groups, self.padding_mode
        )


class _Transposed(_Layer):
    """A transposed convolution; the arguments are those of `torch.nn.ConvTranspose2d`, and `auto_pad`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Ints,
        stride: int | Ints = 1,
        padding: str | int | Ints | Sequence[Ints] = 0,
        output_padding: int | Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Ints = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        auto_pad: str = "none",
    ):
        name = type(self).__name__
        plain, beyond = _divide(name, padding, auto_pad, self.rank)
        if plain == "same":
            raise AttributeRuleError(
                f"{name}: padding is 'same', which has a meaning for convolutions alone; give auto_pad = same_upper or "
                "same_lower"
            )
        if plain == "valid":
            plain = 0
        super().__init__(
            in_channels, out_channels, kernel_size, stride, plain, output_padding, groups, bias, dilation, padding_mode,
            device, dtype,
        )  # fmt: skip
        self._set_padding(beyond)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The transposed convolution of (batch, in_channels, *extents) or, without a batch, (in_channels, *extents).

        output_size, the extents of the result with or without its batch and channels, chooses the output_padding.
        """
        return forward.conv_transpose(
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.dilation, self.groups,
            output_size,
        )  # fmt: skip


def _divide(layer: str, padding: Any, auto_pad: str, rank: int) -> tuple[Any, Any]:
    """What the constructor of `torch.nn` takes for padding, and what it does not, or None."""
    if not isinstance(auto_pad, str) or auto_pad.lower() not in AUTO_PADS:
        raise AttributeRuleError(f"{layer}: auto_pad is {auto_pad!r}; must be one of {', '.join(AUTO_PADS)}")
    if auto_pad.lower() != "none":
        padding = auto_pad.lower()
    if isinstance(padding, str):
        return (0, padding) if padding in ("same_upper", "same_lower") else (padding, None)
    if not isinstance(padding, Iterable) or not any(isinstance(entry, Sequence) for entry in padding):
        return padding, None
    pairs = tuple(tuple(entry) if isinstance(entry, Sequence) else (entry,) for entry in padding)
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(
            f"{layer}: padding is {padding!r}, which is not {rank} pairs; give (begin, end) for each of the {rank} "
            "spatial axes, or one number for each"
        )
    if all(begin == end for begin, end in pairs):
        return tuple(begin for begin, _ in pairs), None
    return 0, pairs


class Conv1d(_Convolution, torch.nn.Conv1d):
    """Convolution of (N, C, L) or (C, L); see `convgrad.torch.nn`."""

    rank = 1


class Conv2d(_Convolution, torch.nn.Conv2d):
    """Convolution of (N, C, H, W) or (C, H, W); see `convgrad.torch.nn`."""

    rank = 2


class Conv3d(_Convolution, torch.nn.Conv3d):
    """Convolution of (N, C, D, H, W) or (C, D, H, W); see `convgrad.torch.nn`."""

    rank = 3


class ConvTranspose1d(_Transposed, torch.nn.ConvTranspose1d):
    """Transposed convolution of (N, C, L) or (C, L); see `convgrad.torch.nn`."""

    rank = 1


class ConvTranspose2d(_Transposed, torch.nn.ConvTranspose2d):
    """Transposed convolution of (N, C, H, W) or (C, H, W); see `convgrad.torch.nn`."""

    rank = 2


class ConvTranspose3d(_Transposed, torch.nn.ConvTranspose3d):
    """Transposed convolution of (N, C, D, H, W) or (C, D, H, W); see `convgrad.torch.nn`."""

    rank = 3


class LazyConv1d(torch.nn.LazyConv1d, Conv1d):
    """A Conv1d that learns in_channels from its first input."""

    cls_to_become = Conv1d


class LazyConv2d(torch.nn.LazyConv2d, Conv2d):
    """A Conv2d that learns in_channels from its first input."""

    cls_to_become = Conv2d


class LazyConv3d(torch.nn.LazyConv3d, Conv3d):
    """A Conv3d that learns in_channels from its first input."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(torch.nn.LazyConvTranspose1d, ConvTranspose1d):
    """A ConvTranspose1d that learns in_channels from its first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(torch.nn.LazyConvTranspose2d, ConvTranspose2d):
    """A ConvTranspose2d that learns in_channels from its first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(torch.nn.LazyConvTranspose3d, ConvTranspose3d):
    """A ConvTranspose3d that learns in_channels from its first input."""

    cls_to_become = ConvTranspose3d
