"""Problems at random, and the check that a kernel solves one exactly."""

from dataclasses import fields, replace
from itertools import product
from math import prod

import numpy as np

from codegen.buffers import StridedArray
from codegen.emitted import run_here
from convgrad.codegen.lower import lower
from convgrad.dtypes import COMPUTE, numpy_dtype
from convgrad.plan.by_matrix.across_rows import AcrossRowsPlan, GatheredDataPlan
from convgrad.plan.by_matrix.matrix_weights import MatrixWeightsPlan
from convgrad.plan.by_matrix.shifted_pairs import ShiftedPairsPlan
from convgrad.plan.by_matrix.tile_by_tile import TileByTilePlan
from convgrad.plan.by_matrix.window_weights import WindowWeightsPlan
from convgrad.plan.choose import variants
from convgrad.plan.depthwise.depthwise_weights import DepthwiseWeightsPlan
from convgrad.plan.depthwise.plane_data import PlaneDataPlan
from convgrad.plan.depthwise.plane_row_weights import PlaneRowWeightsPlan
from convgrad.plan.depthwise.plane_rows import PlaneRowsPlan
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.few_channels.patch_data import PatchDataPlan
from convgrad.plan.few_channels.phase_lanes import PhaseLanesPlan
from convgrad.plan.few_channels.run_sums import RunSumsPlan
from convgrad.plan.few_channels.run_weights import RunWeightsPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.sides_in_place import ways_in_place
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.in_place.in_place_weights import InPlaceWeightsPlan
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import ConvProblem, Unknown

CHANNELS = (1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)
MOST_PRODUCTS = 150_000


# --- the oracle


def solve(problem, x, w, y):
    """The unknown in float64: one contraction per tap over the windows that meet the image."""
    letters = "pqrstu"[: problem.rank]
    result = np.zeros(problem.shapes[problem.solved])
    axes = list(zip(problem.x_extent, problem.y_extent, problem.stride, strict=True))
    for tap in product(*map(range, problem.taps)):
        offsets = [d * r - low for d, r, low in zip(problem.dilation, tap, problem.pad_low, strict=True)]
        met = [_met(*axis, offset) for axis, offset in zip(axes, offsets, strict=True)]
        at_x, at_y = ((..., *slices) for slices in zip(*met, strict=True))
        at_w = (slice(None),) * 3 + tap
        given = [array[at] for array, at in ((x, at_x), (w, at_w), (y, at_y)) if array is not None]
        if not all(part.size for part in given):  # einsum multiplies by what lies where an array holds nothing
            continue
        if problem.unknown is Unknown.Y:
            result[at_y] += np.einsum(f"ngc{letters},gkc->ngk{letters}", x[at_x], w[at_w])
        elif problem.unknown is Unknown.X:
            result[at_x] += np.einsum(f"ngk{letters},gkc->ngc{letters}", y[at_y], w[at_w])
        else:
            result[at_w] = np.einsum(f"ngc{letters},ngk{letters}->gkc", x[at_x], y[at_y])
    return result


def _met(image, windows, stride, offset):
    """Elements i · stride + offset of an image, and the windows i that meet them."""
    first = max(0, -(offset // stride))
    stop = min(windows, (image - 1 - offset) // stride + 1)
    if first >= stop:
        return slice(0), slice(0)
    return slice(first * stride + offset, (stop - 1) * stride + offset + 1, stride), slice(first, stop)


# --- the check


def check(problem, isa, *, variant=0, seed=0, low=False, alter=None, run=run_here):
    """Assert that the kernel of a plan gives the exact result and touches nothing else; failures rebuild themselves.

    `variant` counts the ways to lay out vectors, best first; `alter` seeds a change of the plan's blocks.
    """
    machine = machine_for(isa)
    plans = list(variants(problem, machine))
    plan = plans[variant % len(plans)]
    if alter is not None:
        plan = altered(plan, np.random.default_rng(alter))
    line = f"check({rebuilding(problem)}, {isa!r}, variant={variant}, seed={seed}, low={low}, alter={alter})"
    try:
        check_plan(problem, plan, machine, seed, low, run)
    except AssertionError as error:
        raise AssertionError(f"{line}\n{plan}\n{error}") from None
    return plan


def check_plan(problem, plan, machine, seed=0, low=False, run=run_here):
    """The same of a plan that need not be among those of the planner; failures tell no more than they find."""
    rng = np.random.default_rng(seed)
    unknown = problem.unknown.value
    arrays, values = {}, {}
    for name, shape in problem.shapes.items():
        dtype = numpy_dtype(problem.out_dtype if name == unknown else problem.dtype)
        array = arrays[name] = StridedArray(shape, problem.strides[name], dtype, low=low)
        if name != unknown or problem.accumulate:
            array.view[...] = rng.integers(-2, 3, shape).astype(dtype)
            values[name] = array.view.astype(np.float64)
    start = values.pop(unknown, 0.0)
    exact = start + solve(problem, **({"x": None, "w": None, "y": None} | values))
    results = [(arrays[unknown], exact)]
    given = [array for name, array in arrays.items() if name != unknown]
    bias = None
    if problem.bias:
        groups, channels = problem.shapes[unknown][1:3]
        bias = StridedArray((groups * channels,), (problem.bias_stride,), numpy_dtype(problem.dtype), low=low)
        bias.view[...] = rng.integers(-2, 3, groups * channels).astype(bias.view.dtype)
        exact += bias.view.astype(np.float64).reshape(groups, channels, *[1] * problem.rank)
        given.append(bias)
    if problem.bias_gradient:
        dtype = numpy_dtype(problem.out_dtype)
        bias = StridedArray((problem.bias_length,), (problem.bias_stride,), dtype, low=low)
        if problem.accumulate:
            bias.view[...] = rng.integers(-2, 3, problem.bias_length).astype(dtype)
        start = bias.view.astype(np.float64) if problem.accumulate else 0.0
        axes = (0, *range(3, problem.rank + 3))
        results.append((bias, start + values[problem.bias_gradient].sum(axes).reshape(-1)))
    before = [array.buffer.inside.copy() for array in given]
    ran = run(lower(plan), machine, [*(arrays[name] for name in "xwy"), bias], low=low) or []
    assert not any(symbol.startswith("again.") for symbol in ran), "numbers that are not of the arrays were looked at"
    for array, held in zip(given, before, strict=True):
        assert np.array_equal(array.buffer.inside, held), "an input was written to"
    for result, wanted in results:
        np.testing.assert_array_equal(
            result.view.astype(np.float64), wanted.astype(np.float32).astype(result.view.dtype).astype(np.float64)
        )
        assert result.only_elements_changed(), "something was written beside the elements of the result"


def rebuilding(problem):
    """Python that makes an equal problem."""
    text = (f"{field.name}={getattr(problem, field.name)!r}" for field in fields(problem) if field.name != "unknown")
    return f"ConvProblem(unknown=Unknown.{problem.unknown.name}, {', '.join(text)})"


def in_turn(number, *ways):
    """One of several ways to test a case, by its number: each way meets many cases, and none is compiled in all."""
    return ways[number % len(ways)]


# --- plans, changed


def altered(plan, rng):
    """The plan with other blocks, shares and chunks, as the planner would choose for larger problems."""
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        return _altered_planes(plan, rng)
    if isinstance(plan, PatchDataPlan):  # whose blocks are written in place, and sum all channels at once
        return replace(plan, blocks_per_task=int(rng.integers(1, plan.lane_blocks + 1)))
    if isinstance(plan, PhaseLanesPlan):  # whose tasks have all lanes and channels
        most = [-(-axis.count // tile) for axis, tile in zip(plan.axes, plan.tile, strict=True)]
        return replace(plan, block=tuple(int(rng.integers(1, m + 1)) * t for m, t in zip(most, plan.tile, strict=True)))
    return _altered_data(plan, rng) if isinstance(plan, DataPlan) else _altered_weights(plan, rng)


def _altered_data(plan, rng):
    changes = {"blocks_per_task": int(rng.integers(1, plan.lane_blocks + 1))}
    if not plan.reads_in_place:
        most = [-(-axis.count // tile) for axis, tile in zip(plan.axes, plan.tile, strict=True)]
        changes["block"] = tuple(int(rng.integers(1, m + 1)) * t for m, t in zip(most, plan.tile, strict=True))
        changes["writes_in_place"] = False
        if isinstance(plan, AcrossRowsPlan):
            changes["block"] = _altered_rows(plan, rng)
        if isinstance(plan, TileByTilePlan):
            changes["block"] = _altered_windows(plan, rng)
        elif not plan.spread:
            i_block = int(rng.integers(1, max(1, plan.in_channels) + 1))
            changes["i_block"] = -(-i_block // plan.channel_unit) * plan.channel_unit
            channels_beside = bool(rng.integers(2)) and not plan.pixels
            changes["pixel_major"] = channels_beside or isinstance(plan, RunSumsPlan)
    changes["packs_weights"] = bool(rng.integers(2)) and plan.may_pack_weights
    changes["reads_weights"] = bool(rng.integers(2)) and plan.may_read_weights
    changes["packs_weights"] &= not changes["reads_weights"]
    plan = replace(plan, **changes, bundle=1)
    return replace(plan, bundle=int(rng.integers(1, plan.group_blocks + 1))) if plan.may_bundle else plan


def _altered_rows(plan, rng):
    """Outputs of whole rows; what is gathered is whole on all axes inside of one."""
    counts = [axis.count for axis in plan.axes]
    block = [int(rng.integers(1, count + 1)) for count in counts[:-1]]
    if isinstance(plan, GatheredDataPlan):
        n = int(rng.integers(len(block)))
        block = [*[1] * n, block[n], *counts[n + 1 : -1]]
    return (*block, counts[-1])


def _altered_windows(plan, rng):
    """Outputs that can be written: whole axes inside of one that is cut, perhaps the last."""
    counts, n = [axis.count for axis in plan.axes], int(rng.integers(len(plan.axes)))
    block = (*[1] * n, int(rng.integers(1, counts[n] + 1)), *counts[n + 1 :])
    return block if replace(plan, block=block).can_write else plan.block


def _altered_weights(plan, rng):
    if isinstance(plan, InPlaceWeightsPlan):
        return plan  # whose blocks are rows of one image, and shares whole tiles
    block = list(plan.block)
    if isinstance(plan, DepthwiseWeightsPlan):  # whose blocks are whole tiles of rows, of one image and plane
        most = -(-plan.axes[-2].windows // plan.rows)
        block[-2] = int(rng.integers(1, max(1, most) + 1)) * plan.rows
        changed = replace(plan, block=tuple(block))
        return replace(changed, chunks=int(rng.integers(1, max(1, min(8, prod(changed.block_grid))) + 1)))
    for n in range(len(block) - (1 if plan.direct else 0)):
        block[n] = int(rng.integers(1, max(1, plan.axes[n].windows) + 1))
    if isinstance(plan, ShiftedPairsPlan) and block[-1] % 2:  # whose blocks begin with pairs
        block[-1] = min(block[-1] + 1, max(1, plan.axes[-1].windows))
    tiles = isinstance(plan, MatrixWeightsPlan)
    changed = replace(plan, block=tuple(block), unroll=1 if tiles else int(rng.integers(1, 5)))
    changed = replace(changed, chunks=int(rng.integers(1, max(1, min(8, prod(changed.block_grid))) + 1)))
    if isinstance(plan, RunWeightsPlan):
        return _altered_tiles(changed, rng)
    if isinstance(plan, WindowWeightsPlan):  # whose tasks have all channels of x
        return replace(changed, lane_shares=int(rng.integers(1, max(1, plan.lane_blocks) + 1)))
    if not plan.spread:
        tiles = -(-plan.row_count // plan.row_channels)
        changed = replace(
            changed,
            lane_shares=int(rng.integers(1, max(1, plan.lane_blocks) + 1)),
            row_shares=-(-tiles // int(rng.integers(1, max(1, tiles) + 1))),  # none of them empty
            x_pixel_major=bool(rng.integers(2)),
            rows_together=0 if isinstance(plan, MatrixWeightsPlan) else int(rng.integers(3)) * plan.row_channels,
        )
    if type(plan) is WeightsPlan:
        rows, lanes = list(ways_in_place(plan))[-1 if rng.integers(3) else 0]
        changed = replace(
            changed,
            at_once=int(rng.integers(1, plan.bundles + 1)) if plan.may_group else 1,
            rows_in_place=rows and bool(rng.integers(2)),
            lanes_in_place=lanes and bool(rng.integers(2)),
        )
    return changed


def _altered_tiles(plan, rng):
    """Of runs, which nobody shares."""
    rows, vectors = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    in_place = plan.rows_in_place and bool(rng.integers(2))
    return replace(plan, row_channels=rows, vectors=vectors, tile_vectors=vectors, rows_in_place=in_place)


def _altered_planes(plan, rng):
    data = isinstance(plan, PlaneDataPlan)
    extents = [axis.count if data else axis.windows for axis in plan.axes]
    units = (*(1,) * (len(plan.axes) - 2), plan.rows, plan.width if data else plan.lanes)
    most = [-(-extent // unit) for extent, unit in zip(extents, units, strict=True)]
    most[0] = 1
    block = tuple(int(rng.integers(1, max(1, m) + 1)) * unit for m, unit in zip(most, units, strict=True))
    if isinstance(plan, PlaneRowsPlan | PlaneRowWeightsPlan):  # whose rows are whole
        block = (*block[:-1], plan.block[-1])
    changed = replace(plan, block=block, run=int(rng.integers(1, plan.problem.groups + 1)))
    if data:
        if isinstance(plan, PlaneRowsPlan):
            return replace(changed, fetches=((), ("x",), ("y",), ("x", "y"))[rng.integers(4)])
        return replace(changed, masks=plan.masks and bool(rng.integers(2)))
    if isinstance(plan, PlaneRowWeightsPlan):
        changed = replace(changed, fetches_ahead=bool(rng.integers(2)))
    return replace(changed, chunks=int(rng.integers(1, max(1, min(8, prod(changed.block_grid))) + 1)))


# --- problems


def random_problem(rng):
    """Any unknown, one to four axes, all types and strides; small enough for the oracle."""
    while True:
        problem = _draw(rng)
        taps = prod(problem.taps) * prod(problem.y_extent)
        products = taps * problem.batch * problem.groups * problem.x_channels * problem.y_channels
        if products <= MOST_PRODUCTS and all(map(prod, problem.shapes.values())):
            return problem


def _draw(rng):
    def pick(*choices):
        return choices[rng.integers(len(choices))]

    unknown = pick(*Unknown)
    rank = pick(1, 1, 2, 2, 2, 3, 4)
    groups = pick(1, 1, 1, 2, 3, 5, 16, 17, 33)
    few = groups > 5
    channels = (1, 1, 2, 3) if few else CHANNELS
    c, k = (1, 1) if few and rng.integers(2) else (pick(*channels), pick(*channels))
    axes = [_axis(rng, 6 if rank > 2 else 20 if rank == 2 else 70) for _ in range(rank)]
    x_extent, y_extent, taps, stride, dilation, low = zip(*axes, strict=True)
    batch = pick(1, 1, 2, 3)
    shapes = {
        "x": (batch, groups, c, *x_extent),
        "w": (groups, k, c, *taps),
        "y": (batch, groups, k, *y_extent),
    }
    dtype = pick("f32", "f32", "f32", "bf16", "f16", "f64")
    strides = {name: strides_for(rng, name, shape, name == unknown.value) for name, shape in shapes.items()}
    problem = ConvProblem(
        unknown=unknown, batch=batch, groups=groups, x_channels=c, y_channels=k, x_extent=x_extent, y_extent=y_extent,
        taps=taps, stride=stride, dilation=dilation, pad_low=low,
        x_strides=strides["x"], w_strides=strides["w"], y_strides=strides["y"],
        dtype=dtype, out_dtype=pick(dtype, dtype, "f32") if COMPUTE[dtype] == "f32" else dtype,
        bias=unknown is not Unknown.W and pick(False, False, True), bias_stride=pick(1, 1, 2, -1, 0),
        accumulate=pick(False, False, True),
    )  # fmt: skip
    if unknown is Unknown.W:  # the bias gradient is a result, whose elements lie apart
        problem = replace(problem, bias_gradient=pick("", "x", "y"), bias_stride=problem.bias_stride or 3)
    return problem


def _axis(rng, most):
    """Extents that fit a kernel, or nearly, with pads up to beyond the kernel."""
    taps, stride, dilation = int(rng.integers(1, 5)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    if rng.integers(2):
        stride = dilation = 1
    reach = dilation * (taps - 1) + 1
    windows = int(rng.integers(1, max(2, most // stride)))
    low = int(rng.integers(0, reach + 3)) if rng.integers(4) == 0 else int(rng.integers(0, reach // 2 + 1))
    high = int(rng.integers(0, reach + 3)) if rng.integers(4) == 0 else int(rng.integers(0, reach // 2 + 1))
    image = max(1, stride * (windows - 1) + reach - low - high + int(rng.integers(0, stride)))
    return image, windows, taps, stride, dilation, low


def strides_for(rng, name, shape, solved):
    """Dense in one of the usual orders, or any order with gaps, backwards axes and, for inputs, repeated ones."""
    axes = list(range(len(shape)))
    usual = [axes, [0, *axes[3:], 1, 2], [1, *axes[3:], 0, 2] if name == "x" else [*axes[3:], 2, 0, 1]]
    kind = rng.integers(5)
    if kind < 3:
        return strides_in(usual[kind], shape)
    order = list(map(int, rng.permutation(axes)))
    gaps = [int(g) for g in rng.choice([1, 1, 1, 2], len(shape))]
    signs = [int(s) for s in rng.choice([1, 1, 1, -1] if solved else [1, 1, 1, -1, 0], len(shape))]
    return tuple(s * sign for s, sign in zip(strides_in(order, shape, gaps), signs, strict=True))


def strides_in(order, shape, gaps=None):
    """Strides of an array whose axes lie in this order, outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        step *= gaps[axis] if gaps else 1
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)
