"""The products that a picture shows are those of the definition."""

from itertools import product

import numpy as np
import pytest

from convgrad.drawing.arithmetic import MOST_ELEMENTS, Arithmetic, Term
from convgrad.errors import ShapeError
from convgrad.problem.conv import Unknown
from convgrad.spec.definition import define
from convgrad.spec.resolve import resolve
from drawing_cases import CASES, OPERATIONS, arithmetic_of


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("case", CASES)
def test_terms_add_up_to_the_definition(op, case, rng):
    a = arithmetic_of(op, CASES[case])
    given = {letter: rng.integers(-9, 10, a.extents[letter]) for letter in "xwy"}
    order = {Unknown.X: "yw", Unknown.Y: "xw"}.get(a.unknown) or ("xy" if op.startswith("Convolution") else "yx")
    inputs = [given[letter].reshape(1, 1, *a.extents[letter]) for letter in order]
    expected = define(a.resolved, inputs).reshape(a.extents[a.unknown.value])
    for element in a.elements:
        total = sum(
            np.prod([given[letter][place] for letter, place in _factors(term) if letter in order])
            for term in a.terms(element)
        )
        assert total == expected[element], element


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("case", CASES)
def test_terms_are_those_of_the_index_formula(op, case):
    a = arithmetic_of(op, CASES[case])
    r = a.resolved
    inside: dict = {element: [] for element in a.elements}
    outside: dict = {element: [] for element in a.elements}
    for y, k in product(product(*map(range, r.window_extent)), product(*map(range, r.kernel))):
        axes = zip(y, k, r.strides, r.dilations, r.pads_begin, strict=True)
        x = tuple(yi * s + ki * d - pb for yi, ki, s, d, pb in axes)
        on_image = all(0 <= i < extent for i, extent in zip(x, r.image_extent, strict=True))
        term = Term(k, x, y)
        element = {"x": x, "w": k, "y": y}[a.unknown.value]
        if on_image:
            inside[element].append(term)
        elif element in outside:
            outside[element].append(term)
    for element in a.elements:
        assert a.terms(element) == sorted(inside[element])
        assert a.padding_terms(element) == sorted(outside[element])


@pytest.mark.parametrize("case", CASES)
def test_a_tap_meets_one_phase_only(case):
    a = arithmetic_of("ConvolutionBackwardData", CASES[case])
    for element in a.elements:
        assert {a.phase_of_tap(term.tap) for term in a.terms(element)} <= {a.phase_of_image(element)}
        assert a.is_reached(element) == bool(a.terms(element))
    assert {a.phase_of_image(element) for element in a.elements} == set(a.phases)


def test_the_step_of_a_still_has_the_most_terms():
    a = arithmetic_of("ConvolutionBackwardData", CASES["strided"])
    assert len(a.terms(a.elements[a.telling_step])) == max(len(a.terms(element)) for element in a.elements) == 4
    assert arithmetic_of("ConvolutionBackwardWeights", CASES["strided"]).telling_step == 0


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        (
            "Convolution",
            [(1, 4, 4, 4, 1), (3, 3, 3, 1, 1)],
            "Convolution: a picture has one or two spatial axes, not 3",
        ),
        ("Convolution", [(1, 60, 1), (3, 1, 1)], rf"src with its pads has 60 elements on an axis.* {MOST_ELEMENTS};"),
        ("Convolution", [(0, 6, 1), (3, 1, 1)], "dst is empty; there is nothing to draw"),
        ("BiasAddBackward", [(1, 6, 1)], "BiasAddBackward sums all elements of a channel"),
    ],
)
def test_what_cannot_be_drawn_is_said(op, shapes, message):
    rank = len(shapes[0]) - 2
    attributes = {} if op == "BiasAddBackward" else {"strides": [1] * rank, "dilations": [1] * rank}
    resolved = resolve(op, attributes, shapes)
    with pytest.raises(ShapeError, match=message):
        Arithmetic.of(resolved)


def _factors(term):
    return ("x", term.x), ("w", term.tap), ("y", term.y)
