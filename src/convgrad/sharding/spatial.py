"""One spatial axis in parts: which windows meet which elements, and the pads that make a part an axis of its own.

Window p and tap r meet the image element x = S*p + D*r - PB (docs/semantics.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from convgrad.spec.resolve import Resolved
from convgrad.values import frozen, replace

Span = tuple[int, int]  # start <= e < stop


@frozen(kw_only=True)
class SpatialAxis:
    """One axis of an operation, after auto_pad."""

    image: int  # X
    window: int  # Y
    taps: int  # K
    stride: int  # S
    dilation: int  # D
    low: int  # PB
    high: int  # PE

    @property
    def reach(self) -> int:
        """EK, the elements that one window spans."""
        return (self.taps - 1) * self.dilation + 1

    @property
    def rest(self) -> int:
        """What X has more than S*(Y - 1) + EK - PB - PE: the output padding, given or not."""
        return self.image - (self.stride * (self.window - 1) + self.reach - self.low - self.high)

    def image_of(self, windows: Span) -> Span:
        """The image elements from the first to the last that these windows meet."""
        first, last = windows[0], windows[1] - 1
        met = []
        for offset in self._offsets():  # tap by tap, windows low to high lie on the image
            low = max(first, -(offset // self.stride))
            high = min(last, (self.image - 1 - offset) // self.stride)
            if low <= high:
                met.append((low * self.stride + offset, high * self.stride + offset + 1))
        return _hull(met, self._within(first * self.stride - self.low, self.image))

    def windows_of(self, image: Span) -> Span:
        """The windows from the first to the last that meet these image elements."""
        met = []
        for offset in self._offsets():
            low = max(0, -((offset - image[0]) // self.stride))
            high = min(self.window - 1, (image[1] - 1 - offset) // self.stride)
            if low <= high:
                met.append((low, high + 1))
        return _hull(met, self._within((image[0] + self.low) // self.stride, self.window))

    def part_of_windows(self, windows: Span) -> tuple[Span, SpatialAxis]:
        """The image elements that these windows, one or more, meet, and the axis that they make together."""
        start, stop = self.image_of(windows)
        count = windows[1] - windows[0]
        first = windows[0] * self.stride - self.low  # of the elements that the windows span, pads included
        span = (count - 1) * self.stride + self.reach
        low = start - first if start < stop else span  # windows that meet nothing lie in the pad
        return (start, stop), replace(self, image=stop - start, window=count, low=low, high=span - low - (stop - start))

    def part_of_image(self, image: Span) -> tuple[Span, SpatialAxis]:
        """The windows that meet these image elements, one or more, and the axis that they make together.

        Where a window begins after the first element, and none before it, the pad would be negative: the window before
        comes along, and meets nothing.
        """
        count = image[1] - image[0]
        first, stop = self.windows_of(image)
        if first < stop:
            first = min(first, (image[0] + self.low) // self.stride)
            low = image[0] + self.low - first * self.stride
        else:
            low = 0
        part = replace(self, image=count, window=stop - first, low=low, high=0)
        return (first, stop), replace(part, high=max(0, -part.rest))

    def _offsets(self) -> Iterator[int]:
        return (r * self.dilation - self.low for r in range(self.taps))

    @staticmethod
    def _within(position: int, extent: int) -> int:
        return min(max(position, 0), extent)


def spatial_axes(resolved: Resolved) -> tuple[SpatialAxis, ...]:
    """All of an operation."""
    columns = zip(
        resolved.image_extent, resolved.window_extent, resolved.kernel, resolved.strides, resolved.dilations,
        resolved.pads_begin, resolved.pads_end, strict=True,
    )  # fmt: skip
    names = ("image", "window", "taps", "stride", "dilation", "low", "high")
    return tuple(SpatialAxis(**dict(zip(names, column, strict=True))) for column in columns)


def _hull(spans: list[Span], where: int) -> Span:
    """From the first to the last; nothing, at this place, if there are none."""
    return (min(a for a, _ in spans), max(b for _, b in spans)) if spans else (where, where)
