"""What surrounds the cells: the head of a picture, its sum, its legend, and how channels repeat it."""

from __future__ import annotations

from itertools import product

from convgrad.drawing.arithmetic import Arithmetic
from convgrad.drawing.looks import FAINT, GREY, INK, Look, absent, resting, solved
from convgrad.drawing.marks import name, phase_hue
from convgrad.drawing.scene import LETTER, Scene
from convgrad.drawing.words import broken, channels, formula, numbers, sum_of
from convgrad.problem.conv import Unknown

MARGIN = 24
LINE = 19
SUM_LETTERS = 96
MOST_CHANNELS = 12  # of one side, that are drawn


def head(scene: Scene, a: Arithmetic) -> float:
    """Name, formula and attributes; returns where they end."""
    scene.text("head.name", MARGIN, 36, a.resolved.op, 19, font_weight="bold")
    scene.text("head.formula", MARGIN, 60, formula(a), 14)
    scene.text("head.numbers", MARGIN, 80, numbers(a), 12.5, fill=GREY)
    return 98


def foot(scene: Scene, a: Arithmetic, step: int | None, top: float) -> None:
    """The sum of the step, the legend and the channels."""
    y = _sum(scene, a, step, top)
    y = _legend(scene, a, y + 6)
    _channels(scene, a, y + 8)


def _sum(scene: Scene, a: Arithmetic, step: int | None, top: float) -> float:
    """As many lines as the longest sum of any step needs, so that frames are alike."""
    sums = [broken(sum_of(a, i), SUM_LETTERS) for i in range(len(a.elements))]
    longest = max(len(line) for lines in sums for line in lines)
    scene.width = max(scene.width, 2 * MARGIN + longest * 13.5 * LETTER)
    rows = max(map(len, sums))
    lines = [] if step is None else sums[step]
    for i in range(rows):
        text = lines[i] if i < len(lines) else ""
        scene.text(f"sum.{i}", MARGIN + (28 if i else 0), top + 14 + LINE * i, text.strip(), 13.5)
    return top + 14 + LINE * rows


def _legend(scene: Scene, a: Arithmetic, top: float) -> float:
    entries: list[tuple[Look | None, str]] = [(solved(None), "computed at this step")]
    if len(a.phases) > 1:
        entries += [(resting(None) | {"fill": phase_hue(a, p)}, f"x mod S = {name(p)}") for p in a.phases]
    if any(a.resolved.pads_begin + a.resolved.pads_end):
        meaning = "pads: cut off the result" if a.unknown is Unknown.X else "pads: read as zero"
        entries.append((absent(), meaning))
    if not all(map(a.is_reached, product(*map(range, a.extents["x"])))):
        entries.append(({"fill": "#ffffff", "stroke": FAINT, "crossed": True}, "no tap reaches it"))
    zeros = "; 0 is padding" if a.unknown is Unknown.W and any(a.resolved.pads_begin + a.resolved.pads_end) else ""
    entries.append((None, f"cells with equal labels are multiplied{zeros}"))
    x, y = MARGIN, top
    for i, (look, meaning) in enumerate(entries):
        width = (30 if look else 8) + 6.4 * len(meaning)
        if x + width > max(scene.width, 560) - MARGIN and x > MARGIN:
            x, y = MARGIN, y + 22
        crossed = look.pop("crossed", False) if look else False
        if look:
            scene.box(f"legend.{i}", x, y, 15, 15, **(look | {"stroke-width": min(2, look.get("stroke-width", 1))}))
        if crossed:
            scene.line(f"legend.{i}.cross", x, y + 15, x + 15, y, stroke=GREY)
        scene.text(f"legend.{i}.text", x + (22 if look else 0), y + 12, meaning, 12, fill=GREY)
        x += width + 14
    return y + 22


def _channels(scene: Scene, a: Arithmetic, top: float) -> None:
    """Two rows of channels, a line for every kernel of taps between them; words alone if there are many."""
    p = a.problem
    scene.text("channels.text", MARGIN, top + 14, channels(a), 12, fill=GREY)
    scene.height = top + 30
    sides = (("x", p.x_channels), ("y", p.y_channels))
    if max(n for _, n in sides) * p.groups > MOST_CHANNELS or p.groups * p.x_channels * p.y_channels == 1:
        return
    names = {letter: a.names[letter] for letter, _ in sides}
    left = MARGIN + 14 + 7.5 * max(map(len, names.values()))
    pitch, gap, box, rise = 26, 22, 16, 46
    widest = max(n for _, n in sides) * pitch
    places: dict[tuple[str, int, int], float] = {}
    for letter, n in sides:
        for g in range(p.groups):
            start = left + g * (widest + gap) + (widest - n * pitch) / 2
            places |= {(letter, g, c): start + c * pitch for c in range(n)}
    y = {"x": top + 28, "y": top + 28 + rise}
    for g in range(p.groups):
        for c in range(p.x_channels):
            for k in range(p.y_channels):
                first = g == c == k == 0
                scene.line(
                    f"channels.{g}.{c}.{k}", places["x", g, c] + box / 2, y["x"] + box, places["y", g, k] + box / 2,
                    y["y"], stroke=INK if first else FAINT, stroke_width=2.5 if first else 1,
                )  # fmt: skip
    for (letter, g, c), x in places.items():
        first = g == c == 0
        scene.box(
            f"channels.{letter}.{g}.{c}", x, y[letter], box, box, fill="#ffffff" if first else "#eeeeea",
            stroke=INK if first else FAINT, stroke_width=2 if first else 1, rx=3,
        )  # fmt: skip
    for letter, _ in sides:
        scene.text(f"channels.{letter}", MARGIN, y[letter] + 13, names[letter], 12)
    scene.height = y["y"] + box + 20
    scene.width = max(scene.width, max(places.values()) + box + MARGIN)
