"""What a picture says in words: the formula, the numbers of the operation, and the sum of the step in full."""

from __future__ import annotations

from convgrad.drawing.arithmetic import Arithmetic, Term
from convgrad.drawing.marks import name
from convgrad.problem.conv import Ints, Unknown

MOST_TERMS = 12  # that are written out


def formula(a: Arithmetic) -> str:
    """The definition, on spatial axes."""
    x, w, y = (a.names[letter] for letter in "xwy")
    match a.unknown:
        case Unknown.Y:
            return f"{y}[y] = Σ {x}[y·S + k·D − PB] · {w}[k], over the taps k"
        case Unknown.X:
            return f"{x}[x] = Σ {y}[y] · {w}[k], over windows y and taps k with y·S + k·D − PB = x"
        case Unknown.W:
            return f"{w}[k] = Σ {x}[y·S + k·D − PB] · {y}[y], over the windows y, and over the batch"


def numbers(a: Arithmetic) -> str:
    """Extents and attributes."""
    r = a.resolved
    parts = [f"stride S = {by(r.strides)}", f"dilation D = {by(r.dilations)}"]
    parts.append(f"pads PB = {by(r.pads_begin)}, PE = {by(r.pads_end)}")
    if any(r.output_padding):
        parts.append(f"output padding OP = {by(r.output_padding)}")
    return ", ".join(parts)


def by(values: Ints) -> str:
    """Such as 3×2."""
    return "×".join(map(str, values))


def element_name(a: Arithmetic, step: int) -> str:
    """Such as diff_src[2, 3]."""
    return _indexed(a.names[a.unknown.value], a.elements[step])


def sum_of(a: Arithmetic, step: int) -> str:
    """The element of a step, and all that it is the sum of."""
    element = a.elements[step]
    terms = a.terms(element)
    written = " + ".join(_product(a, term) for term in terms[:MOST_TERMS]) or "0, as no tap reaches it"
    if len(terms) > MOST_TERMS:
        written += f" + … ({len(terms)} products)"
    lost = len(a.padding_terms(element))
    pads = f"; {lost} more fall on padding" if lost else ""
    return f"{element_name(a, step)} = {written}{pads}"


def channels(a: Arithmetic) -> str:
    """How the picture repeats."""
    p = a.problem
    x, y = (
        f"{n} channel{'s' * (n != 1)} of {a.names[letter]}" for n, letter in ((p.x_channels, "x"), (p.y_channels, "y"))
    )
    pairs = f"{x} with {y}" + (f" in each of {p.groups} groups" if p.groups > 1 else "")
    return f"The same for every pair of channels, {pairs}, and for {p.batch} image{'s' * (p.batch != 1)}."


def broken(text: str, letters: int) -> list[str]:
    """Lines of at most so many letters, cut at spaces before a sign."""
    lines, line = [], ""
    for part in text.replace(" + ", "\n+ ").replace("; ", ";\n").split("\n"):
        if line and len(line) + 1 + len(part) > letters:
            lines.append(line)
            line = "      " + part
        else:
            line = f"{line} {part}" if line else part
    return [*lines, line]


def _product(a: Arithmetic, term: Term) -> str:
    factors = {"x": term.x, "y": term.y, "w": term.tap}
    order = {Unknown.X: "yw", Unknown.Y: "xw", Unknown.W: "xy"}[a.unknown]
    return "·".join(_indexed(a.names[letter], factors[letter]) for letter in order)


def _indexed(tensor: str, position: Ints) -> str:
    return f"{tensor}[{name(position)}]"
