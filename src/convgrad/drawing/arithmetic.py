"""Which products an element of the result is the sum of: the axes that kernels are planned from, written out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from convgrad.errors import ShapeError
from convgrad.plan.axes import GatherAxis, gather_axes
from convgrad.plan.strides import row_major
from convgrad.plan.window_axes import WindowAxis, window_axes
from convgrad.problem.canonicalize import canonicalize
from convgrad.problem.conv import ConvProblem, Ints, Unknown
from convgrad.spec.resolve import Resolved
from convgrad.spec.schemas import SIDES, schema_of
from convgrad.values import frozen

MOST_ELEMENTS = 32  # per axis, pads included; more are too small to read


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """One product x[x] · w[tap] · y[y] of the form, of which the unknown factor is left out."""

    tap: Ints
    x: Ints  # outside the image where the term falls on padding
    y: Ints


@frozen
class Arithmetic:
    """The spatial arithmetic of one operation; batch and channels only repeat it."""

    resolved: Resolved
    problem: ConvProblem

    @classmethod
    def of(cls, resolved: Resolved) -> Arithmetic:
        """Of an operation on one or two spatial axes that a picture has room for."""
        if resolved.op not in SIDES:
            raise ShapeError(f"{resolved.op} sums all elements of a channel; there is nothing to draw")
        if resolved.rank > 2:
            raise ShapeError(
                f"{resolved.op}: a picture has one or two spatial axes, not {resolved.rank}; every axis follows the "
                "same arithmetic, so draw one or two of them"
            )
        strides = [row_major(shape, 1) for shape in (*resolved.input_shapes, resolved.output_shape)]
        problem = canonicalize(
            resolved, input_strides=strides[:2], output_strides=strides[-1], dtype="f32", out_dtype="f32"
        )
        arithmetic = cls(resolved, problem)
        arithmetic._check_size()
        return arithmetic

    def _check_size(self) -> None:
        r = self.resolved
        sides = {
            f"{self.names['x']} with its pads": self.padded_extent,
            self.names["y"]: r.window_extent,
            self.names["w"]: r.kernel,
        }
        for name, extent in sides.items():
            if max(extent) > MOST_ELEMENTS:
                raise ShapeError(
                    f"{r.op}: {name} has {max(extent)} elements on an axis, and a picture has room for "
                    f"{MOST_ELEMENTS}; a smaller extent with the same kernel, stride and pads shows the same"
                )
        if not prod(self.problem.shapes[self.unknown.value]) or not prod(r.kernel):
            raise ShapeError(f"{r.op}: {self.names[self.unknown.value]} is empty; there is nothing to draw")

    @property
    def unknown(self) -> Unknown:
        """What the operation solves for."""
        return self.problem.unknown

    @property
    def names(self) -> dict[str, str]:
        """Of the tensors, by their letter in the form."""
        image, window = SIDES[self.resolved.op]
        schema = schema_of(self.resolved.op)
        return {"x": image, "w": "diff_weights" if schema.output == "diff_weights" else "weights", "y": window}

    @property
    def padded_extent(self) -> Ints:
        """Elements of the image side and of its pads, per axis."""
        r = self.resolved
        return tuple(sum(parts) for parts in zip(r.pads_begin, r.image_extent, r.pads_end, strict=True))

    @property
    def extents(self) -> dict[str, Ints]:
        """Spatial extents by the letter of the form."""
        return {"x": self.problem.x_extent, "w": self.problem.taps, "y": self.problem.y_extent}

    @property
    def elements(self) -> list[Ints]:
        """Of the result, in row-major order: what an animation steps through."""
        return list(product(*map(range, self.extents[self.unknown.value])))

    def terms(self, element: Ints) -> list[Term]:
        """The products that an element of the result is the sum of, per pair of channels and image of the batch."""
        match self.unknown:
            case Unknown.X:
                return sorted(Term(tap, element, given) for tap, given in self._gathered(element))
            case Unknown.Y:
                return sorted(Term(tap, given, element) for tap, given in self._gathered(element))
            case Unknown.W:
                return sorted(term for term in self._pairs(element) if self.on_image(term.x))

    def padding_terms(self, element: Ints) -> list[Term]:
        """The products of an element whose factor x lies on padding; none where x is the unknown."""
        match self.unknown:
            case Unknown.X:
                return []
            case Unknown.Y:
                terms = (
                    Term(tap, self._image(element, tap), element) for tap in product(*map(range, self.extents["w"]))
                )
            case Unknown.W:
                terms = self._pairs(element)
        return sorted(term for term in terms if not self.on_image(term.x))

    def _gathered(self, element: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Taps and input elements of one output element, from the axes of a DataPlan."""
        axes = gather_axes(self.problem)[1:]
        for pairs in product(*(_gathered_on(axis, q) for axis, q in zip(axes, element, strict=True))):
            taps, given = zip(*pairs, strict=True)
            yield taps, given

    def _pairs(self, tap: Ints) -> Iterator[Term]:
        """Every window with the image element that one tap of it sees, from the axes of a WeightsPlan."""
        axes = window_axes(self.problem)[1:]
        for pairs in product(*(_pairs_on(axis, r) for axis, r in zip(axes, tap, strict=True))):
            windows, image = zip(*pairs, strict=True)
            yield Term(tap, image, windows)

    def _image(self, window: Ints, tap: Ints) -> Ints:
        p = self.problem
        axes = zip(window, tap, p.stride, p.dilation, p.pad_low, strict=True)
        return tuple(s * y + d * r - lo for y, r, s, d, lo in axes)

    def on_image(self, x: Ints) -> bool:
        """Whether a position is an element rather than padding."""
        return all(0 <= i < extent for i, extent in zip(x, self.extents["x"], strict=True))

    def phase_of_image(self, x: Ints) -> Ints:
        """Remainder of a position by the stride."""
        return tuple(i % s for i, s in zip(x, self.problem.stride, strict=True))

    def phase_of_tap(self, tap: Ints) -> Ints:
        """The phase of every position that a tap sees; there is only one."""
        return self.phase_of_image(self._image((0,) * len(tap), tap))

    @property
    def phases(self) -> list[Ints]:
        """All remainders by the stride that the image has."""
        axes = zip(self.problem.stride, self.extents["x"], strict=True)
        return list(product(*(range(min(s, x)) for s, x in axes)))

    def is_reached(self, x: Ints) -> bool:
        """Whether any window sees a position through any tap."""
        axes = zip(x, window_axes(self.problem)[1:], strict=True)
        return all(
            any(
                i == axis.stride * p + axis.dilation * r - axis.low
                for p in range(axis.windows)
                for r in range(axis.taps)
            )
            for i, axis in axes
        )

    @property
    def telling_step(self) -> int:
        """A step worth a still: the element of most terms nearest the middle, or the first tap."""
        if self.unknown is Unknown.W:
            return 0
        middle = [(extent - 1) / 2 for extent in self.extents[self.unknown.value]]

        def worth(step: int) -> tuple[int, float]:
            element = self.elements[step]
            return -len(self.terms(element)), sum((e - m) ** 2 for e, m in zip(element, middle, strict=True))

        return min(range(len(self.elements)), key=worth)


def _gathered_on(axis: GatherAxis, q: int) -> list[tuple[int, int]]:
    """Taps and input elements of output q on one axis."""
    phase = axis.phases[q % axis.out_step]
    j = (q - phase.first) // axis.out_step
    found = []
    for t in range(phase.taps):
        given = axis.in_step * j + phase.offset + t * axis.offset_step
        if 0 <= given < axis.in_extent:
            found.append((phase.tap + t * axis.tap_step, given))
    return found


def _pairs_on(axis: WindowAxis, r: int) -> list[tuple[int, int]]:
    """Windows and image positions, on padding too, that tap r joins on one axis."""
    return [(p, axis.stride * p + axis.dilation * r - axis.low) for p in range(axis.windows)]
