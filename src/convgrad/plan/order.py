"""In which order the products of one output are added up: the same whatever extents, batch and blocks are.

Runs of input channels, one after the other; in each of them tap by tap, the innermost axis fastest; at each tap channel
by channel. So an element has the same bits in a large problem and in a part of it, and in a batch and alone.

Where vectors run across groups of several channels, registers hold a row of positions, and channels come between the
taps of the outer axes and those of the innermost one. So they do where a vector or two hold all that are solved for
(`taps_inside`). Where groups have as many channels on either side, lanes may be added at the very end: for each of the
group's outputs one sum per input channel, tap by tap, and then these, by halves (`turned_data.py`).
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
