"""W of single channels, with what they meet side by side and in place: tiles of several rows and columns of windows."""

from __future__ import annotations

from math import prod

from convgrad.dtypes import SIZES
from convgrad.plan.depthwise.plane_costs import tap_pieces
from convgrad.plan.depthwise.plane_rows import is_large, windows_ahead
from convgrad.plan.general.room import Room
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.window_axes import WindowAxis
from convgrad.problem.conv import ConvProblem
from convgrad.values import frozen, replace

AHEAD_FROM = 1024 * 1024  # bytes of x and y from which on they are asked for ahead
TOO_FAR = 512 * 1024  # bytes ahead, which do not stay in L2 until they are met, or lie behind a tensor of a few rows

Met = list[tuple[int, int]]  # windows of a tile that meet an element, each at which tap


@frozen(kw_only=True)
class DepthwiseWeightsPlan(WeightsPlan):
    """A WeightsPlan with lanes across all groups, whose tile is a vector of sums for each tap of some rows of taps.

    Or across the channels of one side, where the other one has a single channel, of which numbers are broadcast. A task
    goes through windows as they lie in memory, `rows` by `columns` at a time, and at each through all lanes: an element
    of x is read once for all taps of the tile that meet it. Rows of x beside the image are read from zeros; columns
    beside it are left out, by tiles of their own at either end of a row. Of volumes, rows of windows meet one plane of
    taps after the other, those of planes that x has. With one axis, images are rows.
    """

    FINISHED = True

    rows: int  # windows of a tile
    columns: int
    tap_rows: int  # of a tile: all, or fewer
    tap_columns: int  # likewise
    looped: bool = False  # over rows of taps, those that meet x: they are too many to be written out

    @property
    def kind(self) -> str:
        """How vectors lie, in words."""
        return f"{self.lanes_along}, taps together"

    @property
    def together(self) -> int:
        """Vectors of sums of the lanes that are read at a time."""
        return 1

    @property
    def own_sums(self) -> bool:
        """No: sums are always added up, and written, by the second stage."""
        return False

    def vectors_of(self, name: str) -> bool:
        """Whether a tensor has lanes side by side, or one number for all of them."""
        return self.spread or name == self.lane_side

    def lane_step(self, name: str) -> int:
        """From the numbers of a lane to those of the next."""
        strides = self.problem.strides[name]
        return strides[1] if self.spread else strides[2] if self.vectors_of(name) else 0

    @property
    def all_lanes(self) -> int:
        """Groups, or channels."""
        return self.problem.groups if self.spread else self.lane_count

    @property
    def tap_pieces(self) -> tuple[tuple[int, int], ...]:
        """Rows of taps of a tile and how many such tiles follow each other."""
        return tap_pieces(self.axes[-2].taps, self.tap_rows)

    @property
    def column_pieces(self) -> tuple[range, ...]:
        """Taps of a row that are summed together."""
        pieces, first = [], 0
        for taps, many in tap_pieces(self.axes[-1].taps, self.tap_columns):
            for _ in range(many):
                pieces.append(range(first, first + taps))
                first += taps
        return tuple(pieces)

    @property
    def in_pieces(self) -> bool:
        """Whether tiles have some taps of a row, or are in a loop over its rows."""
        return self.looped or self.tap_columns < self.axes[-1].taps

    @property
    def plane_taps(self) -> int:
        """Of the axes of rows and columns."""
        return prod(axis.taps for axis in self.axes[-2:])

    @property
    def x_columns(self) -> int:
        """Elements of a row of x from the first to the last that a tile meets."""
        axis = self.axes[-1]
        return axis.stride * (self.columns - 1) + axis.dilation * (axis.taps - 1) + 1

    @property
    def whole_tiles(self) -> tuple[int, int, int]:
        """How many tiles a row has, and from which to which x is there for all columns and taps."""
        axis, columns = self.axes[-1], self.columns
        low, high = axis.inside
        tiles = -(-axis.windows // columns)
        first = min(tiles, -(-low // columns))
        return tiles, first, max(first, high // columns)

    @property
    def zeros(self) -> int:
        """Numbers from the first to the last that a tile reads of a row."""
        return (self.x_columns - 1) * self.problem.x_strides[-1] + self.together * self.lanes

    @property
    def work_bytes(self) -> Room:
        """With those of zeros, behind what the second stage needs."""
        shared, own = super().work_bytes
        return shared, own + SIZES[self.compute] * self.zeros

    def bytes_ahead(self, name: str) -> int:
        """From a row of a tensor to the one that is asked for."""
        return windows_ahead(self.problem, name, self.rows)

    @property
    def asks_ahead(self) -> bool:
        """Whether memory is asked for before it is read: the next rows, if they are near."""
        near = all(abs(self.bytes_ahead(name)) < TOO_FAR for name in "xy" if self.vectors_of(name))
        return near and is_large(self.problem, AHEAD_FROM)

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        p = self.problem
        assert self.direct
        assert self.row_count == 1
        assert self.lane_count == 1 if self.spread else p.groups == 1
        assert self.lane_step(self.lane_side) == 1
        assert len(self.axes) >= 3
        assert self.bundles == self.lane_shares == self.row_shares == 1
        assert set(self.block[:-2]) == {1}
        assert self.block[-2] % self.rows == 0
        assert self.block[-1] % self.columns == 0 or self.block[-1] >= self.axes[-1].windows
        assert not self.looped or self.rows == self.tap_rows == 1

    def __str__(self) -> str:
        text = WeightsPlan.__str__(self)
        tile = f"{self.tap_rows} x {self.tap_columns} taps of {self.rows} x {self.columns} windows, "
        return text.replace("in place, ", f"in place, {tile}", 1)


def with_images_as_rows(p: ConvProblem) -> ConvProblem:
    """The same problem of one axis as one of two, whose rows are images, and whose batch is one of them."""
    one = {name: (1, *getattr(p, name)) for name in ("taps", "stride", "dilation")}
    extents = {name: (p.batch, *getattr(p, name)) for name in ("x_extent", "y_extent")}
    strides = {}
    for name, (batch, *rest) in {"x_strides": p.x_strides, "y_strides": p.y_strides}.items():
        strides[name] = (batch * p.batch, *rest[:2], batch, *rest[2:])
    w_strides = (*p.w_strides[:3], p.w_strides[3] * p.taps[-1], *p.w_strides[3:])
    return replace(p, batch=1, pad_low=(0, *p.pad_low), w_strides=w_strides, **one, **extents, **strides)


def met_on(axis: WindowAxis, windows: int, taps: range) -> dict[int, Met]:
    """Elements of x that so many windows meet at some taps, from the first window's place of x on."""
    found: dict[int, Met] = {}
    for r in taps:
        for j in range(windows):
            found.setdefault(axis.stride * j + axis.dilation * r - axis.low, []).append((j, r))
    return dict(sorted(found.items()))
