"""The parts of an operation whose axis is cut at given boundaries: shares of every tensor, and what they make."""

from __future__ import annotations

from math import prod
from typing import Any

from convgrad.problem.canonicalize import ROLES
from convgrad.sharding.ownership import owners
from convgrad.sharding.parts import Fetch, Part, Selection, Share
from convgrad.sharding.spatial import spatial_axes
from convgrad.spec.resolve import Resolved, resolve
from convgrad.spec.schemas import schema_of
from convgrad.spec.weights import LETTERS, letter_axes
from convgrad.values import frozen

Ints = tuple[int, ...]
Span = tuple[int, int]

_AXES = {"x": "ngc", "w": "gkc", "y": "ngk"}  # of the factors of Φ, but for the spatial ones


def tensors_of(problem: Resolved) -> dict[str, str]:
    """The names of the tensors of an operation by what they are in Φ: x, w or y. BiasAddBackward has no x."""
    schema, roles = schema_of(problem.op), ROLES[problem.op]
    return {**dict(zip(roles, schema.inputs, strict=False)), roles[-1]: schema.output}


def extents_of(problem: Resolved, axis: str | int) -> dict[str, int]:
    """The extent of an axis in every tensor that has it: in groups, in channels of a group, or in elements."""
    tensors = tensors_of(problem)
    if isinstance(axis, int):
        extents = {"x": problem.image_extent[axis], "y": problem.window_extent[axis]}
        return {tensor: extents[role] for role, tensor in tensors.items() if role in extents}
    letter = _letter(problem, axis)
    extent = {"n": problem.batch, "g": problem.groups, "c": _per_group(problem, "x"), "k": _per_group(problem, "y")}
    return {tensor: extent[letter] for role, tensor in tensors.items() if letter in _AXES[role]}


def _letter(problem: Resolved, axis: str) -> str:
    """What an axis of the layer is called in Φ."""
    transposed = problem.op.startswith("ConvTranspose")
    channels = {"input_channels": "kc", "output_channels": "ck"}
    return {"batch": "n", "groups": "g"}.get(axis) or channels[axis][0 if transposed else 1]


def _per_group(problem: Resolved, role: str) -> int:
    """Channels of one group of x or y."""
    return (problem.image_channels if role == "x" else problem.window_channels) // problem.groups


@frozen
class Assignment:
    """Which part of an operation does what."""

    problem: Resolved
    axis: str | int
    boundaries: dict[str, Ints]  # of every tensor that has the axis

    @property
    def needs_sum(self) -> bool:
        """Whether the operation sums over the axis: then its output does not have it."""
        return schema_of(self.problem.op).output not in self.boundaries

    def part(self, number: int) -> Part:
        """All of one part."""
        spans, geometry = self._spatial(number) if isinstance(self.axis, int) else self._plain(number)
        shares = {tensor: self._share(tensor, role, spans, number) for role, tensor in tensors_of(self.problem).items()}
        schema = schema_of(self.problem.op)
        inputs = [shares[name] for name in schema.inputs]
        if len(self.problem.input_shapes) == 3 and (not self.needs_sum or number == self._adds_the_bias()):
            inputs.append(self._bias(spans.get(schema.output)))
        output = shares[schema.output]
        problem = None
        if prod(output.shape) and (not self.needs_sum or len(inputs) == 3 or all(prod(one.shape) for one in inputs)):
            told = output.shape if schema.shape_attribute else None
            problem = resolve(self.problem.op, geometry, [share.shape for share in inputs], shape_input=told)
        return Part(number=number, problem=problem, inputs=tuple(inputs), output=output)

    def _owned(self, tensor: str, number: int) -> Span:
        bounds = self.boundaries[tensor]
        return bounds[number], bounds[number + 1]

    def _adds_the_bias(self) -> int:
        """The part of a sum that does: the first that has something to sum."""
        bounds = next(iter(self.boundaries.values()))
        return next((n for n in range(len(bounds) - 1) if bounds[n] < bounds[n + 1]), 0)

    # --- what a part reads and writes along the axis, and the attributes of its problem

    def _plain(self, number: int) -> tuple[dict[str, Span], dict[str, Any]]:
        spans = {tensor: self._owned(tensor, number) for tensor in self.boundaries}
        geometry = _attributes(self.problem, spatial_axes(self.problem))
        if self.axis == "groups":
            start, stop = next(iter(spans.values()))
            geometry["groups"] = stop - start
        return spans, geometry

    def _spatial(self, number: int) -> tuple[dict[str, Span], dict[str, Any]]:
        assert isinstance(self.axis, int)
        tensors, axes = tensors_of(self.problem), list(spatial_axes(self.problem))
        if "x" not in tensors:  # a plain sum
            return {tensors["y"]: self._owned(tensors["y"], number)}, _attributes(self.problem, axes)
        if ROLES[self.problem.op][-1] == "x":
            image = self._owned(tensors["x"], number)
            windows, axes[self.axis] = axes[self.axis].part_of_image(image)
        else:
            windows = self._owned(tensors["y"], number)
            image, axes[self.axis] = axes[self.axis].part_of_windows(windows)
        return {tensors["x"]: image, tensors["y"]: windows}, _attributes(self.problem, axes)

    # --- shares of tensors

    def _share(self, tensor: str, role: str, spans: dict[str, Span], number: int) -> Share:
        schema = schema_of(self.problem.op)
        whole = self.problem.output_shape
        if tensor != schema.output:
            whole = self.problem.input_shapes[schema.inputs.index(tensor)]
        if tensor not in spans:
            return Share(tensor=tensor, whole=whole)
        span, owned = spans[tensor], self._owned(tensor, number)
        if tensor == "diff_bias":
            selection = self._channels("y", 0, span)
        else:
            selection = self._of_weights(span) if role == "w" else self._of_activation(role, span)
        fetches = (
            Fetch(part=part, start=start, stop=stop)
            for part, start, stop in owners(self.boundaries[tensor], *span)
            if part != number
        )
        return Share(tensor=tensor, whole=whole, selection=selection, span=span, owned=owned, fetches=tuple(fetches))

    def _of_activation(self, role: str, span: Span) -> Selection:
        channels_first = self.problem.data_format == "NCX"
        if isinstance(self.axis, int):
            extent = self.problem.image_extent if role == "x" else self.problem.window_extent
            place = self.axis + (2 if channels_first else 1)
            return Selection(axis=place, start=span[0], stop=span[1], run=extent[self.axis])
        if self.axis == "batch":
            return Selection(axis=0, start=span[0], stop=span[1], run=self.problem.batch)
        return self._channels(role, 1 if channels_first else self.problem.rank + 1, span)

    def _channels(self, role: str, place: int, span: Span) -> Selection:
        """Of an axis that counts the channels of x or y of all groups: whole groups, or channels of each."""
        each, groups = _per_group(self.problem, role), self.problem.groups
        if self.axis == "groups":
            return Selection(axis=place, start=span[0] * each, stop=span[1] * each, run=groups * each)
        return Selection(axis=place, start=span[0], stop=span[1], runs=groups, run=each)

    def _of_weights(self, span: Span) -> Selection:
        """One of the two letters counts the channels of all groups, the other one those of one group."""
        problem = self.problem
        places = letter_axes(problem.weights_format, problem.rank)
        family = "transposed" if problem.op.startswith("ConvTranspose") else "convolution"
        window, image = (places[letter] for letter in LETTERS[family])
        full, short = ((window, "y"), image) if problem.weights_convention == "library" else ((image, "x"), window)
        role = "x" if _letter(problem, str(self.axis)) == "c" else "y"
        if self.axis == "groups" or role == full[1]:
            return self._channels(full[1], full[0], span)
        return Selection(axis=short, start=span[0], stop=span[1], run=_per_group(problem, role))

    def _bias(self, span: Span | None) -> Share:
        """Of the channels that the part gives; like the output, all of them unless these are what is split."""
        whole = self.problem.input_shapes[2]
        if self.axis not in ("groups", "output_channels") or span is None:
            return Share(tensor="bias", whole=whole)
        role = ROLES[self.problem.op][-1]
        return Share(tensor="bias", whole=whole, selection=self._channels(role, 0, span), span=span, owned=span)


def _attributes(problem: Resolved, axes: Any) -> dict[str, Any]:
    """Attributes of a problem with these spatial axes; pads and output paddings are told in full."""
    if problem.op == "BiasAddBackward":
        return {"data_format": problem.data_format}
    attributes = {
        "strides": problem.strides,
        "dilations": problem.dilations,
        "groups": problem.groups,
        "pads_begin": tuple(axis.low for axis in axes),
        "pads_end": tuple(axis.high for axis in axes),
        "data_format": problem.data_format,
        "weights_format": problem.weights_format,
    }
    if ROLES[problem.op][-1] == "x" or any(problem.output_padding):  # then extents must be exact, on every axis
        attributes["output_padding"] = tuple(axis.rest for axis in axes)
    return attributes
