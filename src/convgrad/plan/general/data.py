"""How X or Y is computed: a task packs a slab of the input, sweeps register tiles over it, and unpacks the result."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from convgrad.dtypes import SIZES
from convgrad.plan.costs import LINE
from convgrad.plan.general.data_slab import DataSlab
from convgrad.plan.general.room import Room, staged_channels, staged_taps
from convgrad.plan.order import IN_TURN, in_runs, kind_and_run
from convgrad.plan.strides import row_major
from convgrad.plan.units import makes_ordinary
from convgrad.problem.conv import ConvProblem, Ints
from convgrad.values import frozen

PAST_CACHES_BYTES = 3 * 1024 * 1024  # of outputs, from which their lines are not fetched before they are written
STAYING_BYTES = 20 * 1024 * 1024  # of the input and of such an output, which caches that cores share may hold
LITTLE, WRITTEN_MORE = 12, 2  # multiply-adds of a result, and bytes of results as a multiple of those of the input
PACKING_TASKS, PART_BYTES = 8, 32 * 1024  # that a few threads share evenly; of packed weights, worth a task
KEPT_BYTES = 1024 * 1024  # of the input, or of weights, that stay in L2 by themselves
IN_PLACE_BYTES = 4 * 1024 * 1024  # of an input that is read in place, which is far enough to be asked for


@frozen(kw_only=True)
class DataPlan(DataSlab):
    """Blocking of a problem that solves for X or Y, its slab, and what becomes of weights and results.

    What its fields mean is told by `DataBlocks`.
    """

    KIND: ClassVar[str] = ""  # in words, of plans that are of one kind only; see `kind`
    ON_UNITS: ClassVar[bool] = False  # of a matrix unit, or of dot products
    BY_DOTS: ClassVar[bool] = False
    OF_PLANES: ClassVar[bool] = False  # plane by plane of a single channel, with tiles of their own
    FINISHED: ClassVar[bool] = False  # as a candidate, with blocks, and in place as far as it can be

    OUTPUTS_ALONE: ClassVar[bool] = False  # blocks of outputs are all that is left to choose

    @property
    def asked(self) -> ConvProblem:
        """What is solved, if `problem` is another form of it or a grid that holds some of its results."""
        return self.problem

    @property
    def leaves_out_borders(self) -> bool:
        """Whether no zero around an image meets a weight."""
        return False

    @property
    def some_lack_taps(self) -> bool:
        """Whether zeros stand for weights that there are not."""
        return False

    @property
    def known_axes(self) -> int | None:
        """Innermost axes whose taps are written out, of plans whose kind tells that."""
        return None

    @property
    def kind(self) -> str:
        """How vectors lie, in words."""
        return self.KIND or ("along outputs" if self.pixels else "across groups" if self.spread else "along channels")

    @property
    def order_kind(self) -> str:
        """In which order products are added up (`plan.order`), in words; units choose how long runs are besides."""
        return self.kind if self.ON_UNITS or (self.spread and self.in_channels > 1) else IN_TURN

    @property
    def order(self) -> str:
        """Likewise, with that: plans of problems that differ in extents, and have the same, give the same bits."""
        return in_runs(self.order_kind, self.i_block) if self.ON_UNITS else self.order_kind

    @property
    def run_asked_for(self) -> int:
        """The run of the order that is asked for, if a plan of this kind can have it, else 0."""
        kind, run = kind_and_run(self.problem.order)
        return run if self.ON_UNITS and kind == self.order_kind else 0

    @property
    def splitting(self) -> float:
        """Cycles for a number of the input beyond those of a copy."""
        return 0.0

    @property
    def may_pack_weights(self) -> bool:
        """Whether `packs_weights` is a choice."""
        return True

    @property
    def may_read_weights(self) -> bool:
        """Whether vectors of lanes can be read from the weights as they lie: whole ones, of channels side by side."""
        p = self.problem
        whole = self.fills_vectors and not p.accumulate
        along_channels = type(self) is DataPlan and not (self.pixels or self.spread)
        return along_channels and whole and p.w_strides[1 if self.solves_y else 2] == 1

    @property
    def may_bundle(self) -> bool:
        """Whether tasks may have several groups: a slab has all channels of each, and of the next beside them."""
        step, channel = self.problem.strides[self.problem.given][1:3]
        side_by_side = self.reads_in_place or (self.pixel_major and channel == 1 and step == self.in_channels)
        return type(self) is DataPlan and side_by_side and self.i_blocks == 1 and not (self.pixels or self.spread)

    @property
    def panel_parts(self) -> int:
        """Tasks of a stage that pack a large panel of weights, some runs of channels each, where panels are few."""
        if type(self) is not DataPlan or self.packs_weights or self.reads_weights:
            return 1
        most = min(-(-PACKING_TASKS // max(1, self.panels)), self.packed_bytes * self.panel // PART_BYTES)
        share = -(-self.runs // max(1, min(self.runs, most)))
        return -(-self.runs // share)

    @property
    def weights_dtype(self) -> str:
        """Of the weights that tiles multiply with, as they are stored."""
        return self.problem.dtype if self.reads_weights else self.compute

    @property
    def lanes_begin_early(self) -> bool:
        """Whether the last block of lanes repeats some channels rather than reach beyond them."""
        return self.writes_in_place or self.reads_weights

    @property
    def fills_vectors(self) -> bool:
        """Whether all lanes can hold channels: the last vector of the only block of lanes begins early, if it must."""
        own = type(self) is DataPlan and not (self.pixels or self.spread)
        return self.out_channels >= (max(self.lanes, self.width - self.lanes + 1) if own else self.width)

    @property
    def fills_lines(self) -> bool:
        """Whether vectors are as long as cache lines, as those of instruction sets with masks are; else shorter."""
        return self.lanes * SIZES[self.compute] == LINE

    @property
    def all_vectors(self) -> range:
        """Where the vectors of a block of lanes are."""
        return range(0, self.width, self.lanes)

    @property
    def last_vectors(self) -> range | None:
        """Where the vectors of the last block of lanes are that nobody else computes, if it has fewer than others."""
        vectors, rest = self.width // self.lanes, -(-(self.out_channels % self.width) // self.lanes)
        along_channels = (type(self) is DataPlan or self.BY_DOTS) and not (self.pixels or self.spread)
        if not along_channels or rest in (0, vectors) or self.out_channels < self.width:
            return None
        if self.lanes_begin_early and not self.writes_in_place:
            return None
        every = range(0, self.width, self.lanes)
        return every[vectors - rest :] if self.lanes_begin_early else every[:rest]

    # --- results

    @property
    def ordinary_sums(self) -> bool:
        """Whether the processor may round them in its own way."""
        return self.ON_UNITS and makes_ordinary(self.problem)

    def span(self, n: int) -> int:
        """Outputs of every phase that a tile covers on axis n."""
        return min(self.tile[n], *(phase.count for phase in self.axes[n].phases))

    def may_begin_early(self, n: int) -> bool:
        """Whether the last block of axis n could, to hold a whole tile; not where rows of vectors begin with lines."""
        alone = len(self.axes[n].phases) == 1 and not self.aligned
        return self.plain_tiles and alone and self.axes[n].count >= self.tile[n]

    @property
    def plain_tiles(self) -> bool:
        """Whether tiles may begin anywhere."""
        return type(self) is DataPlan

    @property
    def ragged(self) -> int | None:
        """The axis on which the last tiles are shorter by an output, so that none computes more; None if there is none.

        It is the innermost one of those that tiles extend along, where all that is left of blocks can be cut like that.
        """
        n = max((n for n, size in enumerate(self.tile) if size > 1), default=0)
        axis, size = self.axes[n], self.tile[n]
        other = self.pixels or self.spread or self.reads_in_place or self.unroll or type(self) is not DataPlan
        if other or size == 1:
            return None
        rests = {phase.count % self.block[n] for phase in axis.phases}
        even = all(-rest % size <= -(-rest // size) for rest in rests)
        return n if even and any(rest % size for rest in rests) else None

    def last_start(self, n: int) -> int | None:
        """Of the blocks of axis n, where the rest of it is less than a tile: some outputs are computed twice then."""
        axis, span = self.axes[n], self.span(n)
        early = self.writes_in_place and not self.reads_in_place and 0 < axis.count % self.block[n] < span
        return axis.count - span if early and self.tile[n] > 1 and n != self.ragged else None

    @property
    def result_extent(self) -> Ints:
        """Output elements per axis of one task."""
        return tuple(block * axis.out_step for axis, block in zip(self.axes, self.block, strict=True))

    @property
    def result_strides(self) -> tuple[tuple[Ints, ...], int]:
        """Per axis the steps of a phase and of an output j, and the step of the output channel.

        Channels are innermost and phases interleaved as in the tensor; with `pixels`, channels are outermost and each
        phase of the innermost axis is contiguous.
        """
        if self.writes_in_place:
            strides = self.problem.strides[self.problem.solved]
            steps = zip(self.axes, (strides[0], *strides[3:]), strict=True)
            return tuple((step, step * axis.out_step) for axis, step in steps), strides[2] if self.pixels else 1
        if not self.pixels:
            strides = row_major(self.result_extent, self.width)
            return tuple((step, step * axis.out_step) for axis, step in zip(self.axes, strides, strict=True)), 1
        strides = row_major(self.result_extent, 1)
        *steps, _ = ((step, step * axis.out_step) for axis, step in zip(self.axes, strides, strict=True))
        return (*steps, (self.block[-1], 1)), prod(self.result_extent)

    @property
    def result_block(self) -> int:
        """Results of one block of lanes."""
        return prod(self.result_extent) * self.width

    @property
    def result_size(self) -> int:
        """Results of one task."""
        return self.result_block * (self.blocks_per_task if self.i_blocks > 1 else 1)

    # --- memory of a task

    @property
    def packed_taps(self) -> tuple[tuple[range, ...], Ints]:
        """Taps of each axis that are packed, not those that meet the input for no output, and how many at a time.

        Where several of those that are met lie together in memory, before channels do, they are taken in one run, with
        what lies between them, if that is half of all at most: whole kernels follow each other. Others row by row, as
        in the panel some that nobody packs lie between.
        """
        p = self.problem
        kernel = tuple(range(n) for n in p.taps)
        if type(self) is not DataPlan:
            return kernel, p.taps
        met = tuple(axis.met_taps for axis in self.axes[1:])
        if met != kernel and prod(map(len, met)) > 1 and abs(p.w_strides[-1]) < min(map(abs, p.w_strides[1:3])):
            met = (met[0] if 2 * len(met[0]) <= p.taps[0] else kernel[0], *kernel[1:])
        counts = tuple(map(len, met))
        return met, counts if counts[1:] == p.taps[1:] else (*[1] * (len(counts) - 1), counts[-1])

    @property
    def taps_staged(self) -> Ints:
        """Taps of each axis that weights are put in order of at a time, while they are packed."""
        return staged_taps(self.packed_taps[1], self.width * SIZES[self.compute])

    @property
    def staged_bytes(self) -> int:
        """Of weights that are put in order at a time."""
        size, taps = SIZES[self.compute], prod(self.taps_staged)
        return taps * staged_channels(taps, self.width, self.i_block // self.runs, size) * self.width * size

    @property
    def work_bytes(self) -> Room:
        """Besides packed weights: of all tasks none, and of each slab, results, and what it puts in order."""
        slab = 0 if self.reads_in_place else self.packed_bytes * self.slab_size
        results = 0 if self.writes_in_place else SIZES[self.compute] * self.result_size
        staged = 0 if self.reads_weights else self.staged_bytes
        return 0, slab + results + staged if self.packs_weights else max(slab + results, staged)

    @property
    def weights_bytes(self) -> Room:
        """Of packed weights: those that all tasks share, with the bias, and the panel that a task packs for itself."""
        if self.packs_weights:
            return 0, self.packed_bytes * self.panel
        return self.packed_bytes * self.weights_size + SIZES[self.compute] * self.bias_size, 0

    # --- caches

    @property
    def past_caches(self) -> bool:
        """Whether whole cache lines of the output go to memory at once, where the instruction set can.

        Not those that tiles along outputs write in place: a line or two of every channel, planes apart. Nor lines that
        several groups have a part of, each of which is written by a task of its own.
        """
        p = self.problem
        lines = self.fills_lines and p.out_dtype == self.compute
        if not lines or p.accumulate or (self.pixels and self.writes_in_place):
            return False
        batch, group, channel, *spatial = p.strides[p.solved]
        steps = (batch, channel, *spatial) if self.spread or p.groups == 1 else (batch, group, channel, *spatial)
        aligned = all(step == 1 or step % self.lanes == 0 for step in steps)
        return aligned and p.bytes_of(p.solved) >= PAST_CACHES_BYTES

    @property
    def may_stay(self) -> bool:
        """Whether those lines stay where they are, if the caches hold them before a call.

        That is found out by kernels whose tiles write all of them in place, if caches may hold input and output, and
        if there is little else to do than to write.
        """
        p = self.problem
        given, solved = p.bytes_of(p.given), p.bytes_of(p.solved)
        in_place = self.writes_in_place and self.past_caches and self.hidden_products > 0
        little = p.flops <= 2 * self.hidden_products * prod(p.shapes[p.solved]) and WRITTEN_MORE * given <= solved
        return in_place and little and given + solved <= STAYING_BYTES

    @property
    def hidden_products(self) -> int:
        """Multiply-adds of a result that are little beside writing it; of matrix tiles that was not measured."""
        return 0 if self.ON_UNITS else LITTLE

    @property
    def fetches_slab(self) -> bool:
        """Whether the next slab is asked for while the present one is multiplied: where its numbers lie together.

        Or what is read in place for several taps, in runs too short for the processor to find out where they go on.
        """
        p = self.problem
        strides = p.strides[p.given]
        together = abs(strides[2]) <= abs(strides[-1])
        apart = self.spread and strides[1:3] != (self.in_channels, 1)
        if self.reads_in_place:
            rows = type(self) is DataPlan and not self.spread and self.taps > 1
            return rows and together and p.bytes_of(p.given) > IN_PLACE_BYTES
        return together and not apart and p.bytes_of(p.given) > KEPT_BYTES

    @property
    def steps_inside(self) -> int:
        """Steps of a tile within a tap, at each of which it may ask for lines; 0: none, unless there are no others."""
        return 0

    @property
    def half_types(self) -> tuple[str, ...]:
        """Types of results that tiles may store by half a vector: none of kinds that have tiles of their own."""
        return (self.compute, "f16", "bf16") if type(self) is DataPlan else ()

    @property
    def fetches_weights(self) -> bool:
        """Whether the packed weights of the next sweep are asked for during one, which is of the same group."""
        by_a_stage = self.bundle == 1 and not (self.spread or self.packs_weights or self.reads_weights)
        return by_a_stage and self.packed_bytes * self.weights_size > KEPT_BYTES

    @property
    def fetches_raw_weights(self) -> bool:
        """Whether the weights that a task packs for its next sweep are asked for during one, as they lie."""
        own = type(self) is DataPlan and self.bundle == 1 and self.packs_weights and not self.spread
        return own and self.problem.bytes_of("w") > KEPT_BYTES

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert all(block % tile == 0 for block, tile in zip(self.block, self.tile, strict=True))
        assert self.spread or self.lane_groups == 1
        assert not self.spread or self.pixel_major
        assert not self.spread or self.lane_groups == self.width // self.lanes * (self.lanes // self.out_channels)
        assert not self.spread or self.width == self.lanes or self.lanes % self.out_channels == 0
        assert not self.pixels or not (self.spread or self.pixel_major)
        assert not self.reads_in_place or (max(self.tile[:-1]) == 1 and self.writes_in_place and not self.pixels)
        assert not self.writes_in_place or (self.i_blocks == 1 and (self.spread or self.fills_vectors))
        assert not self.pixels or self.tile[-1] % self.lanes == 0
        assert self.bundle == 1 or self.may_bundle
        assert not self.reads_weights or (self.may_read_weights and not self.packs_weights)
        assert self.runs == 1 or self.in_channels % self.channel_unit == 0 == self.i_block % self.channel_unit

    @property
    def _weights(self) -> str:
        return "unpacked" if self.reads_weights else "own" if self.packs_weights else "shared"

    def __str__(self) -> str:
        of_groups = f" of {self.bundle} groups" if self.bundle > 1 else ""
        along = "outputs" if self.pixels else "channels of several groups" if self.spread else "channels"
        return (
            f"data plan on {self.isa}: vectors along {along}, tile {self.tile} x {self.width}, block {self.block}, "
            f"i {self.i_block} of {self.in_channels}{of_groups}, {prod(self.grid)} tasks, "
            f"{'read in place' if self.reads_in_place else f'slab of {self.slab_size} numbers'}, "
            f"{'written in place, ' if self.writes_in_place else ''}{self.unroll} axes unrolled, "
            f"{self._weights} weights\n" + "\n".join(f"  {reason}" for reason in self.reasons)
        )
