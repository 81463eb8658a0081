"""Problems in the notation of benchdnn, such as `g2mb4_ic8ih10iw12_oc6kh3kw3_sh2sw2_ph1pw1`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from convgrad.errors import ConvError
from convgrad.values import frozen

HELP = """\
A problem is letters with numbers, in any order, with or without '_' between them:
  g groups   mb batch   ic, oc channels of src and dst, over all groups
  i, o extents of src and dst   k kernel   s stride   p pad at the begin   d dilation, where 0 is dense,
  each with d, h or w for the axis; n begins a name
What is missing follows: batch 2, stride 1, dilation 0, and an extent of dst or a pad from the others. An axis h
without w is copied to w, and d without both to both."""
_ENTRY = re.compile(r"([a-mo-z]+)([0-9]+)")
_AXES = "dhw"
_KEYS = {"g", "mb", "ic", "oc"} | {letter + axis for letter in "ioksp" for axis in _AXES} | {"dd", "dh", "dw"}
_LARGEST = 2**31 - 1  # of one number

Ints = tuple[int, ...]


class ProblemStringError(ConvError):
    """A problem string that does not say which problem it means."""


@frozen(kw_only=True)
class Axis:
    """One spatial axis, as the attributes of a graph operation have it."""

    src: int
    dst: int
    kernel: int
    stride: int
    dilation: int  # where 1 is dense
    pad_begin: int
    pad_end: int
    output_padding: int


@frozen(kw_only=True)
class ProblemString:
    """One convolution or, with `transposed`, one deconvolution."""

    text: str
    transposed: bool
    batch: int
    groups: int
    ic: int  # of src, whichever side of the form that is
    oc: int
    axes: tuple[Axis, ...]  # outermost first

    def each(self, field: str) -> Ints:
        """One number of every axis."""
        return tuple(getattr(axis, field) for axis in self.axes)


def parse(text: str, *, transposed: bool, batch: int | None = None) -> ProblemString:
    """The problem that a string means; `batch` replaces the one it names."""
    values = _lex(text)
    ic, oc, groups = values.get("ic", 0), values.get("oc", 0), values.get("g", 1)
    if not ic or not oc:
        raise ProblemStringError(f"{text}: {'oc' if ic else 'ic'} is missing or 0; give channels over all groups")
    if not groups or ic % groups or oc % groups:
        raise ProblemStringError(f"{text}: ic{ic} and oc{oc} do not divide into g{groups} groups")
    given = {axis: {key[0]: value for key, value in values.items() if key[1:] == axis} for axis in _AXES}
    deduced = {axis: _deduce(given[axis], axis, transposed, text) for axis in _AXES}
    return ProblemString(
        text=text,
        transposed=transposed,
        batch=values.get("mb", 2) if batch is None else batch,
        groups=groups,
        ic=ic,
        oc=oc,
        axes=_spread(deduced, text),
    )


def _lex(text: str) -> dict[str, int]:
    values: dict[str, int] = {}
    at = 0
    while at < len(text) and text[at] != "n":  # what follows n is a name
        if text[at] == "_":
            at += 1
            continue
        entry = _ENTRY.match(text, at)
        if entry is None:
            raise ProblemStringError(f"{text}: letters and their number are expected at {text[at : at + 12]!r}")
        key, number = entry[1], entry[2]
        if key not in _KEYS:
            raise ProblemStringError(
                f"{text}: {key!r} means nothing; letters are g mb ic oc, and i o k s p d with an axis"
            )
        if len(number) > 10 or int(number) > _LARGEST:
            raise ProblemStringError(f"{text}: the number of {key} is larger than {_LARGEST}")
        values[key] = int(number)
        at = entry.end()
    return values


def _deduce(given: Mapping[str, int], axis: str, transposed: bool, text: str) -> Axis | None:
    """Everything of one axis; None if the string does not mention it."""
    if not any(given.values()) or given.keys() == {"s"}:
        return None
    src, dst, taps, stride = given.get("i", 0), given.get("o", 0), given.get("k", 0), given.get("s", 1)
    for letter, value in (("i", src), ("k", taps), ("s", stride)):
        if value < 1:
            raise ProblemStringError(f"{text}: {letter}{axis} is missing or 0")
    reach = (taps - 1) * (given.get("d", 0) + 1) + 1  # elements that one window spans
    pad = given.get("p", 0)
    if not dst:
        dst = (src - 1) * stride + reach - 2 * pad if transposed else _quotient(src - reach + 2 * pad, stride) + 1
        if dst <= 0:
            raise ProblemStringError(f"{text}: o{axis} comes out as {dst}; a larger i{axis} or p{axis} is needed")
    window, image = (src, dst) if transposed else (dst, src)
    span = (window - 1) * stride + reach  # of the padded image that the windows cover
    if "p" not in given and given.get("o"):
        pad = _quotient(span - image, 2)
    end = span - image - pad
    return Axis(
        src=src,
        dst=dst,
        kernel=taps,
        stride=stride,
        dilation=given.get("d", 0) + 1,
        pad_begin=pad,
        pad_end=max(0, end),
        output_padding=max(0, -end) if transposed else 0,  # a rest of the image that no window reaches
    )


def _quotient(dividend: int, divisor: int) -> int:
    """Toward zero, as the division of C."""
    return abs(dividend) // divisor * (1 if dividend >= 0 else -1)


def _spread(axes: Mapping[str, Axis | None], text: str) -> tuple[Axis, ...]:
    match axes["d"], axes["h"], axes["w"]:
        case None, None, None:
            raise ProblemStringError(f"{text}: no spatial axis; give iw and kw at least")
        case None, None, w:
            found = (w,)
        case None, h, w:
            found = (h, w or h)
        case d, None, None:
            found = (d, d, d)
        case d, h, w:
            found = (d, h, w)
    if None in found:
        raise ProblemStringError(f"{text}: axis d with only one of h and w; give all three, or d alone for a cube")
    return tuple(axis for axis in found if axis is not None)
