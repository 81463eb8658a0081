"""What lanes sum along where they are added at the very end, and which problems are summed so; see `order`."""

from __future__ import annotations

from enum import Enum
from math import prod

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.costs import LINE
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.problem.simplify import with_taps_merged

LEAST_GIVEN = 16  # channels that are many, whatever vectors hold
LONG_ROW = 64  # vectors of a row of 16 bits, which is widened piece by piece: of shorter ones images may be many
LONG_ROW_OF_LINES = 128  # likewise, of vectors as long as lines
LONG_HALVES = 512  # likewise of f16, in vectors so short that there may be no instruction for it
LEAST_WIDENED = 8  # lanes of vectors that 16 bits are widened to by an instruction or two, again for every tile
ROWS_ADDED = 3  # of a tile of sums whose lanes are added at the end, for which there should be registers
MOST_PARTED = ((7 / 8, 4), (3 / 4, 2))  # channels solved for, where vectors of the input are filled to less than that
MOST_AROUND = 16  # taps of a row around elements of x, of longer kernels of which most may miss what they solve for
FEWEST_ADDED = 4  # vectors of the input that such a sum is made of
MOST_ALONE = 8  # channels solved for, of which vectors along outputs lose less than sums whose lanes are added
WORTH_RUNS = 1.25  # times fewer multiply-adds, with what adding lanes takes, from which runs are worth turning weights
ADDED = 3  # multiply-adds that adding the lanes of a sum takes as long as
ADDED_IN_LOTS = 2  # likewise of sums of lots of channels, one after the other
ALONE = 2  # by which less than a vector of channels takes longer than its multiply-adds
ALONE_WIDENED = 1.25  # likewise a vector of them, of 16 bits
PART_OF_VECTOR = 0.5  # what the last vector costs more, if it is read under a mask
GAIN_IN_LOTS, GAIN_IN_FULL = 0.9, 1.05  # by multiply-adds, from which these are taken, of less than a vector and more
WEIGHTS_IN_LOTS = 131072  # for so many, which no longer are in L1, the gain is to be larger by one
MOST_MET = 16384  # numbers that an output is made of, for which a slab of all channels stays in L2
LEAST_ROW = 8  # vectors of an image that is a window, from where on adding lanes does not matter
LEAST_ROW_FOR_X = 128  # numbers, likewise of channels of y
MOST_SUMS = 24  # of a tile, of channels that are too many to be summed at once
MOST_WRITTEN = 256  # multiply-adds of a step, of all taps of a row, that are written out


class Along(Enum):
    """What lanes sum along where they are added at the very end."""

    CHANNELS = "channels of the input"
    RUNS = "what a row of taps meets"
    ROWS = "an image that is a window"


def lanes_sum(
    p: ConvProblem, lanes: int, registers: int, most: int | None = None, *, dots: bool = False, whole: bool = True
) -> Along | None:  # fmt: skip
    """What lanes sum along, of a problem as it was asked for; None where they are elements of the result.

    `most` is how many channels lanes are added for, where a unit is better at more (`units.most_added`); `dots`,
    whether there are dot products of bf16; `whole`, whether an image that is a window is more than a part of one.
    """
    few = adds_lanes(p, lanes, registers, most)
    if few and solved_for(p) <= most_together(registers):
        return Along.CHANNELS
    plain = p.dtype == "f32"
    alone = plain or most is None  # else a unit has more arithmetic
    if alone and (plain or lanes >= LEAST_WIDENED) and adds_runs(p, lanes):
        return Along.RUNS
    rows = (alone and (plain or row_length(p) >= _long_row(p, lanes))) or (dots and p.dtype == "bf16")
    if whole and rows and multiplies_rows(p, lanes):
        return Along.ROWS
    return Along.CHANNELS if few else None


def adds_lanes(p: ConvProblem, lanes: int, registers: int, most: int | None = None) -> bool:
    """Whether an output may be summed in vectors along channels of the input that lie side by side, lanes at the end.

    Where few channels are solved for, no more than `most`, side by side as well, and a row has one phase. `p` is as it
    was asked for: what it can be made into depends on extents.
    """
    solves_y, solved = p.unknown is Unknown.Y, solved_for(p)
    given = p.x_channels if solves_y else p.y_channels
    sides = (p.x_strides, p.y_strides, p.y_extent) if solves_y else (p.y_strides, p.x_strides, p.x_extent)
    read, written, inner = sides
    dense = read[2] == 1 and (written[-1] == solved or inner[-1] == 1) and (solved == 1 or written[2] == 1)
    plain = p.groups == 1 and p.dtype == p.out_dtype != "f64" and not p.accumulate and p.unknown is not Unknown.W
    plain = plain and (p.dtype == "f32" or lanes >= LEAST_WIDENED)
    vectors = -(-given // lanes)
    parted = (most for share, most in MOST_PARTED if given < share * vectors * lanes)
    few = 0 < solved <= min([solved if most is None else most, *parted])
    whole = given % lanes == 0 or lanes * SIZES[COMPUTE[p.dtype]] == LINE  # else there are no masks to speak of
    worth = whole and given >= LEAST_GIVEN and vectors * prod(p.taps) >= FEWEST_ADDED
    worth = worth and (solved <= most_together(registers) or _gains_in_lots(p, lanes, given, solved))
    return plain and dense and few and worth and (solves_y or (p.stride[-1] == 1 and p.taps[-1] <= MOST_AROUND))


def solved_for(p: ConvProblem) -> int:
    """Channels solved for, per group, of X or Y."""
    return p.y_channels if p.unknown is Unknown.Y else p.x_channels


def most_together(registers: int) -> int:
    """Channels solved for whose sums registers hold, of some rows."""
    return (registers - 2) // (ROWS_ADDED + 1)


def _gains_in_lots(p: ConvProblem, lanes: int, given: int, solved: int) -> bool:
    """Whether more channels are summed faster in lots than by vectors of them, the last of which is not full.

    Of less than a vector those run at half their speed where f32 meets one tap, and numbers of 16 bits that meet just
    one vector are widened for little; along outputs no lane is empty.
    """
    taps, plain = prod(p.taps), p.dtype == "f32"
    alone = 1.0
    if taps == 1 and plain and solved < lanes:
        alone = ALONE
    elif taps == 1 and not plain and solved == lanes == LINE // SIZES["f32"]:
        alone = ALONE_WIDENED
    along_channels = alone * -(-solved // lanes) * given * taps
    vectors = -(-given // lanes) + (PART_OF_VECTOR if given % lanes else 0)
    by_lanes = solved * (vectors * taps + ADDED_IN_LOTS)
    gain = (GAIN_IN_LOTS if solved < lanes else GAIN_IN_FULL) + solved * given * taps / WEIGHTS_IN_LOTS
    written = MOST_SUMS * p.taps[-1] <= MOST_WRITTEN
    few = solved < 2 * lanes or taps == 1
    return few and written and gain * by_lanes <= along_channels


def adds_runs(p: ConvProblem, lanes: int) -> bool:
    """Whether an output is summed in vectors along what a row of taps meets, lanes at the very end; see above.

    Where that takes fewer multiply-adds than vectors along channels solved for, and strides make vectors along outputs
    dear. `p` is as it was asked for.
    """
    *outer, inner = p.taps
    given, solved = p.x_channels, p.y_channels
    plain = p.groups == 1 and p.dtype == p.out_dtype != "f64" and p.unknown is Unknown.Y
    row = inner > 1 == p.dilation[-1] < p.stride[-1] < 2 * inner
    if not (plain and row and solved > MOST_ALONE and given * prod(p.taps) <= MOST_MET):
        return False
    masks = lanes * SIZES[COMPUTE[p.dtype]] == LINE  # of instruction sets that have them to speak of
    last = abs(p.x_strides[2]) < abs(p.x_strides[-1])
    rows = prod(outer) > 1 or last  # of taps, else long rows of planes are read along outputs
    along_channels = -(-solved // lanes) * given * prod(p.taps)
    along_runs = solved * (prod(outer) * -(-given * inner // lanes) + ADDED)
    return masks and rows and WORTH_RUNS * along_runs <= along_channels


def multiplies_rows(p: ConvProblem, lanes: int) -> bool:
    """Whether Y or X is summed in vectors along a row of weights, lanes at the very end: where a window is an image.

    Rows of what is given, for Y channels and taps, for X channels, and of the weights are read as they lie then, whole.
    Not of windows that do not overlap: patches are what larger images are cut into.
    """
    known = p.dtype == p.out_dtype != "f64" or p.dtype == "bf16"
    solves_y, solves_x = p.unknown is Unknown.Y, p.unknown is Unknown.X
    plain = solves_y or (solves_x and not (p.bias and prod(p.taps) > 1))  # of which a bias has one for many
    plain = plain and known and not p.accumulate
    if not plain or 0 in (p.batch, p.x_channels, p.y_channels, *p.x_extent):
        return False
    if any(
        (y, x, low) != (1, taps, 0) for y, x, taps, low in zip(p.y_extent, p.x_extent, p.taps, p.pad_low, strict=True)
    ):
        return False
    if any(s >= taps > 1 for s, taps in zip(p.stride, p.taps, strict=True)):
        return False
    row = with_taps_merged(p)
    steps = {row.x_strides[2], row.w_strides[2 if solves_y else 1], row.y_strides[2]}
    # where vectors are not lines there are no masks to speak of
    length = row_length(p)
    whole = length % lanes == 0 or lanes * SIZES[COMPUTE[p.dtype]] == LINE
    long = length >= (LEAST_ROW * lanes if solves_y else max(LEAST_ROW * lanes, LEAST_ROW_FOR_X))
    return steps == {1} == set(row.taps) and whole and long


def _long_row(p: ConvProblem, lanes: int) -> int:
    """Numbers of a row of 16 bits that is long enough for any number of images."""
    if lanes * SIZES[COMPUTE[p.dtype]] == LINE:
        return LONG_ROW_OF_LINES * lanes
    return (LONG_ROW if p.dtype == "bf16" or lanes >= LEAST_WIDENED else LONG_HALVES) * lanes


def row_length(p: ConvProblem) -> int:
    """Numbers that an output is made of where a window is an image."""
    return p.x_channels * prod(p.taps) if p.unknown is Unknown.Y else p.y_channels
