"""A picture of an operation on one spatial axis: windows above the image, every product a line between them."""

from __future__ import annotations

from convgrad.drawing import captions
from convgrad.drawing.arithmetic import Arithmetic, Term
from convgrad.drawing.looks import FAINT, GREY, INK
from convgrad.drawing.marks import Mark, marks, name, phase_hue
from convgrad.drawing.scene import Scene
from convgrad.problem.conv import Ints

RISE = 96  # between the rows


def row(a: Arithmetic, step: int | None) -> Scene:
    """The scene of one step, or of none."""
    scene = Scene(title=f"{a.resolved.op}: {a.names[a.unknown.value]} from what it is the sum of")
    top = captions.head(scene, a) + 14
    low, high = -a.resolved.pads_begin[0], a.extents["x"][0] + a.resolved.pads_end[0]
    size = max(20, min(46, 1000 // (high - low)))
    words = captions.MARGIN + 12 + max(9 * max(map(len, a.names.values())), 100)
    reach = (a.extents["w"][0] - 1) * a.problem.dilation[0]

    def column(letter: str, i: int) -> float:
        """Middle of a cell; a window stands above the middle of what it spans."""
        if letter == "y":
            i_at = a.problem.stride[0] * i + reach / 2 - a.problem.pad_low[0]
        else:
            i_at = i if letter == "x" else i + low
        return words + size * (i_at - min(low, 0) + 0.5)

    rows = {"w": top, "y": top + size + 40, "x": top + 2 * size + 40 + RISE}
    cells = marks(a, step)
    _lines(scene, a, step, lambda term: (column("y", term.y[0]), rows["y"] + size, column("x", term.x[0]), rows["x"]))
    for letter in "wyx":
        role = "solved for" if letter == a.unknown.value else "given"
        y = rows[letter]
        scene.text(f"{letter}.title", captions.MARGIN, y + size / 2, a.names[letter], 15, font_weight="bold")
        scene.text(
            f"{letter}.about", captions.MARGIN, y + size / 2 + 16, f"{a.extents[letter][0]}, {role}", 12, fill=GREY
        )
        for (owner, position), mark in cells.items():
            if owner == letter:
                _cell(scene, letter, position, mark, column(letter, position[0]), y, size)
        scene.width = max(scene.width, max(column(o, p[0]) for o, p in cells if o == letter) + size)
    _overlays(scene, a, rows["x"], size, column)
    captions.foot(scene, a, step, rows["x"] + size + 44)
    return scene


def _lines(scene: Scene, a: Arithmetic, step: int | None, ends) -> None:
    """One for every window and tap, behind the cells."""
    terms = [] if step is None else [*a.terms(a.elements[step]), *a.padding_terms(a.elements[step])]
    chosen = set(terms)
    for y in range(a.extents["y"][0]):
        for tap in range(a.extents["w"][0]):
            x = a.problem.stride[0] * y + a.problem.dilation[0] * tap - a.problem.pad_low[0]
            term = Term((tap,), (x,), (y,))
            colour = phase_hue(a, a.phase_of_tap((tap,))) if a.on_image((x,)) else FAINT
            bold = term in chosen
            look = {"stroke": colour if bold else FAINT, "stroke_width": 6 if bold else 1}
            if not a.on_image((x,)):
                look |= {"stroke_dasharray": "5 4", "stroke_width": 2.5 if bold else 1}
            scene.line(f"line.{y}.{tap}", *ends(term), **look)


def _cell(scene: Scene, letter: str, position: Ints, mark: Mark, middle: float, y: float, size: float) -> None:
    inset = 1 + mark.look["stroke-width"] / 4
    side = size - 2 * inset
    key = f"{letter}.{name(position)}"
    scene.box(key, middle - side / 2, y + inset, side, side, rx=3, **mark.look)
    letters = min(0.42 * size, 1.55 * size / max(1, len(mark.label)))
    scene.text(
        f"{key}.label", middle, y + size / 2 + 0.36 * letters, mark.label, letters, anchor="middle", fill=mark.letters
    )
    if letter != "w":
        at = y + size + 14 if letter == "x" else y - 6
        scene.text(f"{key}.tick", middle, at, name(position), 11, anchor="middle", fill=GREY)


def _overlays(scene: Scene, a: Arithmetic, y: float, size: float, column) -> None:
    extent = a.extents["x"][0]
    for x in range(extent):
        if not a.is_reached((x,)):
            left = column("x", x) - size / 2 + 5
            scene.line(f"x.{x}.cross", left, y + size - 5, left + size - 10, y + 5, stroke=GREY)
    padding = a.resolved.output_padding[0]
    if padding:
        at = column("x", extent - padding) - size / 2
        scene.line("x.output_padding", at, y - 8, at, y + size + 22, stroke=INK, stroke_width=2, stroke_dasharray="7 4")
        scene.text("x.output_padding.text", at + 5, y + size + 30, "output padding", 11, fill=GREY)
