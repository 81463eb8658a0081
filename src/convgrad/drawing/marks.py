"""How every cell of a picture looks at one step."""

from __future__ import annotations

from itertools import product

from convgrad.drawing.arithmetic import Arithmetic, Term
from convgrad.drawing.looks import GREY, Look, absent, hue, letters, lit, resting, solved
from convgrad.problem.conv import Ints, Unknown
from convgrad.values import frozen

Cell = tuple[str, Ints]  # letter of the form, position


@frozen
class Mark:
    """One cell."""

    look: Look
    label: str = ""
    letters: str = GREY


def marks(a: Arithmetic, step: int | None) -> dict[Cell, Mark]:
    """Of every cell, padding included; at rest without a step."""
    found = _at_rest(a)
    if step is not None:
        found |= _of_element(a, a.elements[step])
    return found


def phase_hue(a: Arithmetic, phase: Ints) -> str:
    """The colour of a phase of the image."""
    number = 0
    for s, extent, remainder in zip(a.problem.stride, a.extents["x"], phase, strict=True):
        number = number * min(s, extent) + remainder
    return hue(number)


def _at_rest(a: Arithmetic) -> dict[Cell, Mark]:
    r = a.resolved
    padded = (
        range(-low, extent + high) for low, extent, high in zip(r.pads_begin, r.image_extent, r.pads_end, strict=True)
    )
    found: dict[Cell, Mark] = {}
    for x in product(*padded):
        found["x", x] = Mark(resting(phase_hue(a, a.phase_of_image(x)))) if a.on_image(x) else Mark(absent())
    for tap in product(*map(range, a.extents["w"])):
        found["w", tap] = Mark(resting(phase_hue(a, a.phase_of_tap(tap))), name(tap))
    for y in product(*map(range, a.extents["y"])):
        found["y", y] = Mark(resting(None))
    return found


def _of_element(a: Arithmetic, element: Ints) -> dict[Cell, Mark]:
    found: dict[Cell, Mark] = {}
    terms = a.terms(element)
    for number, term in enumerate(terms, 1):
        label = str(number) if a.unknown is Unknown.W else name(term.tap)
        for cell in _given(a, term):
            found[cell] = _lit(a, term, label)
    for term in a.padding_terms(element):
        label = "0" if a.unknown is Unknown.W else name(term.tap)
        for cell in _given(a, term):
            found[cell] = Mark(absent(touched=True), label)
    if a.unknown is Unknown.W:
        colour = phase_hue(a, a.phase_of_tap(element))
    else:
        colour = phase_hue(a, a.phase_of_image(element)) if a.unknown is Unknown.X else None
    found[a.unknown.value, element] = Mark(solved(colour), "Σ", letters(colour))
    return found


def _lit(a: Arithmetic, term: Term, label: str) -> Mark:
    colour = phase_hue(a, a.phase_of_tap(term.tap))
    return Mark(lit(colour), label, letters(colour))


def _given(a: Arithmetic, term: Term) -> list[Cell]:
    """The two factors of a term that are not the unknown."""
    cells: list[Cell] = [("x", term.x), ("w", term.tap), ("y", term.y)]
    return [cell for cell in cells if cell[0] != a.unknown.value]


def name(position: Ints) -> str:
    """Such as 1,2."""
    return ",".join(map(str, position))
