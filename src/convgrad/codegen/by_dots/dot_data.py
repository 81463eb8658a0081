"""Lowering of a DotDataPlan: that of a MatrixDataPlan with register tiles of dot products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from convgrad.codegen.by_matrix.matrix_data import MatrixStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.dots import DOT_UNITS
from convgrad.codegen.loops.sweep import Sweep, bytes_ahead
from convgrad.codegen.loops.tap_sums import Spot
from convgrad.codegen.microkernels.dots import DotTile, Steps
from convgrad.codegen.microkernels.reduction import Reduction
from convgrad.codegen.stages import Places
from convgrad.plan.by_dots.dots import LANES, PAIR, DotDataPlan


class DotSweep(Sweep):
    """The loops of a Sweep around tiles of dot products."""

    plan: DotDataPlan

    def _emit_tile(self, spot: Spot) -> None:
        b, dots = self.b, self._dots()
        _, out = self._dtypes()
        target = b.at(self.results, spot.result, STORAGE[out])
        a, x = b.at(self.slab, spot.slab, "i16"), b.at(self.weights, spot.weights, "i16")
        walks = self.walks() if self.walks else ()
        sums = dots.sum(b, a, x, self._first(self.tile, target), spot.sums, self._steps(), walks)
        self._store(dots, out, target, sums)

    def _store(self, dots: DotTile, dtype: str, target: Value, sums: list[Value]) -> None:
        """The sums of a tile, past the caches where they are whole lines."""
        b, tile = self.b, self.tile
        if dtype == "bf16" and self.plan.watch:  # no sum is denormal, or the fallback writes all again
            numbers = dots.narrowed(
                b, sums, tile.c_columns
            )  # here, since LLVM would make one of two stores of what each narrows

            def put(store: Callable[..., None], *more: int) -> None:
                for row, lane, value in numbers:
                    store(value, b.at(target, tile.c_rows[row] + lane, "i16"), *more)

            store, stream = partial(put, b.store, PAIR), partial(put, partial(self.isa.stream, b))
        else:
            store, stream = partial(tile.store, b, target, sums), partial(tile.stream, b, target, sums)
        tile.put_by(b, target, stream, store)

    def _dots(self) -> DotTile:
        plan = self.plan
        return DotTile(
            unit=DOT_UNITS[plan.isa](), rows=self.tile.rows, columns=self._columns(), b_step=PAIR * LANES,
            ahead=bytes_ahead(plan), halves=self.halves,
        )  # fmt: skip

    def _columns(self) -> list[int]:
        """Where the vectors of a block of lanes begin in a panel: sixteen lanes after the other."""
        step = LANES * self.plan.channel_unit
        return [lane // LANES * step + lane % LANES * PAIR for lane in self.vectors]

    def _steps(self) -> list[Steps]:
        """Blocks of input channels, and what is left of one."""
        plan, b, unit = self.plan, self.b, self.plan.channel_unit
        step, panel = plan.slab_strides[1], plan.width * unit
        whole = b.floor_div(self.channels, unit)
        steps = [Steps(Reduction(0, whole, step, panel), unit // PAIR)]
        if plan.last_pairs:
            every = b.floor_div(b.add(self.channels, unit - 1), unit)
            steps.append(Steps(Reduction(whole, every, step, panel), plan.last_pairs))
        return steps


class DotStages(MatrixStages):
    """Both stages of a DotDataPlan."""

    sweep = DotSweep

    @property
    def zeroes_rest(self) -> bool:
        """Not of pairs: none is multiplied that there is not."""
        return not self._pairs and super().zeroes_rest

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """Nothing has to be begun."""
        self.watched_task(b, at, task)
