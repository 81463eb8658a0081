"""What a plan of parts says: of each part its shares of the tensors, and a legal problem of the same operation."""

from __future__ import annotations

from math import prod
from typing import Any

from convgrad.spec.resolve import Resolved
from convgrad.spec.schemas import SCHEMAS
from convgrad.values import frozen

Ints = tuple[int, ...]
Span = tuple[int, int]  # start <= e < stop

_GEOMETRY = ("strides", "pads_begin", "pads_end", "dilations", "groups", "data_format", "weights_format")


@frozen(kw_only=True)
class Selection:
    """Elements start <= e < stop of one axis of a tensor, or of each of `runs` equal runs of that axis.

    Channels of several groups are such runs: the part has the same channels of every group.
    """

    axis: int  # of the tensor as the caller lays it out
    start: int
    stop: int
    runs: int = 1
    run: int  # elements of one run

    @property
    def count(self) -> int:
        """How many elements."""
        return self.runs * (self.stop - self.start)

    @property
    def index(self) -> slice | list[int]:
        """What selects them."""
        if self.runs == 1 or self.start == self.stop:
            return slice(self.start, self.stop)
        if self.count == self.runs * self.run:
            return slice(0, self.count)
        return [run * self.run + element for run in range(self.runs) for element in range(self.start, self.stop)]

    def __str__(self) -> str:
        each = f" of each {self.run}" if self.runs > 1 else ""
        return f"{self.start}:{self.stop}{each}"


@frozen(kw_only=True)
class Fetch:
    """Elements that a part needs and another one owns."""

    part: int  # the owner
    start: int  # along the axis that is split
    stop: int

    def __str__(self) -> str:
        return f"{self.start}:{self.stop} from part {self.part}"


@frozen(kw_only=True)
class Share:
    """One part's share of one tensor.

    Along the axis that is split, `span` is what the part reads of an input, or writes of the output, and `owned` what
    it holds of it; for channels both count within a group. Both are None for a tensor that has no such axis: every part
    reads all of it, or gives a summand of all of it.
    """

    tensor: str
    whole: Ints  # shape of the tensor
    selection: Selection | None = None
    span: Span | None = None
    owned: Span | None = None
    fetches: tuple[Fetch, ...] = ()  # in the order of the elements; what is owned lies before, between or behind

    @property
    def shape(self) -> Ints:
        """Of the share."""
        chosen = self.selection
        if chosen is None:
            return self.whole
        return (*self.whole[: chosen.axis], chosen.count, *self.whole[chosen.axis + 1 :])

    @property
    def index(self) -> tuple[slice | list[int], ...]:
        """`array[share.index]` is the share of the whole tensor; `array[share.index] = ...` puts it there."""
        everything: tuple[slice | list[int], ...] = (slice(None),) * len(self.whole)
        chosen = self.selection
        if chosen is None:
            return everything
        return (*everything[: chosen.axis], chosen.index, *everything[chosen.axis + 1 :])

    @property
    def halo(self) -> Span:
        """How many elements before the first that is owned, and from its end on, the part needs."""
        if self.span is None or self.owned is None:
            return 0, 0
        (start, stop), (low, high) = self.span, self.owned
        return max(0, min(stop, low) - start), max(0, stop - max(start, high))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the tensor."""
        return self.span is None

    def validate(self) -> None:
        """Assert what users of a plan rely on."""
        assert (self.selection is None) == (self.span is None) == (self.owned is None)
        if self.selection is not None:
            assert 0 <= self.selection.start <= self.selection.stop <= self.selection.run
            assert self.selection.runs * self.selection.run == self.whole[self.selection.axis]
        fetched = sum(fetch.stop - fetch.start for fetch in self.fetches)
        assert fetched == sum(self.halo)
        if self.span is not None and self.owned is not None:
            kept = max(0, min(self.span[1], self.owned[1]) - max(self.span[0], self.owned[0]))
            assert kept + fetched == self.span[1] - self.span[0], "what is needed is owned or fetched"

    def __str__(self) -> str:
        chosen = self.selection
        if chosen is None:
            return self.tensor
        return f"{self.tensor}[{', '.join(str(chosen) if n == chosen.axis else ':' for n in range(len(self.whole)))}]"


@frozen(kw_only=True)
class Part:
    """One part of an operation: `problem` is what it computes, from its shares of the inputs.

    A part that has nothing to compute has no problem: no element of the output is its own, or its sum has no terms.
    """

    number: int
    problem: Resolved | None
    inputs: tuple[Share, ...]  # in the order of the operation; with a bias, if this part adds it
    output: Share

    @property
    def attributes(self) -> dict[str, Any]:
        """Keywords of the function of the operation: pads after auto_pad, and the shape of the output if it is told."""
        problem = self.problem
        assert problem is not None, "a part that is empty has nothing to call a function for"
        schema = SCHEMAS[problem.op]
        names = [name for name in (*_GEOMETRY, "output_padding") if schema.attribute(name)]
        attributes = {name: getattr(problem, name) for name in names}
        if schema.shape_attribute:
            attributes[schema.shape_attribute] = problem.output_shape
        return attributes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute; if parts are summed, it adds zero."""
        return self.problem is None

    def input(self, tensor: str) -> Share:
        """The share of an input by its name."""
        return next(share for share in self.inputs if share.tensor == tensor)

    def select(self, *inputs: Any) -> list[Any]:
        """The shares of whole inputs in the order of the operation; a bias that the part does not add is dropped."""
        return [array[share.index] for share, array in zip(self.inputs, inputs, strict=False)]

    def validate(self) -> None:
        """Assert that shares and problem are of the same shapes."""
        for share in (*self.inputs, self.output):
            share.validate()
        if self.problem is not None:
            assert tuple(share.shape for share in self.inputs) == self.problem.input_shapes
            assert self.output.shape == self.problem.output_shape

    def __str__(self) -> str:
        if self.problem is None:
            return f"part {self.number}: nothing to compute"
        lines = [f"part {self.number}: {self.output} from {', '.join(map(str, self.inputs))}"]
        if any(self.problem.pads_begin + self.problem.pads_end + self.problem.output_padding):
            lines[0] += f"; pads {list(self.problem.pads_begin)} {list(self.problem.pads_end)}"
        if any(self.problem.output_padding):
            lines[0] += f", output_padding {list(self.problem.output_padding)}"
        for share in self.inputs:
            if share.fetches:
                left, right = share.halo
                lines.append(f"{share.tensor}: halo {left} + {right}, {', '.join(map(str, share.fetches))}")
        return "\n    ".join(lines)


@frozen(kw_only=True)
class ShardPlan:
    """An operation in parts along one axis.

    Where `needs_sum` is false the outputs of the parts lie side by side and are the whole; else every part gives an
    output of the whole shape, and their sum is the result.
    """

    problem: Resolved  # the whole operation
    axis: str | int  # what is split, as it was asked for
    boundaries: dict[str, Ints]  # by tensor, of those that are split: where its parts begin and end
    needs_sum: bool
    parts: tuple[Part, ...]

    def sends(self, tensor: str, owner: int) -> list[tuple[int, Fetch]]:
        """What a part owns of an input and others need: by receiving part."""
        return [
            (part.number, fetch)
            for part in self.parts
            for share in part.inputs
            if share.tensor == tensor
            for fetch in share.fetches
            if fetch.part == owner
        ]

    def validate(self) -> None:
        """Assert that the parts are those of one operation, and that the output is whole."""
        for number, part in enumerate(self.parts):
            assert part.number == number
            assert part.problem is None or part.problem.op == self.problem.op
            assert part.output.is_whole == self.needs_sum
            part.validate()
        if not self.needs_sum:
            assert sum(prod(part.output.shape) for part in self.parts) == prod(self.problem.output_shape)

    def __str__(self) -> str:
        what = f"spatial axis {self.axis}" if isinstance(self.axis, int) else self.axis.replace("_", " ")
        bounds = ", ".join(f"{tensor} at {list(bounds)}" for tensor, bounds in self.boundaries.items())
        how = "the outputs are summed" if self.needs_sum else "the outputs lie side by side"
        head = f"{self.problem.op} in {len(self.parts)} parts along {what}: {bounds}; {how}"
        return "\n  ".join([head, *(str(part).replace("\n", "\n  ") for part in self.parts)])
