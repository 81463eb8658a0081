"""What moving numbers is taken to cost when plans are compared, and what caches are taken to hold."""

from typing import NamedTuple

LINE = 64  # bytes of a cache line
PAGE = 4096  # bytes, in which a core finds out what is read next: longer runs begin again with each
MOVE, TURN, SCALAR = 0.2, 0.5, 2.0  # cycles per number copied by vectors, transposed, one at a time
MOST_SKIPPED = 8  # step of an axis up to which whole vectors of it are loaded, and most of them dropped
MOST_SPREAD = 8  # channels per group up to which vectors may run across groups
SCATTERED = 0.8  # cycles more per weight, of lanes farther apart than rows, which are not side by side either
TURN_NARROW, TURN_ALONE = 1.0, 0.4  # likewise besides, of 16 bits that meet one tap of a patch, or the only one
COPIED = 0.7  # cycles for a result that is copied to where others are written in place
TURN_BACK = 0.6  # cycles per number that is transposed on its way out
TURN_PLANES = 1.1  # likewise of channels that are planes apart, one of each group
MOST_SUM_BYTES = 768 * 1024  # of sums that are vectors: more are fetched and stored for longer than they are added to
BEYOND_L2 = 2**20  # bytes of tensors that it does not hold
MEMORY_BYTES = 4.5  # per cycle, from where larger ones are
SPLIT = 0.15  # cycles per number and piece, beyond those of a copy
FEW_CYCLES = 3e4  # of arithmetic: more are worth rousing another thread for, if that costs little besides
MANY_CYCLES = 1e5  # and these in any case
BESIDES = 0.25  # of the cycles between, what is little
LEAST_CHANNELS = 16  # of the input, or of the rows, that are worth packing at a time
SLAB_BYTES = 256 * 1024  # of a slab, that L2 keeps beside all else
FAR_BYTES = 16.0  # per cycle, from beyond L2, fetched at the pace of the tiles
FAR_INPUT = 16 * 1024 * 1024  # bytes of an input that no cache of a core holds
CLAIM = 50.0  # cycles for a task more
LEAST_TASKS = 8  # that keep a few threads evenly busy
OVERFLOW = 0.2  # of the arithmetic, for every time that a buffer outgrows its share
ROW = 10.0  # cycles for a row more to copy
PAGE_AGAIN = 14.0  # cycles to come back to a page, each time that twice as many are met
MOST_BEYOND = 3.5  # times that counts at most
BEHIND = 0.35  # of the arithmetic, which all that hides behind
WAYS, SETS_BYTES = 8, 4096  # of L1, or more: lines that far apart, or a multiple, share a place for so many
LOOK = 2000.0  # cycles to look at what was noted of numbers that dot products read


def worth_sharing(cycles: float) -> float:
    """How much it counts that one thread does all of so many cycles of arithmetic, as a share of them."""
    return 0.0 if cycles <= FEW_CYCLES else BESIDES if cycles <= MANY_CYCLES else 1.0


class Moves(NamedTuple):
    """Cycles per number, if nothing else is said, measured, that depend on the length of vectors."""

    turn: float  # transposed
    back: float  # on its way out
    unpack: float  # from rows of outputs to positions
    apart: float  # neighbours in memory that belong to several planes or phases, or come from there
    part: float  # for all numbers of a group in a position, if these are a part of a line
    taken: float  # apart, on its way into vectors across groups
    part_back: float  # more, on its way out from a vector that its group does not fill
    phase_back: float  # more, if neighbours there are of several phases


LONG = Moves(TURN, TURN_BACK, TURN_BACK, TURN, 0.0, TURN, 0.0, 0.0)  # vectors as long as lines
SHORT = Moves(turn=0.6, back=0.7, unpack=3.0, apart=1.0, part=3.0, taken=0.7, part_back=1.5, phase_back=1.0)
