"""Colours and strokes. The hues are those of Okabe and Ito, "Color universal design", and two more for 3 × 3 phases."""

from __future__ import annotations

from typing import Any

Look = dict[str, Any]

INK, GREY, FAINT = "#1b1b1b", "#5c5c5c", "#a8a8a4"
CARD, EDGE, PLAIN = "#fcfcfa", "#d3d3ce", "#eeeeea"
HUES = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#0072b2", "#332288", "#9a9a9a")
DARK_HUES = ("#0072b2", "#332288")  # that need light letters


def hue(number: int) -> str:
    """Of a phase; with more phases than hues, their labels tell them apart."""
    return HUES[number % len(HUES)]


def mixed(one: str, other: str, part: float) -> str:
    """A colour with a part of another."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + part * (b - a)):02x}" for a, b in pairs)


def tint(colour: str) -> str:
    """A colour that stays behind."""
    return mixed(CARD, colour, 0.25)


def resting(colour: str | None) -> Look:
    """A cell that the current sum does not need."""
    return {"fill": PLAIN if colour is None else tint(colour), "stroke": FAINT, "stroke-width": 1}


def lit(colour: str) -> Look:
    """A cell that is a factor of the current sum."""
    return {"fill": colour, "stroke": INK, "stroke-width": 2}


def solved(colour: str | None) -> Look:
    """The element that is computed."""
    return {"fill": "#ffffff" if colour is None else colour, "stroke": INK, "stroke-width": 4}


def absent(*, touched: bool = False) -> Look:
    """A cell that is not there: padding."""
    edge = {"stroke": INK, "stroke-width": 2} if touched else {"stroke": FAINT, "stroke-width": 1}
    return {"fill": "#ffffff", **edge, "stroke-dasharray": "4 3"}


def letters(colour: str | None) -> str:
    """What is legible on a full colour."""
    return "#ffffff" if colour in DARK_HUES else "#000000"
