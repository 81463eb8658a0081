"""From an operation and one of its axes to its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convgrad.errors import AttributeRuleError
from convgrad.sharding.assignment import Assignment, extents_of
from convgrad.sharding.ownership import balanced, checked_boundaries
from convgrad.sharding.parts import ShardPlan
from convgrad.spec.attributes import integer
from convgrad.spec.resolve import Resolved, resolve
from convgrad.spec.schemas import ATTRIBUTE_ALIASES, schema_of

Ints = tuple[int, ...]

AXES = ("batch", "groups", "input_channels", "output_channels")  # besides the spatial ones, which are numbers


def shard_plan(
    op: str,
    axis: str | int,
    parts: int,
    *,
    shapes: Sequence[Sequence[int]],
    boundaries: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    auto_pad_rule: str = "code",
    **attributes: Any,
) -> ShardPlan:
    """How `parts` parts compute an operation together that is split along one axis.

    op          its name, such as "ConvTransposeBackwardData"
    axis        "batch", "groups", "input_channels" or "output_channels" (of the layer, whatever the operation solves
                for; within each group), or the number of a spatial axis, 0 being the outermost
    parts       how many, at least 1; those beyond the elements of the axis are empty
    shapes      of the inputs in their order, that of the bias too if there is one
    boundaries  what each part owns, parts + 1 ascending numbers from 0 to the extent; of a spatial axis by the names of
                the two tensors that have it, or of one of them. What is not given is `balanced`
    attributes  of the operation as its function takes them, dst_shape and weights_shape included

    A spatial axis of a gradient in the weights is split between windows: each part sums over those that it owns on the
    window side, and fetches what they meet on the image side.

    Raises AttributeRuleError and ShapeError, for what is wrong with the operation or with the axis.
    """
    problem = _resolve(op, shapes, attributes, auto_pad_rule)
    parts = integer(problem.op, "parts", parts, least=1)
    axis = _checked_axis(problem, axis)
    assignment = Assignment(problem, axis, _boundaries(problem, axis, parts, boundaries))
    plan = ShardPlan(
        problem=problem,
        axis=axis,
        boundaries=assignment.boundaries,
        needs_sum=assignment.needs_sum,
        parts=tuple(assignment.part(number) for number in range(parts)),
    )
    plan.validate()
    return plan


def _resolve(op: str, shapes: Sequence[Sequence[int]], attributes: dict[str, Any], auto_pad_rule: str) -> Resolved:
    schema = schema_of(op)
    given = {name: value for name, value in attributes.items() if value is not None}
    told = None
    for name in list(given):
        if schema.shape_attribute and ATTRIBUTE_ALIASES.get(name, name) == schema.shape_attribute:
            told = given.pop(name)
    rank = max(0, len(tuple(shapes[0])) - 2) if shapes else 0
    required = {attribute.name: (1,) * rank for attribute in schema.attributes if attribute.required}
    return resolve(op, required | given, shapes, shape_input=told, auto_pad_rule=auto_pad_rule)


def _checked_axis(problem: Resolved, axis: str | int) -> str | int:
    bias = problem.op == "BiasAddBackward"
    names = [name for name in AXES if not (bias and name in ("groups", "input_channels"))]
    if isinstance(axis, str):
        if axis in names:
            return axis
    elif not isinstance(axis, bool):
        number = integer(problem.op, "axis", axis)
        if number < problem.rank:
            return number
    spatial = f"a spatial axis from 0 to {problem.rank - 1}" if problem.rank else "no spatial axis, as there is none"
    raise AttributeRuleError(
        f"{problem.op}: axis is {axis!r}, but the operation can be split along {', '.join(names)} or {spatial}"
    )


def _boundaries(problem: Resolved, axis: str | int, parts: int, given: Any) -> dict[str, Ints]:
    """Of every tensor that is split."""
    extents = extents_of(problem, axis)
    if given is None:
        given = {}
    elif not isinstance(given, Mapping):
        if len(set(extents.values())) > 1:
            raise AttributeRuleError(
                f"{problem.op}: boundaries is a list, but along spatial axis {axis} {_listed(extents)}; give "
                "{tensor: boundaries}"
            )
        given = dict.fromkeys(extents, given)
    for tensor in given:
        if tensor not in extents:
            raise AttributeRuleError(
                f"{problem.op}: boundaries are given for {tensor!r}, but the axis {axis!r} is one of "
                f"{' and '.join(extents)}; leave them out"
            )
    if isinstance(axis, str) and given:  # one axis, whichever tensor tells how it is cut
        told = {tensor: tuple(bounds) for tensor, bounds in given.items()}
        if len(set(told.values())) > 1:
            raise AttributeRuleError(
                f"{problem.op}: boundaries of {axis} differ between {' and '.join(told)}; give them once"
            )
        given = dict.fromkeys(extents, next(iter(told.values())))
    return {
        tensor: checked_boundaries(problem.op, f"boundaries of {tensor}", given[tensor], extent=extent, parts=parts)
        if tensor in given
        else balanced(extent, parts)
        for tensor, extent in extents.items()
    }


def _listed(extents: Mapping[str, int]) -> str:
    return " and ".join(f"{tensor} has {extent} elements" for tensor, extent in extents.items())
