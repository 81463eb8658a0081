"""What a DataPlan reads or writes where it lies in memory: the input and the output; weights are a module beside."""

from __future__ import annotations

from math import gcd, prod

from convgrad.dtypes import SIZES
from convgrad.plan.costs import BEYOND_L2, LINE, MEMORY_BYTES, SETS_BYTES, WAYS
from convgrad.plan.general.data import DataPlan
from convgrad.plan.machine import Machine
from convgrad.values import replace

LARGE = 16 * 2**20  # bytes of tensors that no cache of a core holds
COLLIDING = 512  # bytes from a position to the next, or a multiple, of which a few fill all places of L1 for them
NEAR_TILES, MANY_GROUPS = 4, 8  # of a block, at least, and from which on it matters
WIDEST = 8  # vectors of channels side by side
NEAR_BYTES = 192 * 1024  # of all channels of the outputs of a block, and of what they are made of, which stay in L2
MEMORY_BOUND = 1.2  # of the cycles of the arithmetic, that memory takes at least where it decides
BORDER = 8  # products at the border, for each output of a row, that cost as much as to pack what the row meets
WIDENING_TAPS = 16  # of an output, each of which widens what it meets
MOST_KNOWN_PHASES = 4  # phases of an axis that may be emitted one by one


def reads_in_place(plan: DataPlan) -> bool:
    """Whether whole vectors can be read from the input and written to the output as they lie in memory."""
    p, axes = plan.problem, plan.axes
    given, solved = (p.x_strides, p.y_strides) if plan.solves_y else (p.y_strides, p.x_strides)
    if p.accumulate or plan.pixels or max(plan.tile[:-1]) > 1:
        return False
    if p.dtype != plan.compute and not plan.spread:  # scalars would be converted again and again
        return False
    if plan.i_blocks > 1 or len(axes[-1].phases) > MOST_KNOWN_PHASES or axes[-1].count < plan.tile[-1]:
        return False
    if plan.spread:
        depthwise = plan.in_channels == plan.out_channels == 1
        return depthwise and given[1] == solved[1] == 1 and p.groups >= plan.lane_groups
    return given[2] == solved[2] == 1 and plan.fills_vectors and not axes[-1].clipped


def rows_of_l1(plan: DataPlan) -> int:
    """Outputs of a row whose inputs, read in place, L1 holds a line each of: steps of powers of two share sets."""
    step = SIZES[plan.problem.dtype] * plan.axes[-1].in_step
    return lines_of_l1(step * abs(plan.problem.strides[plan.problem.given][-1]))


def lines_of_l1(step: int) -> int:
    """Lines so many bytes apart that L1 holds."""
    return WAYS * max(1, SETS_BYTES // gcd(step, SETS_BYTES)) if step else WAYS * SETS_BYTES


def is_mostly_border(plan: DataPlan) -> bool:
    """Whether outputs that do not meet every tap, made one by one, take longer than to pack what all outputs meet."""
    axis = plan.axes[-1]
    inside = min(high - low for low, high in map(axis.inside, axis.phases))
    taps = prod(max(phase.taps for phase in one.phases) for one in plan.axes)
    return (axis.count - max(inside, 0)) * taps > BORDER * axis.count


def widens_again(plan: DataPlan) -> bool:
    """Whether numbers of 16 bits are met by so many taps that they had better be widened once, as they are packed."""
    taps = plan.taps / prod(len(axis.phases) for axis in plan.axes)
    return plan.problem.dtype != plan.compute and taps > WIDENING_TAPS


def widened(plan: DataPlan, cycles: float, machine: Machine) -> DataPlan:
    """With many channels side by side in a tile, where memory far away decides: it likes long runs.

    Where strides leave little arithmetic to a number, or vectors of neighbours push each other out of L1, L3 is far.
    """
    p = plan.problem
    moved = SIZES[plan.compute] * (prod(p.shapes["x"]) + prod(p.shapes["y"]))  # of 16 bits, lines in halves are as bad
    share = moved / MEMORY_BYTES / cycles
    step = p.strides[p.given][-1]
    collide = SIZES[p.dtype] * step % COLLIDING == 0
    if not plan.spread or share < 2 or moved < (BEYOND_L2 if collide or share > 2.5 else LARGE):
        return plan
    needed = -(-p.groups // plan.lanes)
    most = min(WIDEST, needed, (machine.registers - 2) // 2)  # so that there is a sum beside every vector of weights
    vectors = min(range(most, 0, -1), key=lambda many: -(-needed // many) * many)
    width, rows = vectors * plan.lanes, (machine.registers - vectors - 2) // vectors
    if width <= plan.width or p.groups < width:
        return plan
    return replace(plan, width=width, lane_groups=width, tile=(*plan.tile[:-1], rows))


def outputs_near(plan: DataPlan, cycles: float) -> int | None:
    """Outputs of a block of one group, of which lines that come along are there when other groups want them.

    Of one tap, where all of a position lies together, and memory far away decides; None elsewhere.
    """
    p, given, tile = plan.problem, plan.problem.given, plan.tile[-1]
    if p.groups < MANY_GROUPS or plan.spread or plan.pixels or plan.taps > 1:
        return None
    if SIZES[p.dtype] * max(plan.in_channels, plan.out_channels) <= LINE:  # which are fetched one by one anyway
        return None
    moved = p.bytes_of("x") + p.bytes_of("y")
    if moved < 3 * LARGE or moved / MEMORY_BYTES < MEMORY_BOUND * cycles:
        return None
    step = plan.axes[-1].in_step * abs(p.strides[given][-1]) + plan.axes[-1].out_step * abs(p.strides[p.solved][-1])
    near = max(NEAR_TILES, NEAR_BYTES // (SIZES[p.dtype] * max(1, step)) // tile) * tile
    return near if near < plan.axes[-1].count else None


def writes_in_place(plan: DataPlan) -> bool:
    """Whether whole vectors can be written to the output as it lies in memory."""
    p = plan.problem
    solved = p.strides[p.solved]
    if p.accumulate or plan.i_blocks > 1:
        return False
    for n, axis in enumerate(plan.axes):
        span = plan.span(n)
        rests = [phase.count % plan.block[n] for phase in axis.phases]
        if plan.tile[n] > 1 and any(0 < rest < span for rest in rests) and not plan.may_begin_early(n):
            return False
        if n < len(plan.axes) - 1 and span < plan.tile[n]:
            return False
    if plan.pixels:
        wide = plan.span(len(plan.axes) - 1) >= plan.lanes and solved[-1] == 1 == plan.axes[-1].out_step
        return wide and plan.out_channels >= plan.width
    if plan.span(len(plan.axes) - 1) < plan.tile[-1]:
        return False
    if plan.spread:
        side_by_side = (plan.out_channels == 1 or solved[2] == 1) and solved[1] == plan.out_channels
        return side_by_side and plan.lane_groups * plan.out_channels == plan.width and p.groups >= plan.lane_groups
    return solved[2] == 1 and plan.fills_vectors
