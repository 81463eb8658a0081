"""Lowering of plans whose tiles go on across rows: sweeps over what is numbered through, copies of what taps meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from convgrad.codegen.by_matrix.matrix_data import MatrixStages
from convgrad.codegen.by_matrix.matrix_sweep import MatrixSweep
from convgrad.codegen.copies.input_slab import channels_of
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.module import round64
from convgrad.codegen.stages import Places
from convgrad.plan.axes import Phase
from convgrad.plan.by_matrix.across_rows import PER_TILE, AcrossRowsPlan, GatheredDataPlan
from convgrad.plan.by_matrix.matrix import DEPTH

Phases = tuple[Phase, ...]  # one of each axis


class AcrossRowsSweep(MatrixSweep):
    """Tiles of outputs that are numbered through."""

    plan: AcrossRowsPlan
    row_tiles = PER_TILE  # of the block of tiles that is being written

    def run(self) -> None:
        """Phase by phase, and plane by plane."""
        plan, b = self.plan, self.b
        *outer, rows, _ = self._counts()
        outputs = b.add(b.mul(b.sub(rows, 1), plan.row_pitch), plan.block[-1])
        strides, (results, _) = plan.slab_strides[0], plan.result_strides

        def planes(n: int, phases: Phases, slab: Index, result: Index) -> None:
            if n == len(outer):
                self._plane(phases, slab, result, outputs)
                return
            step, of_result = plan.axes[n].in_step * strides[n], results[n][1]
            b.loop(
                0, outer[n],
                lambda j, _: planes(n + 1, phases, b.add(slab, b.mul(j, step)), b.add(result, b.mul(j, of_result))),
                name="plane",
            )  # fmt: skip

        first, *others = product(*(axis.phases for axis in plan.axes))

        def phase(phases: Phases) -> None:
            result = sum(phase.first * step for phase, (step, _) in zip(phases, results, strict=True))
            planes(0, phases, first_place(plan, phases), result)

        phase(first)
        if others and self.beside is not None:  # these have all of the slab, and less code
            self.beside.up_to(b, prod(plan.slab_extent))
            self.beside = None
        for phases in others:
            phase(phases)

    @property
    def _after(self) -> Callable[[Builder, int], None] | None:
        """Not beside a tile that is left, nearly always the last one."""
        return super()._after if self.row_tiles == PER_TILE else None

    def _counts(self) -> list[Index]:
        """Outputs per axis that there are of the block."""
        plan, b = self.plan, self.b
        return [
            b.minimum(b.sub(axis.count, start), size)
            for axis, start, size in zip(plan.axes, self.starts, plan.block, strict=True)
        ]

    def _plane(self, phases: Phases, slab: Index, result: Index, outputs: Index) -> None:
        """Blocks of two tiles, and one that is left."""
        plan, b = self.plan, self.b
        weights = sum(phase.tap * step for phase, step in zip(phases, self.taps.strides, strict=True))
        sums = tuple(
            Reduction(0, phase.taps, of_a, axis.tap_step * of_b)
            for axis, phase, of_a, of_b in zip(plan.axes, phases, plan.tap_steps, self.taps.strides, strict=True)
            if phase.taps != 1
        )

        def tiles(t: Index, row_tiles: int) -> None:
            self.row_tiles = row_tiles
            here, there = b.mul(t, plan.a_steps[2]), b.mul(t, plan.together * plan.c_step)
            self._emit_tile(Spot(slab=b.add(slab, here), weights=weights, result=b.add(result, there), sums=sums))

        many = b.floor_div(b.add(outputs, plan.rows - 1), plan.rows)
        pairs = b.floor_div(many, PER_TILE)
        b.loop(0, pairs, lambda t, _: tiles(t, PER_TILE), name="tile")
        rest = b.sub(many, b.mul(pairs, PER_TILE))
        if isinstance(rest, Value):
            with b.when(b.compare("ne", rest, 0)):
                tiles(pairs, 1)
        elif rest:
            tiles(pairs, 1)

    def _rows(self) -> tuple[Sequence[int], int, int]:
        plan = self.plan
        return range(0, self.row_tiles * plan.rows * DEPTH, plan.rows * DEPTH), DEPTH, plan.a_steps[0]

    def _sums(self) -> tuple[Sequence[int], int]:
        plan = self.plan
        return range(0, self.row_tiles * plan.rows * plan.c_step, plan.rows * plan.c_step), plan.c_step

    def _deep_step(self) -> int:
        return self.plan.a_steps[1]


class AcrossRowsStages(MatrixStages):
    """Both stages of an AcrossRowsPlan."""

    plan: AcrossRowsPlan
    sweep = AcrossRowsSweep
    phase: Phase | None = None  # of rows that are written, if these have several

    def _unpack(self, b: Builder, at: Places, results: Value, block: Index) -> None:
        """Phases of rows one after the other."""
        plan, rows = self.plan, self.plan.axes[-2]
        if len(rows.phases) == 1:
            super()._unpack(b, at, results, block)
            return
        for self.phase in rows.phases:
            of_phase = self.phase.first * plan.result_strides[0][-2][0]
            super()._unpack(b, at, b.at(results, of_phase, self.kind), block)
        self.phase = None

    def _results(self, b: Builder, n: int) -> tuple[Index, Index, int, int]:
        """Of a phase of rows, every so many."""
        plan, phase, start = self.plan, self.phase, self.starts[n]
        if phase is None or n != len(plan.axes) - 2:
            return super()._results(b, n)
        step = plan.axes[n].out_step
        count = b.maximum(b.minimum(b.sub(phase.count, start), plan.block[n]), 0)
        return b.add(b.mul(start, step), phase.first), count, plan.result_strides[0][n][1], step


class GatheredSweep(AcrossRowsSweep):
    """Tiles of all outputs of a block."""

    def run(self) -> None:
        """As one plane."""
        outputs: Index = 1
        for count in self._counts():
            outputs = self.b.mul(outputs, count)
        phases = tuple(axis.phases[0] for axis in self.plan.axes)
        self._plane(phases, 0, 0, outputs)


class GatheredRoom(MatrixStages):
    """What stages have that gather: room for that."""

    plan: GatheredDataPlan

    @property
    def gathered_start(self) -> int:
        """Behind the slab, if there is one."""
        return super().slab_bytes

    @property
    def slab_bytes(self) -> int:
        """Of the slab, and of what is gathered."""
        return self.gathered_start + round64(self.plan.packed_bytes * self.plan.gathered_size)


class GatheredStages(GatheredRoom, AcrossRowsStages):
    """Both stages of a GatheredDataPlan."""

    plan: GatheredDataPlan
    sweep = GatheredSweep

    def _pack_slab(self, b: Builder, at: Places, slab: Value, i_block: Index) -> None:
        """And gather."""
        super()._pack_slab(b, at, slab, i_block)
        self._gather(b, slab, self._gathered(b, slab), i_block)

    def _sweep(
        self, b: Builder, at: Places, slab: Value, results: Value, block: Index, i_block: Index, fresh: bool | Value
    ) -> None:
        """Of what was gathered."""
        super()._sweep(b, at, self._gathered(b, slab), results, block, i_block, fresh)

    def _gathered(self, b: Builder, slab: Value) -> Value:
        return b.at(slab, self.gathered_start, "i8")

    def _gather(self, b: Builder, slab: Value, gathered: Value, i_block: Index) -> None:
        """Tap by tap, 32 channels of all pieces of output after output: those beyond the block are some others."""
        plan = self.plan
        strides, deep_step = plan.slab_strides
        deep = b.floor_div(b.add(channels_of(plan, b, i_block), DEPTH - 1), DEPTH)

        def taps(n: int, src: Value, dst: Value) -> None:
            if n == len(plan.axes):
                b.loop(
                    0, deep,
                    lambda d, _: self._gather_tap(
                        b, b.at(src, b.mul(d, deep_step), "i16"), b.at(dst, b.mul(d, plan.a_steps[1]), "i16")
                    ),
                    name="deep",
                )  # fmt: skip
                return
            of_src, of_dst = plan.axes[n].offset_step * strides[n], plan.tap_steps[n]
            b.loop(
                0, plan.axes[n].taps,
                lambda r, _: taps(n + 1, b.at(src, b.mul(r, of_src), "i16"), b.at(dst, b.mul(r, of_dst), "i16")),
                name="tap",
            )  # fmt: skip

        phases = tuple(axis.phases[0] for axis in plan.axes)
        taps(0, b.at(slab, first_place(plan, phases), "i16"), gathered)

    def _gather_tap(self, b: Builder, src: Value, dst: Value) -> None:
        """One line of every piece for each output."""
        plan = self.plan
        places = [
            sum(j * axis.in_step * step for j, axis, step in zip(index, plan.axes, plan.slab_strides[0], strict=True))
            for index in product(*map(range, plan.block))
        ]
        table = b.module.table([*places, *[0] * (plan.blocks_of_tiles * plan.together - plan.outputs)])

        def tiles(t: Index, _: object) -> None:
            there = b.at(dst, b.mul(t, plan.a_steps[2]), "i16")
            for i in range(plan.together):
                here = b.at(src, b.lookup(table, b.add(b.mul(t, plan.together), i)), "i16")
                for piece in range(plan.pieces):
                    value = b.load(f"<{DEPTH} x i16>", b.at(here, piece * plan.piece_step, "i16"), 64)
                    b.store(value, b.at(there, piece * plan.a_steps[0] + i * DEPTH, "i16"), 64)

        b.loop(0, plan.blocks_of_tiles, tiles, name="gather")


def first_place(plan: AcrossRowsPlan, phases: Phases) -> int:
    """Where the slab has what tap 0 of a block's first output meets."""
    places = zip(phases, plan.slab_start, plan.slab_strides[0], strict=True)
    return sum((phase.offset - start) * step for phase, start, step in places)
