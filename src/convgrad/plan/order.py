"""In which order the products of one output are added up: the same whatever extents, batch and blocks are.

Runs of input channels, one after the other; in each of them tap by tap, the innermost axis fastest; at each tap channel
by channel. So an element has the same bits in a large problem and in a part of it, and in a batch and alone.

Where vectors run across groups of several channels, registers hold a row of positions, and channels come between the
taps of the outer axes and those of the innermost one. So they do where a vector or two hold all that are solved for
(`taps_inside`). Where groups have as many channels on either side, lanes may be added at the very end: for each of the
group's outputs one sum per input channel, tap by tap, and then these, by halves (`turned_data.py`).

Where a few channels are made of many that lie side by side (`adds_lanes`), a lane sums every so many-th channel of the
input: for each tap of the outer axes channel by channel, and for each of these the taps of the innermost axis if they
are written out, else tap by tap; then lanes are added, by halves (`lane_sums.py`).

Where channels solved for would leave lanes empty and windows are apart by strides (`adds_runs`), a lane sums every so
many-th number of what a row of taps meets, row by row; then lanes are added (`run_sums.py`).

Where a window is the whole image, without padding, and image and weights lie in memory alike (`multiplies_rows`), a
lane sums every so many-th number of that run, in the order of memory; then lanes are added (`row_products.py`).
"""

from __future__ import annotations

from enum import Enum
from math import prod

from convgrad.dtypes import COMPUTE, SIZES
from convgrad.plan.costs import LINE
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.problem.simplify import with_taps_merged

FEW_CHANNELS = 4
FEW_OUTPUTS = 16  # output channels below which vectors mostly run along outputs
LONG_RUN, SHORT_RUN, RUN_FOR_FEW = 64, 32, 16  # channels
FEW_TAPS = 9
MOST_INSIDE, MOST_APART = 7, 2  # taps of the innermost axis, and their dilation
MOST_PHASES = 4
MOST_SHUFFLED = 64  # taps and channels that share what is put together in registers, across groups
LEAST_GIVEN = 16  # channels that are many, whatever vectors hold
LONG_ROW = 4096  # numbers of 16 bits of a row, which is widened again and again: of shorter ones images may be many
LEAST_WIDENED = 8  # lanes of vectors that 16 bits are widened to by an instruction or two, again for every tile
ROWS_ADDED = 3  # of a tile of sums whose lanes are added at the end, for which there should be registers
MOST_PARTED = ((7 / 8, 4), (3 / 4, 2))  # channels solved for, where vectors of the input are filled to less than that
MOST_AROUND = 16  # taps of a row around elements of x, of longer kernels of which most may miss what they solve for
FEWEST_ADDED = 4  # vectors of the input that such a sum is made of
MOST_ALONE = 8  # channels solved for, of which vectors along outputs lose less than sums whose lanes are added
WORTH_RUNS = 1.25  # times fewer multiply-adds, with what adding lanes takes, from which runs are worth turning weights
ADDED = 3  # multiply-adds that adding the lanes of a sum takes as long as
MOST_MET = 16384  # numbers that an output is made of, for which a slab of all channels stays in L2
LEAST_ROW = 8  # vectors of an image that is a window, from where on adding lanes does not matter
FEWEST_ROWS = 8  # of a tile, which hide how long a multiply-add takes; there are registers for them


IN_TURN = "runs of channels in turn"  # the common order; others are told by plans
_RUNS_OF = ", runs of "  # channels, which units choose


class Along(Enum):
    """What lanes sum along where they are added at the very end."""

    CHANNELS = "channels of the input"
    RUNS = "what a row of taps meets"
    ROWS = "an image that is a window"


def in_runs(kind: str, channels: int) -> str:
    """The words of an order whose runs a plan has chosen."""
    return f"{kind}{_RUNS_OF}{channels}"


def kind_and_run(order: str) -> tuple[str, int]:
    """The words of an order without its runs, and these, in channels of the input; 0 where there are none."""
    kind, _, run = order.partition(_RUNS_OF)
    return kind, int(run) if run.isdecimal() else 0


def channels_in_turn(p: ConvProblem) -> int:
    """Input channels of one run, a divisor of them where one fits; 1 where there is one tap, and runs mean nothing.

    Of everything that is packed at a time runs are the least, so they are short where taps are many or far apart, or
    few results are made of them, and a single channel where taps are worth writing out.
    """
    x_channels, taps = p.x_channels // p.merged_taps, prod(p.taps) * p.merged_taps
    given, solved = (x_channels, p.y_channels) if p.unknown is Unknown.Y else (p.y_channels, x_channels)
    far = given > LONG_RUN and any(r > 1 < d for r, d in zip(p.taps, p.dilation, strict=True))
    most = RUN_FOR_FEW if solved < FEW_OUTPUTS else SHORT_RUN if far or taps > FEW_TAPS else LONG_RUN
    if taps == 1 or (given <= FEW_CHANNELS and (p.groups > 1 or solved < FEW_OUTPUTS)):
        return 1
    if given <= most:
        return max(1, given)
    fitting = (n for n in range(most, most // 3, -1) if given % n == 0)
    return next(fitting, -(-given // -(-given // LONG_RUN)))


def taps_inside(p: ConvProblem, lanes: int, registers: int) -> bool:
    """Whether, within a run, the taps of the innermost axis come one after the other for each channel.

    They share what they read then, of which there is a number for every multiply-add otherwise, or for every two.
    """
    given, solved = (p.x_channels, p.y_channels) if p.unknown is Unknown.Y else (p.y_channels, p.x_channels)
    vectors, taps = -(-solved // lanes), p.taps[-1]
    least = lanes // 2 if vectors == 1 else 8 * lanes // 5  # channels, else vectors along outputs waste fewer lanes
    few = given > FEW_CHANNELS and least < solved and vectors <= 2
    room = vectors * (taps + FEWEST_ROWS) < registers
    phases = p.stride[-1] if p.unknown is Unknown.X else 1
    known = 1 < taps <= MOST_INSIDE and p.dilation[-1] <= MOST_APART and phases <= MOST_PHASES
    return few and room and known


def lanes_sum(
    p: ConvProblem, lanes: int, registers: int, most: int | None = None, *, dots: bool = False
) -> Along | None:  # fmt: skip
    """What lanes sum along, of a problem as it was asked for; None where they are elements of the result.

    `most` is how many channels lanes are added for, where a unit is better at more (`units.most_added`); `dots`,
    whether there are dot products of bf16.
    """
    if adds_lanes(p, lanes, registers, most):
        return Along.CHANNELS
    alone = p.dtype == "f32" or (most is None and lanes >= LEAST_WIDENED)  # else a unit has more arithmetic
    if alone and adds_runs(p, lanes):
        return Along.RUNS
    long = p.dtype == "f32" or p.x_channels * prod(p.taps) >= LONG_ROW
    rows = (alone and long) or (dots and p.dtype == "bf16")
    return Along.ROWS if rows and multiplies_rows(p, lanes) else None


def adds_lanes(p: ConvProblem, lanes: int, registers: int, most: int | None = None) -> bool:
    """Whether an output is summed in vectors along channels of the input that lie side by side, lanes at the very end.

    Where few channels are solved for, no more than `most`, side by side as well, and a row has one phase. `p` is as it
    was asked for: what it can be made into depends on extents.
    """
    solves_y = p.unknown is Unknown.Y
    given, solved = (p.x_channels, p.y_channels) if solves_y else (p.y_channels, p.x_channels)
    sides = (p.x_strides, p.y_strides, p.y_extent) if solves_y else (p.y_strides, p.x_strides, p.x_extent)
    read, written, inner = sides
    dense = read[2] == 1 and (written[-1] == solved or inner[-1] == 1) and (solved == 1 or written[2] == 1)
    plain = p.groups == 1 and p.dtype == p.out_dtype != "f64" and not p.accumulate and p.unknown is not Unknown.W
    plain = plain and (p.dtype == "f32" or lanes >= LEAST_WIDENED)
    vectors = -(-given // lanes)
    parted = (most for share, most in MOST_PARTED if given < share * vectors * lanes)
    few = 0 < solved <= min([solved if most is None else most, (registers - 2) // (ROWS_ADDED + 1), *parted])
    whole = given % lanes == 0 or lanes * SIZES[COMPUTE[p.dtype]] == LINE  # else there are no masks to speak of
    worth = whole and given >= LEAST_GIVEN and vectors * prod(p.taps) >= FEWEST_ADDED
    return plain and dense and few and worth and (solves_y or (p.stride[-1] == 1 and p.taps[-1] <= MOST_AROUND))


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
    """Whether Y is summed in vectors along channels and taps, lanes at the very end: where a window is an image.

    Rows of the image and of the weights are read as they lie then, whole. Not of windows that do not overlap: patches
    are what larger images are cut into.
    """
    known = p.dtype == p.out_dtype != "f64" or p.dtype == "bf16"
    plain = p.unknown is Unknown.Y and known and not p.accumulate
    if not plain or 0 in (p.batch, p.x_channels, p.y_channels, *p.x_extent):
        return False
    if any(
        (y, x, low) != (1, taps, 0) for y, x, taps, low in zip(p.y_extent, p.x_extent, p.taps, p.pad_low, strict=True)
    ):
        return False
    if any(s >= taps > 1 for s, taps in zip(p.stride, p.taps, strict=True)):
        return False
    row = with_taps_merged(p)
    along = row.x_strides[2] == row.w_strides[2] == row.y_strides[2] == 1 and set(row.taps) == {1}
    # where vectors are not lines there are no masks to speak of
    whole = row.x_channels % lanes == 0 or lanes * SIZES[COMPUTE[p.dtype]] == LINE
    return along and whole and row.x_channels >= LEAST_ROW * lanes
