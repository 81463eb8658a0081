"""In which order the products of one output are added up: the same whatever extents, batch and blocks are.

Runs of input channels, one after the other; in each of them tap by tap, the innermost axis fastest; at each tap channel
by channel. So an element has the same bits in a large problem and in a part of it, and in a batch and alone.

Where vectors run across groups of several channels, registers hold a row of positions, and channels come between the
taps of the outer axes and those of the innermost one. So they do where a vector or two hold all that are solved for
(`taps_inside`). Where groups have as many channels on either side, lanes may be added at the very end: for each of the
group's outputs one sum per input channel, tap by tap, and then these, by halves (`turned_data.py`).

Where a few channels are made of many that lie side by side (`along.adds_lanes`), a lane sums every so many-th channel
of the input: for each tap of the outer axes channel by channel, and for each of these the taps of the innermost axis if
they are written out, else tap by tap; then lanes are added, by halves (`lane_sums.py`).

Where channels solved for would leave lanes empty and windows are apart by strides (`along.adds_runs`), a lane sums
every so many-th number of what a row of taps meets, row by row; then lanes are added (`run_sums.py`).

Where a window is the whole image, without padding, and what is given lies in memory as a row of weights does
(`along.multiplies_rows`), for Y that is channels and taps, for X channels, a lane sums every so many-th number of that
run, in the order of memory; then lanes are added (`row_products.py`).
"""

from __future__ import annotations

from math import prod

from convgrad.problem.conv import ConvProblem, Unknown

FEW_CHANNELS = 4
FEW_OUTPUTS = 16  # output channels below which vectors mostly run along outputs
LONG_RUN, SHORT_RUN, RUN_FOR_FEW = 64, 32, 16  # channels
FEW_TAPS = 9
MOST_INSIDE, MOST_APART = 7, 2  # taps of the innermost axis, and their dilation
MOST_PHASES = 4
MOST_SHUFFLED = 64  # taps and channels that share what is put together in registers, across groups
FEWEST_ROWS = 8  # of a tile, which hide how long a multiply-add takes; there are registers for them


IN_TURN = "runs of channels in turn"  # the common order; others are told by plans
_RUNS_OF = ", runs of "  # channels, which units choose


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
