"""A picture of an operation on two spatial axes: three grids, the result on the right."""

from __future__ import annotations

from convgrad.drawing import captions
from convgrad.drawing.arithmetic import Arithmetic
from convgrad.drawing.looks import GREY, INK
from convgrad.drawing.marks import Mark, marks, name
from convgrad.drawing.scene import Scene
from convgrad.drawing.words import by
from convgrad.problem.conv import Ints, Unknown

ORDER = {Unknown.X: "ywx", Unknown.Y: "xwy", Unknown.W: "xyw"}
SIGNS = ("·", "=")
GAP = 54
TICKS = 20


def plane(a: Arithmetic, step: int | None) -> Scene:
    """The scene of one step, or of none."""
    scene = Scene(title=f"{a.resolved.op}: {a.names[a.unknown.value]} from what it is the sum of")
    top = captions.head(scene, a) + 30
    size = _cell_size(a)
    rows = {letter: _span(a, letter)[0] for letter in "xwy"}
    height = size * max(high - low for low, high in rows.values())
    left: float = captions.MARGIN + TICKS
    cells = marks(a, step)
    for i, letter in enumerate(ORDER[a.unknown]):
        (low, high), (first, last) = _span(a, letter)
        y = top + TICKS + (height - size * (high - low)) / 2
        _grid(scene, a, letter, cells, left - size * first, y - size * low, size)
        if letter == "x":
            _overlays(scene, a, step, left - size * first, y - size * low, size)
        left += size * (last - first)
        if i < 2:
            middle = top + TICKS + height / 2 + 10
            scene.text(f"sign.{i}", left + (GAP - TICKS) / 2 + 2, middle, SIGNS[i], (44, 28)[i], anchor="middle")
            left += GAP
    scene.width = max(scene.width, left + captions.MARGIN)
    captions.foot(scene, a, step, top + TICKS + height + 28)
    return scene


def _cell_size(a: Arithmetic) -> float:
    widest = max(sum(_span(a, letter)[1][1] - _span(a, letter)[1][0] for letter in "xwy"), 1)
    return max(18, min(38, 1000 // widest))


def _span(a: Arithmetic, letter: str) -> list[tuple[int, int]]:
    """First and last position, exclusive, per axis; the image with its pads."""
    if letter != "x":
        return [(0, extent) for extent in a.extents[letter]]
    r = a.resolved
    axes = zip(r.pads_begin, r.image_extent, r.pads_end, strict=True)
    return [(-low, extent + high) for low, extent, high in axes]


def _grid(
    scene: Scene, a: Arithmetic, letter: str, cells: dict[tuple[str, Ints], Mark], x: float, y: float, size: float
) -> None:
    """Cells, ticks and title; (x, y) is the corner of the cell 0, 0."""
    (low, high), (first, last) = _span(a, letter)
    role = "solved for" if letter == a.unknown.value else "given"
    middle = x + size * (first + last) / 2
    top = y + size * low
    scene.text(f"{letter}.title", middle, top - TICKS - 22, a.names[letter], 15, anchor="middle", font_weight="bold")
    about = f"{by(a.extents[letter])}, {role}"
    scene.text(f"{letter}.about", middle, top - TICKS - 6, about, 12, anchor="middle", fill=GREY)
    tick = min(11.0, size * 0.42)
    for column in range(first, last):
        scene.text(
            f"{letter}.column{column}",
            x + size * (column + 0.5),
            top - 5,
            str(column),
            tick,
            anchor="middle",
            fill=GREY,
        )
    for row in range(low, high):
        scene.text(
            f"{letter}.row{row}", x + size * first - 5, y + size * (row + 0.5) + tick * 0.36, str(row), tick,
            anchor="end", fill=GREY,
        )  # fmt: skip
    here = {position: mark for (owner, position), mark in cells.items() if owner == letter}
    for position, mark in here.items():
        _cell(scene, letter, position, mark, x, y, size)


def _cell(scene: Scene, letter: str, position: Ints, mark: Mark, x: float, y: float, size: float) -> None:
    row, column = position
    left, top, key = x + size * column, y + size * row, f"{letter}.{name(position)}"
    inset = 1 + mark.look["stroke-width"] / 4
    scene.box(key, left + inset, top + inset, size - 2 * inset, size - 2 * inset, rx=3, **mark.look)
    letters = min(0.42 * size, 1.55 * size / max(1, len(mark.label)))
    scene.text(
        f"{key}.label", left + size / 2, top + size / 2 + 0.36 * letters, mark.label, letters, anchor="middle",
        fill=mark.letters,
    )  # fmt: skip


def _overlays(scene: Scene, a: Arithmetic, step: int | None, x: float, y: float, size: float) -> None:
    """Elements that no tap reaches, output padding, and the window of the step."""
    rows, columns = a.extents["x"]
    for row in range(rows):
        for column in range(columns):
            if not a.is_reached((row, column)):
                left, top = x + size * column + 4, y + size * row + 4
                scene.line(f"x.{row},{column}.cross", left, top + size - 8, left + size - 8, top, stroke=GREY)
    padding = a.resolved.output_padding
    edge = {"stroke": INK, "stroke_width": 2, "stroke_dasharray": "7 4"}
    if padding[0]:
        at = y + size * (rows - padding[0])
        scene.line("x.output_padding.rows", x - 4, at, x + size * columns + 4, at, **edge)
    if padding[1]:
        at = x + size * (columns - padding[1])
        scene.line("x.output_padding.columns", at, y - 4, at, y + size * rows + 4, **edge)
    if any(padding):
        bottom = y + size * (rows + a.resolved.pads_end[0]) + 15
        scene.text(
            "x.output_padding",
            x + size * columns,
            bottom,
            "beyond the dashes: output padding",
            11,
            anchor="end",
            fill=GREY,
        )
    if a.unknown is Unknown.Y:
        _window(scene, a, step, x, y, size)


def _window(scene: Scene, a: Arithmetic, step: int | None, x: float, y: float, size: float) -> None:
    r = a.resolved
    element = (0, 0) if step is None else a.elements[step]
    axes = zip(element, r.strides, r.pads_begin, r.kernel, r.dilations, strict=True)
    (top, high), (left, wide) = ((e * s - lo, (k - 1) * d + 1) for e, s, lo, k, d in axes)
    scene.box(
        "x.window", x + size * left - 2, y + size * top - 2, size * wide + 4, size * high + 4, fill="none", stroke=INK,
        stroke_width=0 if step is None else 2, rx=5,
    )  # fmt: skip
