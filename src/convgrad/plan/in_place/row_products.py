"""X or Y of windows that are whole images: rows of what is given times rows of weights, as both lie."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from convgrad.dtypes import SIZES
from convgrad.plan.along import ADDED, LEAST_WIDENED, Along
from convgrad.plan.costs import FAR_INPUT
from convgrad.plan.general.data import DataPlan
from convgrad.plan.kinds import as_kind
from convgrad.plan.machine import Machine
from convgrad.plan.shares import even_share
from convgrad.plan.steps import FMA_PER_CYCLE, LATENCY, LOADS_PER_CYCLE, VECTOR
from convgrad.values import frozen

MOST_COLUMNS = 8  # outputs of a tile, each of which reads a row of weights, a stream of its own
PIECE_BYTES = 16 * 1024  # of rows of weights, that stay in L1 from tile to tile
SUMS_BYTES = 2**21  # of sums that a task keeps from piece to piece
AHEAD_BYTES = 512  # from where a row is read to where it is asked for
WIDENED_BYTES = 2**20  # of images that are widened once
MOST_IMAGES = 64  # of a task, pieces of whose rows stay in L2
DOT_LATENCY = 6  # cycles of a dot product
DOTS_ADDED, LOOK = 1.4, 0.5  # as long as adding lanes takes, and looking at a vector of weights
SHORT_ROW = 32  # vectors of a row below which packed weights may be better
TIE, PACKING = 1.04, 0.07  # of the cycles of short rows, which take more than predicted; of packing a number of weights
TASKS = 8  # each of which reads all of its images


@frozen(kw_only=True)
class RowProductsPlan(DataPlan):
    """A DataPlan whose tiles are images against channels solved for, each sum a vector, lanes added at the end.

    There is one tap, and one position of an image: taps are channels of x. Rows are cut into pieces; a task takes all
    of its tiles through a piece before the next, and keeps their sums in memory meanwhile.
    """

    KIND = "along channels and taps of whole images, added at the end"
    FINISHED = True

    piece: int  # vectors of a row that tiles go through at a time

    @property
    def order_kind(self) -> str:
        """In an order that no plan of another kind has; of pairs by dot products."""
        return f"pairs of {Along.ROWS.value}" if self.ON_UNITS else Along.ROWS.value

    @property
    def in_vector(self) -> int:
        """Of a row that a vector holds."""
        return self.lanes

    @property
    def vectors(self) -> int:
        """Of a row, whole ones."""
        return self.in_channels // self.in_vector

    @property
    def rest(self) -> int:
        """Numbers of a row beyond these."""
        return self.in_channels % self.in_vector

    @property
    def pieces(self) -> int:
        """Of a row."""
        return max(1, -(-self.vectors // self.piece))

    @property
    def image_tiles(self) -> int:
        """Of a task, at most."""
        return self.block[-1] // self.tile[-1]

    @property
    def sums_size(self) -> int:
        """Numbers that a task keeps from piece to piece: a vector for each sum."""
        if self.pieces == 1:
            return 0
        return self.blocks_per_task * self.image_tiles * self.tile[-1] * self.width * self.lanes

    @property
    def widens_images(self) -> bool:
        """Whether pieces of rows of images, of 16 bits, are widened once, as many blocks of weights meet them.

        Vectors of half a line are widened beside products if weights are not, at no cost that was seen.
        """
        held = SIZES[self.compute] * self.image_tiles * self.tile[-1] * self.piece * self.in_vector
        hidden = self.widens_weights and self.lanes == LEAST_WIDENED
        return self._widens and self.blocks_per_task > 1 and not hidden and held <= WIDENED_BYTES

    @property
    def widens_weights(self) -> bool:
        """Whether pieces of rows of weights are, as many tiles of images meet them."""
        return self._widens and self.image_tiles > 1

    @property
    def _widens(self) -> bool:
        return self.problem.dtype != self.compute and not self.ON_UNITS and self.piece > 0

    @property
    def widened_sizes(self) -> tuple[int, int]:
        """Numbers of pieces of a task's images, and of one block of rows of weights, that are widened."""
        numbers = self.piece * self.in_vector
        images, weights = self.image_tiles * self.tile[-1], self.width
        return images * numbers * self.widens_images, weights * numbers * self.widens_weights

    @property
    def fetched_ahead(self) -> int:
        """Bytes by which rows of weights are asked for before they are read: of those that L3 hardly holds."""
        p = self.problem
        return AHEAD_BYTES if p.bytes_of("w") > FAR_INPUT and not self.widens_weights else 0

    @property
    def may_pack_weights(self) -> bool:
        """No."""
        return False

    @property
    def may_read_weights(self) -> bool:
        """Nothing else."""
        return True

    @property
    def fetches_weights(self) -> bool:
        """No."""
        return False

    @property
    def past_caches(self) -> bool:
        """No: results are few."""
        return False

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        super().validate()
        p = self.problem
        assert self.reads_in_place
        assert self.reads_weights
        assert p.taps == (1,)
        assert p.x_strides[2] == p.w_strides[2 if self.solves_y else 1] == p.y_strides[2] == 1
        assert self.width <= min(self.lanes, self.out_channels)
        assert self.tile[-1] <= self.axes[-1].count
        assert self.pieces == 1 or self.vectors

    def __str__(self) -> str:
        text = super().__str__()
        head = f"along channels and taps, added at the end, {self.pieces} pieces of {self.piece} vectors,"
        return text.replace("along channels,", head, 1)


def row_products_candidates(base: DataPlan, machine: Machine) -> Iterator[tuple[float, RowProductsPlan]]:
    """Predicted cycles and the plan, of a problem whose order of sums is that; see `along.multiplies_rows`."""
    images, channels = base.axes[-1].count, base.out_channels
    dots = base.problem.dtype == "bf16" and machine.has_dots
    kind, numbers, latency, adding = RowProductsPlan, base.lanes, LATENCY, ADDED
    if dots:
        from convgrad.plan.by_dots.dot_row_products import PAIR, DotRowProductsPlan

        kind, numbers, latency, adding = DotRowProductsPlan, PAIR * base.lanes, DOT_LATENCY, DOTS_ADDED
    vectors = -(-base.in_channels // numbers)
    looking = LOOK * channels * vectors if dots else 0.0

    def cycles(rows: int, columns: int) -> float:
        step = max(rows * columns / FMA_PER_CYCLE, VECTOR * rows + columns / LOADS_PER_CYCLE, latency)
        return -(-images // rows) * -(-channels // columns) * (vectors * step + adding * rows * columns)

    shapes = [
        (rows, columns)
        for columns in range(1, min(channels, base.lanes, MOST_COLUMNS) + 1)
        for rows in range(1, min(images, machine.registers) + 1)
        if rows * columns + min(rows, columns) + 1 < machine.registers
    ]
    rows, columns = min(shapes, key=lambda shape: (cycles(*shape), -prod(shape)))
    least = SIZES[base.compute] * base.lanes * columns
    piece = base.in_channels // numbers
    if images > 1:
        piece = even_share(piece, PIECE_BYTES // least)
    tiles = -(-images // rows)
    block = even_share(tiles, -(-MOST_IMAGES // rows)) * rows
    lane_blocks = -(-channels // columns)
    tasks = -(-tiles * rows // block) * base.problem.groups
    blocks = max(1, lane_blocks * tasks // TASKS) if tasks < TASKS else lane_blocks
    plan = as_kind(
        kind, base, tile=(1, rows), block=(1, block), width=columns, i_block=base.in_channels,
        pixel_major=True, reads_in_place=True, writes_in_place=True, reads_weights=True, piece=piece,
        blocks_per_task=min(blocks, even_share(lane_blocks, max(1, SUMS_BYTES // (least * block)))),
    )  # fmt: skip
    yield (cycles(rows, columns) + looking) * base.problem.groups, plan


def against_rows(others: list[tuple[float, Any]], least: float, plan: RowProductsPlan) -> list[tuple[float, Any]]:
    """Plans for dot products that pack weights, by cycles to be compared with the `least` of rows as they lie.

    Of long rows none is better; of short ones, where images are so many that packing does not matter.
    """
    p = plan.problem
    if plan.vectors >= SHORT_ROW:
        return [(max(cycles, least), other) for cycles, other in others]
    return [((cycles + PACKING * prod(p.shapes["w"])) / TIE, other) for cycles, other in others]
