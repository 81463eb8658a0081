"""Plans for weights gradients of few channels on matrix units: all numbers of a window are rows of a tile."""

from __future__ import annotations

from itertools import product

from convgrad.plan.by_matrix.gathered_weights import GatheredWeightsPlan
from convgrad.plan.by_matrix.matrix import COLUMNS, ROWS
from convgrad.problem.conv import Ints
from convgrad.values import frozen

ROWS_TOGETHER = 2 * ROWS  # numbers of a window that meet all lanes before others are copied


@frozen(kw_only=True)
class WindowWeightsPlan(GatheredWeightsPlan):
    """A GatheredWeightsPlan whose tiles go on from tap to tap, where the channels of one would leave rows empty.

    A row of A is one channel at one tap, of all windows of a block. Three channels and 7x7 taps are 147 rows, five
    blocks of tiles, where tap by tap they are 49. Sums lie in the order (lane block, tap, channel, lane), without gaps;
    those that fill up the last block of tiles are behind them, and nobody asks for them.
    """

    KIND = "on matrix tiles, window by window"

    @property
    def window_numbers(self) -> int:
        """Of a window."""
        return self.taps * self.row_count

    @property
    def rows(self) -> int:
        """Of A and C that are in use."""
        return ROWS

    @property
    def row_blocks(self) -> int:
        """Blocks of tiles along the numbers of a window."""
        return -(-self.window_numbers // ROWS_TOGETHER)

    @property
    def own_sums(self) -> bool:
        """No."""
        return False

    @property
    def share_rows(self) -> int:
        """Channels of a task: all."""
        return self.row_count

    @property
    def sum_block(self) -> int:
        """Sums of one lane block, and room for what fills up tiles."""
        return self.row_blocks * ROWS_TOGETHER * self.width

    @property
    def sum_size(self) -> int:
        """Of one chunk."""
        return self.bundles * self.lane_blocks * self.sum_block

    @property
    def places(self) -> Ints:
        """Where the slab has what each number of window 0 is; those that fill up tiles are some others."""
        outer = len(self.outer)
        strides, channel_step = self.row_slab
        steps = [
            [r * axis.dilation * strides[n] if n < outer else self.tap_place(n, r) for r in range(axis.taps)]
            for n, axis in enumerate(self.axes)
        ]
        channels = [c * channel_step for c in range(self.row_count)]
        places = [sum(index) for index in product(*steps, channels)]
        return (*places, *[0] * (self.row_blocks * ROWS_TOGETHER - self.window_numbers))

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        assert self.lane_side == "y"
        assert not any((self.spread, self.direct))
        assert self.tile_taps == self.lane_groups == self.unroll == self.row_shares == 1
        assert self.row_channels == ROWS_TOGETHER
        assert self.width in (COLUMNS, 2 * COLUMNS)
        assert not self.watch or self.fallback is not None

    def __str__(self) -> str:
        text = super().__str__()
        channels = f"{self.row_channels} channels of x"
        return text.replace(channels, f"{self.window_numbers} numbers of a window").replace(
            "for each tap", "window by window"
        )
