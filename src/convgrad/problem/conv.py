"""The canonical problem: every operation of the family is one unknown of one trilinear form."""

from __future__ import annotations

import enum
from math import prod

from convgrad.dtypes import SIZES
from convgrad.values import frozen

Ints = tuple[int, ...]


class Unknown(enum.Enum):
    """The tensor an operation solves for; the other two are given."""

    X = "x"  # image side: src of Convolution, dst of ConvTranspose
    W = "w"
    Y = "y"  # window side: dst of Convolution, src of ConvTranspose


SOLVES_FOR = {
    "Convolution": Unknown.Y,
    "ConvolutionBackwardData": Unknown.X,
    "ConvolutionBackwardWeights": Unknown.W,
    "ConvTranspose": Unknown.X,
    "ConvTransposeBackwardData": Unknown.Y,
    "ConvTransposeBackwardWeights": Unknown.W,
}


@frozen(kw_only=True)
class ConvProblem:
    """One partial derivative of  Φ = Σ x[n, g, c, s·p + d·r − lo] · w[g, k, c, r] · y[n, g, k, p].

    Reads of x outside [0, x_extent) are zero. Equal problems share one kernel: this value is the cache key. Sizes
    count elements, never bytes. Spatial tuples hold one entry per axis, outermost first. Strides may be zero or
    negative for the given tensors; addresses start at the element with all indices zero.
    """

    unknown: Unknown
    batch: int  # n
    groups: int  # g
    x_channels: int  # c, of one group
    y_channels: int  # k, of one group
    x_extent: Ints
    y_extent: Ints  # p
    taps: Ints  # r
    stride: Ints  # s
    dilation: Ints  # d, where 1 is dense
    pad_low: Ints  # lo
    x_strides: Ints  # of x in the axis order (n, g, c, *spatial)
    w_strides: Ints  # of w in the axis order (g, k, c, *taps)
    y_strides: Ints  # of y in the axis order (n, g, k, *spatial)
    dtype: str = "f32"  # of storage of the given tensors
    out_dtype: str = "f32"  # of storage of the unknown
    bias: bool = False  # add bias[g · channels + channel] to the unknown (X or Y); stored like the given tensors
    bias_stride: int = 1
    bias_gradient: str = ""  # with W: x or y, whose sums per channel, over all else, are a second result, at bias
    accumulate: bool = False  # add to what the unknown, and the bias gradient, hold already
    fpmath_mode: str = "strict"  # of f32: how far products may be rounded, in oneDNN's words
    merged_taps: int = 1  # that became channels of x; the order of sums is that of the problem before
    order: str = ""  # of sums, in the words of a plan for X or Y; "" is whichever is fastest

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.x_extent)

    @property
    def shapes(self) -> dict[str, Ints]:
        """Of x, w and y, in the axis order of Φ."""
        return {
            "x": (self.batch, self.groups, self.x_channels, *self.x_extent),
            "w": (self.groups, self.y_channels, self.x_channels, *self.taps),
            "y": (self.batch, self.groups, self.y_channels, *self.y_extent),
        }

    @property
    def solved(self) -> str:
        """The tensor that is computed."""
        return self.unknown.value

    @property
    def given(self) -> str:
        """The tensor that X or Y is computed of, with the weights."""
        assert self.unknown is not Unknown.W
        return "x" if self.unknown is Unknown.Y else "y"

    def dtype_of(self, tensor: str) -> str:
        """Of storage of x, w or y."""
        return self.out_dtype if tensor == self.solved else self.dtype

    def bytes_of(self, tensor: str) -> int:
        """Of all elements of x, w or y."""
        return SIZES[self.dtype_of(tensor)] * prod(self.shapes[tensor])

    @property
    def strides(self) -> dict[str, Ints]:
        """Of x, w and y, in elements, in the axis order of Φ."""
        return {"x": self.x_strides, "w": self.w_strides, "y": self.y_strides}

    @property
    def bias_length(self) -> int:
        """Elements of the bias, or of its gradient; 0 where there is neither."""
        name = self.bias_gradient or (self.unknown.value if self.bias else "")
        if not name:
            return 0
        _, groups, channels, *_ = self.shapes[name]
        return groups * channels

    @property
    def flops(self) -> int:
        """Two per multiply-add; taps that fall outside x do not count."""
        pairs = prod(
            sum(_windows_on_image(x, p, s, d * r - lo) for r in range(taps))
            for x, p, taps, s, d, lo in zip(
                self.x_extent, self.y_extent, self.taps, self.stride, self.dilation, self.pad_low, strict=True
            )
        )
        return 2 * self.batch * self.groups * self.x_channels * self.y_channels * pairs

    def validate(self) -> None:
        """Assert what every later stage relies on; a failure is a fault of ours, not of the caller."""
        rank = self.rank
        assert rank >= 1
        for field in (self.y_extent, self.taps, self.stride, self.dilation, self.pad_low):
            assert len(field) == rank
        for strides in (self.x_strides, self.w_strides, self.y_strides):
            assert len(strides) == rank + 3
        assert min(self.batch, self.x_channels, self.y_channels, *self.x_extent, *self.y_extent, *self.taps) >= 0
        assert min(self.groups, *self.stride, *self.dilation) >= 1
        assert not (self.bias and self.unknown is Unknown.W)
        assert self.bias_gradient in (("", "x", "y") if self.unknown is Unknown.W else ("",))
        assert self.fpmath_mode == "strict" or self.dtype == "f32"

    def __str__(self) -> str:
        def by(values: Ints) -> str:
            return "x".join(map(str, values))

        words = {"bias": self.bias, f"sums-of-{self.bias_gradient}": self.bias_gradient, "accumulate": self.accumulate}
        words[self.fpmath_mode] = self.fpmath_mode != "strict"
        words[f"in the order {self.order!r}"] = self.order
        extras = "".join(f" {word}" for word, on in words.items() if on)
        return (
            f"solve {self.unknown.value}: n{self.batch} g{self.groups} c{self.x_channels} k{self.y_channels} "
            f"x{by(self.x_extent)} y{by(self.y_extent)} r{by(self.taps)} s{by(self.stride)} d{by(self.dilation)} "
            f"lo{by(self.pad_low)} {self.dtype}->{self.out_dtype}{extras}"
        )


def _windows_on_image(image: int, windows: int, stride: int, offset: int) -> int:
    """How many windows p have 0 <= p * stride + offset < image."""
    first = max(0, -(offset // stride))
    last = min(windows - 1, (image - 1 - offset) // stride)
    return max(0, last - first + 1)
