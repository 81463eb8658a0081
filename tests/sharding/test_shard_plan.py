"""Parts of operations: put together, or summed, they are the whole; and what they say of halos is true."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from cases import FUNCTIONS
from convgrad.errors import ShapeError
from convgrad.problem.canonicalize import ROLES
from convgrad.sharding import AXES, shard_plan
from convgrad.spec.definition import define
from convgrad.spec.resolve import resolve
from convgrad.spec.schemas import SCHEMAS
from strategies import geometries

OPS = [op for op in SCHEMAS if op != "BiasAddBackward"]
FORWARD = ("Convolution", "ConvTranspose")
AUTO_PADS = ("none", "same_upper", "same_lower", "valid")


@dataclass(frozen=True)
class Case:
    """An operation as a caller has it: shapes of its inputs, and attributes."""

    op: str
    shapes: tuple
    attributes: dict

    def inputs(self, rng):
        """Small integers: every sum is exact."""
        return [rng.integers(-4, 5, shape).astype(np.float32) for shape in self.shapes]

    def is_legal(self):
        try:
            resolve(self.op, self.attributes, self.shapes)
        except ShapeError:
            return False
        return True

    def plan(self, axis, parts, **keywords):
        return shard_plan(self.op, axis, parts, shapes=self.shapes, **self.attributes, **keywords)


@st.composite
def cases(draw, op=None):
    """Any operation, pads by name included."""
    op = op or draw(st.sampled_from(OPS))
    family = SCHEMAS[op].family
    g = draw(geometries(family))  # the windows of a convolution need not fill its image
    shapes = {"x": g.image_shape, "w": g.weights_shape, "y": g.window_shape}
    roles, attributes = ROLES[op], dict(g.attributes)
    if not SCHEMAS[op].attribute("output_padding"):
        attributes.pop("output_padding", None)
    inputs = [shapes[role] for role in roles[:-1]]
    if op in FORWARD and draw(st.booleans()):
        inputs.append((g.groups * (g.window_channels if roles[-1] == "y" else g.image_channels),))
    if SCHEMAS[op].shape_attribute:
        attributes[SCHEMAS[op].shape_attribute] = shapes[roles[-1]]
    case = Case(op, tuple(inputs), attributes)
    if op in FORWARD:
        by_name = replace(case, attributes=attributes | {"auto_pad": draw(st.sampled_from(AUTO_PADS))})
        return by_name if by_name.is_legal() else case
    return case


def put_together(plan, inputs, compute):
    """The whole, from what each part makes of its shares of the inputs; what no part writes stays NaN."""
    whole = np.full(plan.problem.output_shape, 0.0 if plan.needs_sum else np.nan)
    for part in plan.parts:
        if part.is_empty:
            continue
        result = compute(part, part.select(*inputs))
        if plan.needs_sum:
            whole += result
        else:
            whole[part.output.index] = result
    return whole


def by_definition(part, inputs):
    return define(part.problem, inputs)


def by_kernels(part, inputs):
    return FUNCTIONS[part.problem.op](*inputs, **part.attributes)


@st.composite
def sharded(draw, op=None):
    """A case, and a plan of up to five parts along any of its axes, some with boundaries of their own."""
    case = draw(cases(op))
    axis = draw(st.sampled_from([*AXES, *range(len(case.shapes[0]) - 2)]))
    parts = draw(st.integers(1, 5))
    plan = case.plan(axis, parts)
    if draw(st.booleans()):
        return case, plan

    def cut(extent):
        inner = draw(st.lists(st.integers(0, extent), min_size=parts - 1, max_size=parts - 1))
        return (0, *sorted(inner), extent)

    bounds = {tensor: cut(bounds[-1]) for tensor, bounds in plan.boundaries.items()}
    chosen = bounds if isinstance(axis, int) else next(iter(bounds.values()))
    return case, case.plan(axis, parts, boundaries=chosen)


@settings(max_examples=300, deadline=None)
@given(sharded(), st.integers(0, 99))
def test_parts_make_the_whole_by_definition(sharded, seed):
    case, plan = sharded
    inputs = case.inputs(np.random.default_rng(seed))
    assert_array_equal(put_together(plan, inputs, by_definition), define(plan.problem, inputs))


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
def test_parts_make_the_whole_by_kernels(op, data, seed):
    case, plan = data.draw(sharded(op))
    inputs = case.inputs(np.random.default_rng(seed))
    assert_array_equal(put_together(plan, inputs, by_kernels), FUNCTIONS[op](*inputs, **case.attributes))


@settings(max_examples=50, deadline=None)
@given(
    shape=st.lists(st.integers(0, 6), min_size=2, max_size=5).map(tuple),
    axis=st.sampled_from(["batch", "output_channels", 0, 1, 2]),
    parts=st.integers(1, 5),
    data_format=st.sampled_from(["NCX", "NXC"]),
)
def test_sums_of_a_bias_gradient(shape, axis, parts, data_format):
    axis = axis if isinstance(axis, str) or axis < len(shape) - 2 else "batch"
    plan = shard_plan("BiasAddBackward", axis, parts, shapes=[shape], data_format=data_format)
    diff_dst = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    others = tuple(n for n in range(len(shape)) if n != (1 if data_format == "NCX" else len(shape) - 1))
    assert_array_equal(put_together(plan, [diff_dst], by_kernels), diff_dst.sum(others))
    assert plan.needs_sum == (axis != "output_channels")


def met(problem, axis, windows, image):
    """The pairs of a window and an element that some tap joins, one by one."""
    low, step, dilation = problem.pads_begin[axis], problem.strides[axis], problem.dilations[axis]
    positions = ((p, p * step + r * dilation - low) for p in windows for r in range(problem.kernel[axis]))
    return [(p, x) for p, x in positions if x in image]


def hull(numbers):
    return (min(numbers), max(numbers) + 1) if numbers else None


@settings(max_examples=300, deadline=None)
@given(sharded())
def test_halos_are_what_is_needed_and_not_owned(sharded):
    _, plan = sharded
    if not isinstance(plan.axis, int):
        assert not any(share.fetches for part in plan.parts for share in (*part.inputs, part.output))
        return
    op = plan.problem.op
    roles = dict(zip(ROLES[op], (*SCHEMAS[op].inputs, SCHEMAS[op].output), strict=True))
    x, y = roles["x"], roles["y"]
    elements, windows = range(plan.boundaries[x][-1]), range(plan.boundaries[y][-1])
    for part in plan.parts:
        shares = {share.tensor: share for share in (*part.inputs, part.output)}
        if part.output.tensor == x:
            own = shares[x].owned
            share, span = shares[y], hull([p for p, _ in met(plan.problem, plan.axis, windows, range(*own))])
            begins = own[0] + plan.problem.pads_begin[plan.axis]
            if span and plan.problem.strides[plan.axis] * span[0] > begins:  # a pad would be negative
                span = span[0] - 1, span[1]
        else:
            needed = met(plan.problem, plan.axis, range(*shares[y].owned), elements)
            share, span = shares[x], hull([q for _, q in needed])
        assert share.span[0] == share.span[1] if span is None else share.span == span
        held = set(range(*share.owned)) | {e for fetch in share.fetches for e in range(fetch.start, fetch.stop)}
        assert set(range(*share.span)) <= held
        assert len(held) == share.owned[1] - share.owned[0] + sum(share.halo)
        bounds = plan.boundaries[share.tensor]
        for fetch in share.fetches:
            assert bounds[fetch.part] <= fetch.start < fetch.stop <= bounds[fetch.part + 1]
            assert (part.number, fetch) in plan.sends(share.tensor, fetch.part)


def test_a_halo_may_come_from_several_parts():
    plan = shard_plan("Convolution", 0, 4, shapes=[(1, 8, 1), (7, 1, 1)], pads_begin=[3], pads_end=[3])
    share = plan.parts[1].input("src")
    assert (share.span, share.owned, share.halo) == ((0, 7), (2, 4), (2, 3))
    assert [(fetch.part, fetch.start, fetch.stop) for fetch in share.fetches] == [(0, 0, 2), (2, 4, 6), (3, 6, 7)]


def test_an_output_padding_stays_on_the_other_axes(rng):
    """One that is a stride or more: the extents alone would tell another number of windows."""
    case = Case("ConvTransposeBackwardData", ((1, 6, 7, 1), (3, 3, 1, 1)), {"output_padding": (0, 2)})
    inputs = case.inputs(rng)
    for axis in (0, 1, "batch"):
        plan = case.plan(axis, 2)
        assert_array_equal(put_together(plan, inputs, by_definition), define(plan.problem, inputs))


def test_a_plan_prints_what_each_part_does():
    plan = shard_plan(
        "ConvTranspose", 0, 3, shapes=[(1, 4, 2), (2, 3, 2), (3,)], strides=[2], output_padding=[1], pads_begin=[1],
        boundaries={"dst": [0, 4, 8, 8], "src": [0, 2, 3, 4]},
    )  # fmt: skip
    assert str(plan) == (
        "ConvTranspose in 3 parts along spatial axis 0: src at [0, 2, 3, 4], dst at [0, 4, 8, 8]; "
        "the outputs lie side by side\n"
        "  part 0: dst[:, 0:4, :] from src[:, 0:3, :], weights, bias; pads [1] [1]\n"
        "      src: halo 0 + 1, 2:3 from part 1\n"
        "  part 1: dst[:, 4:8, :] from src[:, 2:4, :], weights, bias; pads [1] [0], output_padding [1]\n"
        "      src: halo 0 + 1, 3:4 from part 2\n"
        "  part 2: nothing to compute"
    )
