"""Lowering of plans that put together, multiply and write one block of tiles of outputs after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod

from convgrad.codegen.by_matrix.across_rows import GatheredRoom
from convgrad.codegen.by_matrix.beside_products import ResultLines
from convgrad.codegen.by_matrix.matrix_sweep import MatrixSweep
from convgrad.codegen.copies.copying import Dim
from convgrad.codegen.copies.panels import bias_at
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import BYTES, STORAGE
from convgrad.codegen.loops.ahead import Fetch
from convgrad.codegen.loops.lanes import lane_origin
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.by_matrix.across_rows import PER_TILE
from convgrad.plan.by_matrix.matrix import DEPTH
from convgrad.plan.by_matrix.tile_by_tile import TileByTilePlan
from convgrad.problem.conv import Ints
from convgrad.values import frozen


@frozen
class Block:
    """Outputs of a task: what each meets lies `table` numbers beyond `origin`; rows of A are gathered in a `room`."""

    origin: Value
    table: Value
    outputs: Index
    room: Value


@frozen
class Tiles:
    """One or two tiles of a block: outputs from some on, their rows of A, and steps from row to row and in the sum."""

    first: Index
    left: Index
    rows: Value
    row_step: int
    deep_step: int


Run = Callable[[Tiles, Sequence[Fetch]], None]  # the products of some tiles, and what is done on the way


class TileByTileSweep(MatrixSweep):
    """One block of tiles."""

    plan: TileByTilePlan
    row_tiles = PER_TILE  # of the block that is being written

    def run_tiles(self, tiles: Tiles, row_tiles: int, steps: int, weights: Index) -> None:
        """Two tiles, or one that is left, with so many steps of the sum, and weights from a place on."""
        self.tiles, self.slab, self.row_tiles, self.steps = tiles, tiles.rows, row_tiles, steps
        self._emit_tile(Spot(weights=weights))

    def _depth(self) -> Reduction:
        plan = self.plan
        others = plan.taps // prod(axis.taps for axis in plan.axes)  # which come between: all, or none
        return Reduction(0, self.steps, self.tiles.deep_step, others * plan.pieces * plan.width * DEPTH, pace=1)

    def _rows(self) -> tuple[Sequence[int], int, int]:
        plan, step = self.plan, self.tiles.row_step
        tile = plan.rows * step
        return range(0, self.row_tiles * tile, tile), step, plan.a_steps[0]

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

    def begin_block(self, b: Builder, block: Block) -> None:
        """Before the first tiles: nothing."""

    def tiles_of(self, b: Builder, block: Block, t: Index) -> Tiles:
        """Block of tiles number t, gathered now."""
        tiles = self.gathered(b, block, t, 0)
        self.gather_rows(b, block, tiles, 0, tiles.left)
        return tiles

    def multiply(self, b: Builder, block: Block, tiles: Tiles, t: Index, first: Index, run: Run) -> None:
        """With a block of lanes; what is done on the way is of `shared_rows` rows of some tiles, from one on."""
        run(tiles, [])

    def end_tiles(self, b: Builder, block: Block, tiles: Tiles, t: Index, first: Index) -> None:
        """After all lanes, on whose way rows up to one were seen to."""

    def gathered(self, b: Builder, block: Block, t: Index, number: Index) -> Tiles:
        """Block of tiles number t, if there is one, as rows in one of the rooms."""
        plan, first = self.plan, b.mul(t, self.plan.together)
        rows = b.at(block.room, b.mul(number, plan.a_steps[2]), "i16")
        left = b.minimum(b.sub(block.outputs, first), plan.together)
        return Tiles(first, left, rows, plan.row_step, plan.a_steps[1])

    def gather_rows(self, b: Builder, block: Block, tiles: Tiles, first: Index, last: Index) -> None:
        """Some rows of A."""

        def row(o: Index, _: object) -> None:
            here = b.at(block.origin, b.lookup(block.table, b.add(tiles.first, o)), "i16")
            self.gather(b, here, b.at(tiles.rows, b.mul(o, tiles.row_step), "i16"))

        b.loop(first, last, row, name="row")

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
        room, results = (b.at(at.scratch, place, "i8") for place in (self.gathered_start, self.slab_bytes))
        whole = Block(self.pack_input(b, at), self._table(b), outputs, room)

        def of_tiles(t: Index, _: object) -> None:
            tiles = self.tiles_of(b, whole, t)

            def phase(block: Index, number: Index) -> None:
                share = b.add(b.mul(b.sub(block, first), plan.phases), number)
                multiply = partial(self.multiply, b, whole, tiles, t, b.mul(share, plan.shared_rows))
                self._phase(b, at, tiles, results, block, number, multiply)

            def lanes(block: Index, _: object) -> None:
                b.loop(0, plan.phases, lambda number, _: phase(block, number), name="phase")

            b.loop(first, last, lanes, name="lanes")
            self.end_tiles(b, whole, tiles, t, b.mul(b.sub(last, first), plan.phases * plan.shared_rows))

        self.begin_block(b, whole)
        b.loop(0, b.floor_div(b.add(outputs, plan.together - 1), plan.together), of_tiles, name="tiles")

    def _table(self, b: Builder) -> Value:
        """Where what each output of the block meets begins."""
        steps = zip(self.plan.block, self.places(), strict=True)
        return b.module.table([sum(index) for index in product(*([j * step for j in range(n)] for n, step in steps))])

    def _phase(
        self, b: Builder, at: Places, tiles: Tiles, results: Value, block: Index, number: Index,
        multiply: Callable[[Run], None],
    ) -> None:  # fmt: skip
        """What a block of lanes makes of the rows in a phase."""
        plan = self.plan
        panel = b.mul(b.add(b.mul(self.group, plan.lane_blocks), block), plan.panel_step)
        weights = b.at(at.shared, panel, self.packed_kind)
        bias = bias_at(plan, b, at, self.group, block) if plan.problem.bias else None
        sweep = self.sweep(plan, b, tiles.rows, weights, results, bias, plan.in_channels, self.starts, fresh=True)
        places = self._phases(sweep.taps.strides)
        of_weights, of_output = (
            of_each[0] if plan.phases == 1 else b.lookup(b.module.table(of_each), number) for of_each in places
        )
        target = self._target(b, of_output)
        lines = [self._result_lines(b, at, target, tiles, block)] if plan.asks_for_results else []

        def run(tiles: Tiles, walks: Sequence[Fetch]) -> None:
            sweep.walks = lambda: [*walks, *lines]

            def of(row_tiles: int) -> None:
                sweep.run_tiles(tiles, row_tiles, self.steps, of_weights)

            if isinstance(tiles.left, Value):
                b.either(b.compare("sgt", tiles.left, plan.rows), lambda: of(PER_TILE), lambda: of(1))
            else:
                of(-(-tiles.left // plan.rows))

        multiply(run)
        self._write_row(b, at, results, tiles.first, tiles.left, block, target)

    def _target(self, b: Builder, place: Index) -> Index:
        """Where the outputs of a phase begin, from its first one on."""
        strides = (self.out_strides[0], *self.out_strides[3:])
        for start, stride, axis in zip(self.starts, strides, self.plan.axes, strict=True):
            place = b.add(place, b.mul(start, stride * axis.out_step))
        return place

    def _result_lines(self, b: Builder, at: Places, target: Index, tiles: Tiles, block: Index) -> ResultLines:
        """Of two tiles."""
        plan, dtype, step = self.plan, self.plan.problem.out_dtype, self.plan.output_step or 0
        lane = lane_origin(plan, b, self.group, block, *self.out_strides[1:3])
        first = b.at(at.of(self.output), b.add(b.add(target, b.mul(tiles.first, step)), lane), STORAGE[dtype])
        size, rows = BYTES[dtype], plan.together
        return ResultLines(first, rows, step * size, plan.width * size, -(-rows // self.steps))

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
        if step is not None:
            self._write(b, at, results, b.add(target, b.mul(before, step)), [Dim(count, plan.width, step)], block)
            return
        table = b.module.table(plan.output_places)

        def one(o: Index, _: object) -> None:
            there = b.add(target, b.lookup(table, b.add(before, o)))
            self._write(b, at, b.at(results, b.mul(o, plan.width), self.kind), there, [], block)

        b.loop(0, count, one, name="output")
