"""Lowering of plans that put together, multiply and write one block of tiles of outputs after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from convgrad.codegen.by_matrix.across_rows import GatheredRoom
from convgrad.codegen.by_matrix.matrix_sweep import MatrixSweep
from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.copies.panels import bias_at
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.loops.ahead import Fetch
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.across_rows import PER_TILE
from convgrad.plan.by_matrix.matrix import DEPTH
from convgrad.plan.by_matrix.tile_by_tile import TileByTilePlan
from convgrad.problem.conv import Ints


class TileByTileSweep(MatrixSweep):
    """One block of tiles."""

    plan: TileByTilePlan
    row_tiles = PER_TILE  # of the block that is being written

    def run_tiles(self, row_tiles: int, steps: int, weights: Index) -> None:
        """Two tiles, or one that is left, with so many steps of the sum, and weights from a place on."""
        self.row_tiles, self.steps = row_tiles, steps
        self._emit_tile(Spot(weights=weights))

    def _depth(self) -> Reduction:
        plan = self.plan
        others = plan.taps // prod(axis.taps for axis in plan.axes)  # which come between: all, or none
        return Reduction(0, self.steps, plan.a_steps[1], others * plan.pieces * plan.width * DEPTH, pace=1)

    def _rows(self) -> tuple[Sequence[int], int, int]:
        plan = self.plan
        tile = plan.rows * plan.row_step
        return range(0, self.row_tiles * tile, tile), plan.row_step, plan.a_steps[0]

    def _sums(self) -> tuple[Sequence[int], int]:
        plan = self.plan
        tile = plan.rows * plan.width
        return range(0, self.row_tiles * tile, tile), plan.width


class TileByTileStages(GatheredRoom):
    """Both stages; a subclass says how rows of A are put together, and of how many steps sums are."""

    plan: TileByTilePlan
    sweep = TileByTileSweep

    @property
    def steps(self) -> int:
        """Of a sum."""
        raise NotImplementedError

    def pack_input(self, b: Builder, at: Places) -> Value:
        """What a task packs before, and the address that `places` count from."""
        raise NotImplementedError

    def places(self) -> Ints:
        """Per axis, from what an output meets to what the next one does."""
        raise NotImplementedError

    def gather(self, b: Builder, here: Value, rows: Value) -> None:
        """What one output meets, as rows of A."""
        raise NotImplementedError

    def row_ahead(self, b: Builder, here: Sequence[Value]) -> Fetch:
        """What the products of a block of lanes ask for, if they do: of what some outputs to come meet."""
        raise NotImplementedError

    def _task(self, b: Builder, at: Places, task: Value) -> None:
        """Block of tiles by block of tiles, each with all lanes."""
        plan = self.plan
        *blocks, self.group, share = b.split(task, plan.grid)
        self.starts = [self._block_start(b, n, block) for n, block in enumerate(blocks)]
        self.slab_group = self.group
        first = b.mul(share, plan.blocks_per_task)
        last = b.minimum(b.add(first, plan.blocks_per_task), plan.lane_blocks)
        outputs: Index = 1
        for axis, start, size in zip(plan.axes, self.starts, plan.block, strict=True):
            outputs = b.mul(outputs, b.minimum(b.sub(axis.count, start), size))
        origin, table = self.pack_input(b, at), self._table(b)
        rows, results = (b.at(at.scratch, place, "i8") for place in (self.gathered_start, self.slab_bytes))

        def tiles(t: Index, _: object) -> None:
            before = b.mul(t, plan.together)
            left = b.minimum(b.sub(outputs, before), plan.together)

            def row(o: Index, _: object) -> None:
                here = b.at(origin, b.lookup(table, b.add(before, o)), "i16")
                self.gather(b, here, b.at(rows, b.mul(o, plan.row_step), "i16"))

            b.loop(0, left, row, name="row")

            def phase(block: Index, number: Index) -> None:
                share = b.add(b.mul(b.sub(block, first), plan.phases), number)
                ahead = self._share_ahead(b, origin, table, b.add(before, plan.together), share)
                self._phase(b, at, rows, results, before, left, block, number, ahead)

            def lanes(block: Index, _: object) -> None:
                b.loop(0, plan.phases, lambda number, _: phase(block, number), name="phase")

            b.loop(first, last, lanes, name="lanes")

        b.loop(0, b.floor_div(b.add(outputs, plan.together - 1), plan.together), tiles, name="tiles")

    def _share_ahead(self, b: Builder, origin: Value, table: Value, after: Index, share: Index) -> Fetch | None:
        """For the products of a block of lanes and a phase: their share of the outputs that come next in the block."""
        plan = self.plan
        if not plan.fetches_rows:
            return None
        each = -(-plan.together // (plan.blocks_per_task * plan.phases))
        first, last = b.add(after, b.mul(share, each)), prod(plan.block) - 1
        places = (b.lookup(table, b.minimum(b.add(first, o), last)) for o in range(each))
        return self.row_ahead(b, [b.at(origin, place, "i16") for place in places])

    def _table(self, b: Builder) -> Value:
        """Where what each output of the block meets begins."""
        steps = zip(self.plan.block, self.places(), strict=True)
        return b.module.table([sum(index) for index in product(*([j * step for j in range(n)] for n, step in steps))])

    def _phase(
        self, b: Builder, at: Places, rows: Value, results: Value, before: Index, left: Index, block: Index,
        number: Index, ahead: Fetch | None,
    ) -> None:  # fmt: skip
        """What a block of lanes makes of the rows in a phase."""
        plan = self.plan
        panel = b.mul(b.add(b.mul(self.group, plan.lane_blocks), block), plan.panel_step)
        weights = b.at(at.shared, panel, self.packed_kind)
        bias = bias_at(plan, b, at, self.group, block) if plan.problem.bias else None
        walks = (lambda: [ahead]) if ahead else None
        sweep = self.sweep(
            plan, b, rows, weights, results, bias, plan.in_channels, self.starts, fresh=True, walks=walks
        )  # fmt: skip
        places = self._phases(sweep.taps.strides)
        of_weights, of_output = (
            of_each[0] if plan.phases == 1 else b.lookup(b.module.table(of_each), number) for of_each in places
        )

        def multiply(row_tiles: int) -> None:
            sweep.run_tiles(row_tiles, self.steps, of_weights)

        if isinstance(left, Value):
            b.either(b.compare("sgt", left, plan.rows), lambda: multiply(PER_TILE), lambda: multiply(1))
        else:
            multiply(-(-left // plan.rows))
        self._write_row(b, at, results, before, left, block, of_output)

    def _phases(self, weights: Sequence[int]) -> tuple[list[int], list[int]]:
        """Where the weights of each begin, and its outputs."""
        plan = self.plan
        outputs = (self.out_strides[0], *self.out_strides[3:])
        every = list(product(*(axis.phases for axis in plan.axes)))
        taps = [sum(f.tap * step for f, step in zip(phases, weights, strict=True)) for phases in every]
        return taps, [sum(f.first * step for f, step in zip(phases, outputs, strict=True)) for phases in every]

    def _write_row(
        self, b: Builder, at: Places, results: Value, before: Index, count: Index, block: Index, target: Index
    ) -> None:  # fmt: skip
        """Some outputs of the block, a row of them or one by one."""
        plan, step = self.plan, self.plan.output_step
        strides = (self.out_strides[0], *self.out_strides[3:])
        for start, stride, axis in zip(self.starts, strides, plan.axes, strict=True):
            target = b.add(target, b.mul(start, stride * axis.out_step))
        if step is not None:
            self._write(b, at, results, b.add(target, b.mul(before, step)), [Dim(count, plan.width, step)], block)
            return
        table = b.module.table(plan.output_places)

        def one(o: Index, _: object) -> None:
            there = b.add(target, b.lookup(table, b.add(before, o)))
            self._write(b, at, b.at(results, b.mul(o, plan.width), self.kind), there, [], block)

        b.loop(0, count, one, name="output")
