"""X of windows side by side, channels first: every element meets one tap, and taps fill vectors of outputs."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgrad.plan.axes import gather_axes
from convgrad.plan.general.data import DataPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.strides import row_major
from convgrad.plan.tiles import best_tile
from convgrad.problem.conv import ConvProblem, Ints, Unknown
from convgrad.values import frozen, replace


@frozen(kw_only=True)
class PatchDataPlan(DataPlan):
    """A DataPlan along channels, written in place, of `problem`: that of the grid of windows, with taps as channels.

    Channel c of X and tap (r, ...) are one channel each; side by side in the weights, but not in X, where vectors of
    them lie as `patches` has it. The order of every sum is that of `patches`, whose elements meet one tap each.
    """

    KIND = "along taps of patches"

    patches: ConvProblem

    @property
    def asked(self) -> ConvProblem:
        """With taps."""
        return self.patches

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Extent, and step in X, of channels and of each axis of taps, which number the channels of `problem`."""
        p = self.patches
        return ((p.x_channels, p.x_strides[2]), *zip(p.taps, p.x_strides[3:], strict=True))

    @property
    def columns(self) -> Ints:
        """Where the vectors of a block of lanes lie in X, from its first lane."""
        return tuple(self._place(lane) for lane in range(0, self.width, self.lanes))

    def _place(self, lane: int) -> int:
        place = 0
        for extent, step in reversed(self.places):
            lane, rest = divmod(lane, extent)
            place += rest * step
        return place

    @property
    def channel_unit(self) -> int:
        """All: results are not fetched again."""
        return max(1, self.in_channels)

    @property
    def may_read_weights(self) -> bool:
        """Yes: taps lie side by side there."""
        return True

    @property
    def past_caches(self) -> bool:
        """As of any DataPlan, where all vectors of a block begin with lines if the first does."""
        return super().past_caches and all(at % self.lanes == 0 for at in self.columns)

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super().validate()
        assert self.writes_in_place
        assert not any((self.pixels, self.spread, self.unroll))
        assert self.patches.taps[-1] % self.lanes == 0
        assert _is_box(self.width, self.patches.taps)

    def __str__(self) -> str:
        return super().__str__().replace("along channels,", "along taps of patches,", 1)


def _is_box(width: int, taps: Ints) -> bool:
    """Whether blocks of so many taps, counted through, are alike: whole rows, planes and so on, or equal parts."""
    inside = [prod(taps[n:]) for n in range(len(taps))]
    return inside[0] % width == 0 and all(width % many == 0 or many % width == 0 for many in inside)


def patch_data_candidates(base: DataPlan, registers: int, cost: float) -> Iterator[tuple[float, PatchDataPlan]]:
    """Predicted cycles, and the plan, if windows are patches; `cost` are those of moving the numbers of both sides."""
    p = base.problem
    extents = (p.x_channels, *p.taps)
    places = zip(extents, p.w_strides[2:], row_major(extents, 1), strict=True)
    dense = all(step == wanted for extent, step, wanted in places if extent > 1)
    plain = p.unknown is Unknown.X and not (p.bias or p.accumulate) and p.x_strides[-1] == 1 and p.y_channels > 0
    apart = p.stride == p.taps and set(p.dilation) == {1} and not any(p.pad_low)
    filled = p.x_extent == tuple(r * n for r, n in zip(p.taps, p.y_extent, strict=True)) and 0 not in p.x_extent
    if not (dense and plain and apart and filled and p.taps[-1] % base.lanes == 0):
        return
    taps = prod(p.taps)
    grid = replace(
        p, x_channels=taps * p.x_channels, merged_taps=taps * p.merged_taps, x_extent=p.y_extent,
        taps=(1,) * p.rank, stride=(1,) * p.rank,
        x_strides=(*p.x_strides[:2], 1, *(r * step for r, step in zip(p.taps, p.x_strides[3:], strict=True))),
        w_strides=(*p.w_strides[:2], 1, *(0 for _ in p.taps)),
    )  # fmt: skip
    axes = gather_axes(grid)
    for vectors in (4, 3, 2, 1):
        width = vectors * base.lanes
        if not _is_box(width, p.taps):
            continue
        shape = best_tile(axes, (p.y_channels, width), base.lanes, registers, first=1, short=not base.fills_lines)
        if shape.width != width:
            continue
        plan = as_kind(
            PatchDataPlan, base, problem=grid, axes=axes, tile=shape.tile, block=shape.tile, width=width, pixels=False,
            spread=False, pixel_major=True, i_block=p.y_channels, lane_groups=1, unroll=0, writes_in_place=True,
            patches=p,
        )  # fmt: skip
        yield p.groups * shape.cycles * (grid.x_channels // width) + cost, plan
        return
