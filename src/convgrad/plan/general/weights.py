"""How W is computed: tasks sum outer products of pixels over a chunk of windows; a second stage adds the chunks."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE
from convgrad.plan.general.room import MOST_STAGED_BYTES, Room
from convgrad.plan.general.weights_slabs import WeightsSlabs
from convgrad.plan.shares import even_share
from convgrad.plan.strides import row_major
from convgrad.plan.units import makes_ordinary
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen

NEAR_BYTES = 1024 * 1024  # of x and y, that L2 holds
KEPT_BYTES = 3 * 1024 * 1024  # of x and y, that stay in L2 by themselves
PAST_CACHES_BYTES = 4 * 1024 * 1024  # of weights, from which they are not fetched before they are written
MET_BYTES = 76 * 1024  # of the lanes of several blocks that every tile of rows, which take twice as much, reads again
SLOW_WINDOWS = 64  # that a weight is a sum of, from which on runs of taps and lanes leave slowly enough for memory
BIAS_UNIT = 16  # numbers, which are cache lines in either arithmetic type
FINISH_NUMBERS = 16 * 1024  # sums that one task of the second stage turns into weights, where taps are not too many
NEAR_NUMBERS = 4 * 1024  # sums of some rows and all their taps that L1 keeps until they are weights


@frozen(kw_only=True)
class WeightsPlan(WeightsSlabs):
    """Blocking of a problem that solves for W, its slabs, and what becomes of the sums.

    What its fields mean is told by `WeightsBlocks`.
    """

    KIND: ClassVar[str] = ""  # in words, of plans that are of one kind only; see `kind`
    ON_UNITS: ClassVar[bool] = False  # of a matrix unit, or of dot products
    order: ClassVar[str] = ""  # of sums: they run over extents
    FINISHED: ClassVar[bool] = False  # as a candidate, with blocks, and in place as far as it can be
    ALONG_WINDOWS: ClassVar[bool] = False  # then zeros fill up the vectors of y, and numbers of x meet them

    @property
    def may_halve(self) -> bool:
        """Whether tiles may compute half of a vector of weights; kinds derived from this one have their own tiles."""
        return type(self) is WeightsPlan

    @property
    def asked(self) -> ConvProblem:
        """What is solved."""
        return self.problem

    @property
    def rows_as_met(self) -> bool:
        """Where the one tap meets planes, and rows once; or, of 16 bits, for every block of lanes, which are near."""
        others = self.spread or self.direct or self.rows_in_place or self.x_pixel_major
        once = self.taps == 1 and not any(axis.clipped for axis in self.axes)
        if type(self) is not WeightsPlan or others or not once:
            return False
        lanes, rows, narrow = self.lane_slab_size, self.row_slab[1] * self.share_rows, SIZES[self.problem.dtype] == 2
        return self.share_blocks == 1 or (narrow and 2 * lanes <= rows and self.packed_bytes * lanes <= MET_BYTES)

    @property
    def kind(self) -> str:
        """How vectors lie, in words."""
        return self.KIND or self.lanes_along

    @property
    def lanes_along(self) -> str:
        """Of plans of several kinds."""
        return f"lanes along {self.lane_side}{' across groups' if self.spread else ''}"

    @property
    def groups_of_part(self) -> int:
        """Whole groups in a vector that has lanes left over, or 0 if none has."""
        return 0

    @property
    def lanes_along_taps(self) -> bool:
        """Whether those of the innermost axis are lanes beside channels."""
        return False

    # --- sums

    @property
    def own_sums(self) -> bool:
        """Whether a task turns its sums into weights by itself, since nobody else has a share of them."""
        return self.chunks == 1 and not self.spread and prod(self.block_grid) > 0

    @property
    def own_sum_size(self) -> int:
        """Sums that a task with its own keeps between blocks, or until they are weights; else those of odd tiles."""
        if self.straight and prod(self.block_grid) == 1:
            return self.tile_taps * self.sum_rows * self.width
        return (1 if self.in_turn else self.share_blocks) * self.sum_block

    @property
    def fills_lines(self) -> bool:
        """Whether vectors are as long as cache lines, as of a DataPlan."""
        return self.lanes * SIZES[self.compute] == LINE

    @property
    def planes_packed(self) -> str:
        """Names of the tensors that are packed in any case where their channels are planes: lanes, which are turned."""
        return "y" if self.rows_shift else "x"

    @property
    def padded_rows(self) -> int:
        """Row channels of all tasks."""
        return self.share_rows * self.row_shares

    @property
    def sum_rows(self) -> int:
        """Row channels from a tap of the sums to the next."""
        if self.by_rows and prod(self.block_grid) == 1:
            return self.rows_at_once
        return self.share_rows if self.own_sums else self.padded_rows

    @property
    def by_rows(self) -> bool:
        """Whether a task sums all taps of some rows before it goes on to others: their sums are weights while near.

        Where taps lie side by side: else rows are runs, of which a few are parts of squares. Lanes of windows, or of
        several groups, become weights in other ways.
        """
        other = self.spread or self.direct or self.along_windows or self.at_once > 1
        beside = self.taps > 1 and abs(self.problem.w_strides[-1]) < min(map(abs, self.problem.w_strides[1:3]))
        return type(self) is WeightsPlan and not other and beside and self.own_sums and not self.straight

    @property
    def in_turn(self) -> bool:
        """Whether sums of one lane block are weights before those of the next are begun."""
        return self.by_rows and prod(self.block_grid) == 1

    @property
    def rows_at_once(self) -> int:
        """Those, of one lane block: as many each time, if that can be."""
        numbers = FINISH_NUMBERS if self.ON_UNITS else NEAR_NUMBERS
        most = max(1, numbers // (self.taps * self.width * self.row_channels))
        return even_share(self.tiles_of_rows, most) * self.row_channels

    @property
    def taps_inside(self) -> bool:
        """Whether sums lie as the weights do whose taps are inside row channels: then these are written by turning."""
        p = self.problem
        lane, row = (1, 2) if self.rows_shift else (2, 1)
        inside = all(abs(step) < abs(p.w_strides[row]) < abs(p.w_strides[lane]) for step in p.w_strides[3:])
        return self.by_rows and inside and not self.spread

    @property
    def sum_steps(self) -> tuple[int, int]:
        """Of the sums of a task that keeps them: from tap to tap, and from row channel to row channel."""
        return (self.width, self.taps * self.width) if self.taps_inside else (self.sum_rows * self.width, self.width)

    @property
    def sum_block(self) -> int:
        """Sums of one lane block, order (taps, row channel, lane), or with taps inside row channels."""
        return self.taps * self.sum_rows * self.width

    @property
    def sum_size(self) -> int:
        """Sums of one chunk, order (bundle, lane block, sum block)."""
        return self.bundles * self.lane_blocks * self.taps * self.padded_rows * self.width

    @property
    def shared_sums(self) -> int:
        """Those that all tasks share."""
        return 0 if self.own_sums else self.sum_size

    @property
    def bias_size(self) -> int:
        """Sums per channel of one chunk, which are the bias gradient; those of a chunk begin on a cache line."""
        return -(-self.problem.bias_length // BIAS_UNIT) * BIAS_UNIT

    @property
    def work_bytes(self) -> Room:
        """Besides the sums that become weights: those of other chunks; slabs, or weights that are put in order."""
        slabs = 0 if self.direct else self.packed_bytes * (self.row_slab_size + self.lane_slab_size)
        own = slabs + self.staged_bytes if self.by_rows else max(slabs, self.staged_bytes)
        return SIZES[self.compute] * (self.chunks - 1) * self.sum_size, own

    @property
    def weights_bytes(self) -> Room:
        """Of sums that become weights: those that all tasks share, and those that a task has to itself."""
        own = self.at_once * self.own_sum_size * self.own_sums
        return SIZES[self.compute] * self.shared_sums, SIZES[self.compute] * own

    # --- weights

    @property
    def ordinary_sums(self) -> bool:
        """Whether the processor may round them in its own way."""
        return self.ON_UNITS and makes_ordinary(self.problem)

    @property
    def straight(self) -> bool:
        """Whether register tiles are stored as weights: lanes lie side by side there."""
        p = self.problem
        lane_step = p.w_strides[1 if self.rows_shift else 2]
        return self.own_sums and lane_step == 1 and (self.rounds or p.out_dtype == self.compute) and not p.accumulate

    @property
    def rounds(self) -> bool:
        """Whether register tiles can be stored in a type that is not that of sums."""
        return True

    @property
    def may_end_early(self) -> bool:
        """Yes; kinds derived from this one have their own tiles."""
        return type(self) is WeightsPlan and not self.spread

    @property
    def may_group(self) -> bool:
        """Whether tasks may have several groups."""
        return self.may_end_early and not (self.direct or self.along_windows or self.problem.bias_gradient)

    @property
    def rest_rows(self) -> int:
        """Row channels of the last tile, if it has fewer than others."""
        return self.row_count % self.row_channels if self.may_end_early else 0

    @property
    def last_vectors(self) -> range | None:
        """Where the vectors of the last block of lanes are that hold channels nobody else has, if these are fewer.

        Streams of 16 bits are pairs of vectors.
        """
        vectors, rest = self.vectors, -(-(self.lane_count % self.width) // self.lanes)
        pairs = self.past_caches and self.problem.out_dtype != self.compute
        if not self.may_end_early or self.lane_blocks == 1 or rest in (0, vectors) or (pairs and rest % 2):
            return None
        every = range(0, self.width, self.lanes)
        return every[vectors - rest :] if self.lanes_in_place else every[:rest]

    @property
    def finish_rows(self) -> int:
        """Row channels of one task of the second stage; always as many, if that makes whole squares of bf16."""
        if self.taps_inside:
            return self.rows_at_once
        rows = self.rows_at_once if self.by_rows else self.sum_rows
        most = min(rows, max(1, FINISH_NUMBERS // (self.taps * self.width)))
        alike = (n for n in range(most, most // 2, -1) if self._divides(n))
        return next(alike, most) if self.ordinary_sums else most

    @property
    def finishes_evenly(self) -> bool:
        """Whether that is how many there are each time."""
        return (self.ordinary_sums or self.taps_inside) and self._divides(self.finish_rows)

    def _divides(self, rows: int) -> bool:
        parts = [self.row_count]  # each of which may be followed by other rows
        if self.own_sums:
            parts.append(self.share_rows)
        if self.by_rows:
            parts.append(self.rows_at_once)
        return all(part % rows == 0 for part in parts)

    @property
    def staged_bytes(self) -> int:
        """Of those rows, at some taps at a time if a row of all is much, in the order of the weights."""
        row = SIZES[self.compute] * self.finish_rows * self.width
        taps = self.taps if self.along_windows else min(self.taps, max(1, MOST_STAGED_BYTES // max(1, row)))
        return 0 if self.straight or self.taps_inside else taps * row

    @property
    def finish_grid(self) -> Ints:
        """Tasks of the second stage, if there is one: bundles, lane blocks, shares of the rows."""
        return (self.bundles, self.lane_blocks, -(-self.row_count // self.finish_rows))

    # --- caches

    @property
    def past_caches(self) -> bool:
        """Whether weights go to memory at once, where the instruction set can: vectors as long as lines, many of them.

        Those of 16 bits are made of two vectors of sums. Shorter vectors would leave parts of lines.
        """
        p = self.problem
        steps = (p.w_strides[0], p.w_strides[2 if self.rows_shift else 1], *p.w_strides[3:])
        together = SIZES[self.compute] // SIZES[p.out_dtype]
        aligned = self.vectors % together == 0 and all(step % (together * self.lanes) == 0 for step in steps)
        return self.fills_lines and self.straight and aligned and p.bytes_of("w") >= PAST_CACHES_BYTES

    @property
    def turned_past_caches(self) -> bool:
        """Likewise lines that turned sums become, of as many weights: where those that are written at once are lines.

        That is, all taps of a channel, or of as many channels as rows are finished at once.
        """
        p = self.problem
        lane_step, row_step = p.w_strides[1:3] if self.rows_shift else p.w_strides[2:0:-1]
        dense = p.w_strides[3:] == row_major(p.taps, 1)
        known = self.taps == 1 or self.taps_inside or self.finishes_evenly  # so that rows and taps are one axis
        run = self.taps * (self.finish_rows if row_step == self.taps and known else 1)
        slowly = p.batch * prod(p.y_extent) >= SLOW_WINDOWS
        beside = slowly and lane_step == self.taps > 1 and row_step % self.lanes == 0  # taps and lanes are one run
        whole = beside or lane_step % self.lanes == run % self.lanes == 0
        lines = self.fills_lines and whole
        own = self.own_sums and not self.ON_UNITS  # what it does to tiles was not measured
        turned = own and not self.straight and not p.accumulate and p.out_dtype == self.compute
        return turned and dense and lines and p.bytes_of("w") >= PAST_CACHES_BYTES

    @property
    def fetches_ahead(self) -> bool:
        """Whether the numbers of the next block are asked for while those of the present one are multiplied.

        That is, where they lie together: planes of channels are pages apart, and finding those costs what it saves.
        Half as many lines, of 16 bits, cost less, and packing waits for them in any case.
        """
        p, small = self.problem, SIZES[self.problem.dtype] < SIZES[self.compute]
        size = SIZES[p.dtype] * (prod(p.shapes["x"]) + prod(p.shapes["y"]))
        together = all(abs(p.strides[name][2]) <= abs(p.strides[name][-1]) for name in "xy")
        packed = not (self.along_windows or self.rows_in_place or self.lanes_in_place)
        least = NEAR_BYTES if small and packed and together else KEPT_BYTES
        blocks = not (self.direct or self.spread) and prod(self.block_grid) > 1 and self.at_once == 1
        return (together or (small and packed)) and blocks and size > least

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        in_place = self.rows_in_place or self.lanes_in_place
        assert not in_place or not (self.spread or self.direct)
        beside = self.tile_taps > 1 and self.axes[-1].clipped and not self.in_segments
        assert not (beside and self.x_in_place), "taps of a tile need zeros around x"
        assert not self.rows_in_place or self.row_count >= self.row_channels
        lane_step = (self.problem.y_strides if self.rows_shift else self.problem.x_strides)[2]
        assert not self.lanes_in_place or (self.lane_count >= self.width and lane_step == 1)
        assert self.axes[-1].taps % self.tile_taps == 0
        assert self.spread or self.lane_groups == 1
        assert self.at_once == 1 or self.may_group
        assert self.rows_together % self.row_channels == 0, "a tile lies in one run"
        assert not self.direct or (self.spread and self.row_count == self.lane_count == 1)
        assert not self.direct or self.tile_taps in (1, self.axes[-1].taps)
        assert not self.direct or self.block[-1] >= self.axes[-1].windows
        assert not self.spread or (self.rows_shift and self.lane_groups * self.lane_count <= self.width)
        assert not (self.by_rows and self.finishes_evenly) or self.rows_at_once % self.finish_rows == 0

    @property
    def _in_place(self) -> str:
        rows, lanes = self.rows_in_place, self.lanes_in_place
        if self.direct or (rows and lanes):
            return "in place, "
        return "rows in place, " if rows else "lanes in place, " if lanes else ""

    def __str__(self) -> str:
        rows = self.row_channels * (self.tile_taps if self.rows_shift else 1)
        columns = self.vectors * (1 if self.rows_shift else self.tile_taps)
        return (
            f"weights plan on {self.isa}: lanes along {self.lane_side}, tile {rows} x {columns}·{self.lanes}, "
            f"{self._in_place}block {self.block}, {self.chunks} chunks, {prod(self.grid)} tasks"
            + (f" of {self.at_once} groups" if self.at_once > 1 else "")
            + (f", with sums of {self.problem.bias_gradient}\n" if self.problem.bias_gradient else "\n")
            + "\n".join(f"  {reason}" for reason in self.reasons)
        )
