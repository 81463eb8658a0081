"""Pictures of measurements, by matplotlib, which is imported only for them."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from math import atan2, degrees
from pathlib import Path
from typing import Any

from convgrad.cli.display import UsageError
from convgrad.cli.racing import OURS, Result, geometric_mean
from convgrad.engines.ceilings import Ceilings, name_of

FORMATS = (".svg", ".png", ".pdf")
COLOURS = {"convgrad": "#c8102e", "torch": "#e69f00", "onednn": "#0072b2", "jax": "#009e73"}  # told apart by everyone
MARKERS = {"convgrad": "o", "torch": "s", "onednn": "D", "jax": "^"}
OPERATIONS = {
    "Convolution": "#56b4e9",
    "ConvolutionBackwardData": "#0072b2",
    "ConvolutionBackwardWeights": "#009e73",
    "ConvTranspose": "#e69f00",
    "ConvTransposeBackwardData": "#c8102e",
    "ConvTransposeBackwardWeights": "#aa4499",
    "BiasAddBackward": "#666666",
}
INK, FAINT, ROOF = "#222222", "#8a8a8a", "#e4e4e4"
STYLE = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "convgrad",  # equal measurements make equal files
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to draw."""
    parser.add_argument("--plot", metavar="FILE", help="draw a picture; the name ends in .svg, .png or .pdf")


def require(path: str | None) -> None:
    """Complain before the measurements, not after them."""
    if path is None:
        return
    if Path(path).suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end in one of {', '.join(FORMATS)}")
    if not Path(path).absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no such directory")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib; pip install 'convgrad[plot]' provides it")


def race(path: str, results: Sequence[Result], names: Sequence[str], *, title: str) -> None:
    """For each layer a mark of every engine's speed before a bar as long as the machine allows."""
    import matplotlib
    from matplotlib.figure import Figure

    by_op: dict[str, list[Result]] = {}
    for result in results:
        by_op.setdefault(result.job.op, []).append(result)
    across = min(2, len(by_op))
    rows = [list(by_op.items())[i : i + across] for i in range(0, len(by_op), across)]
    heights = [0.9 + 0.34 * max(len(found) for _, found in row) for row in rows]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.0 + 5.6 * across, 0.9 + sum(heights)), layout="constrained")
        axes = figure.subplots(len(rows), across, squeeze=False, height_ratios=heights)
        for row, line in zip(rows, axes, strict=True):
            for (op, found), axis in zip(row, line, strict=False):
                _race_of(axis, op, found, names)
            for axis in line[len(row) :]:
                axis.set_axis_off()
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        figure.legend(
            handles=_key(names), loc="outside lower left", ncols=len(names) + 2, frameon=False, fontsize=9
        )  # fmt: skip
        _save(figure, path)


def _race_of(axis: Any, op: str, results: Sequence[Result], names: Sequence[str]) -> None:
    flops = [result.job.problem.flops / 1e9 for result in results]
    roofs = [count / result.bound for count, result in zip(flops, results, strict=True)]
    rows = range(len(results))
    axis.barh(rows, roofs, height=0.72, color=ROOF, zorder=1)
    for name in [*[name for name in names if name != OURS], *[name for name in names if name == OURS]]:
        speeds = [(row, speed) for row, result in zip(rows, results, strict=True) if (speed := result.gflops(name))]
        axis.scatter(
            [speed for _, speed in speeds], [row for row, _ in speeds], marker=MARKERS[name], color=COLOURS[name],
            s=62 if name == OURS else 34, zorder=4 if name == OURS else 3, edgecolors="white", linewidths=0.7,
        )  # fmt: skip
    ratios = [result.ratio for result in results]
    for row, ratio in zip(rows, ratios, strict=True):
        if ratio is not None:
            bold = {"fontweight": "bold", "color": COLOURS[OURS]} if ratio >= 1 else {"color": FAINT}
            axis.text(1.01, row, f"{ratio:.2f}×", transform=axis.get_yaxis_transform(), va="center", fontsize=9, **bold)
    known = [ratio for ratio in ratios if ratio is not None]
    ahead = sum(ratio >= 1 for ratio in known)
    verdict = f"{geometric_mean(known):.2f}× the best other, ahead in {ahead} of {len(known)}" if known else ""
    axis.set_title(f"{op}\n{verdict}", loc="left", fontsize=10)
    axis.set_yticks(rows, [result.job.label for result in results])
    axis.set_ylim(len(results) - 0.4, -0.6)
    fastest = [speed for result in results for name in names if (speed := result.gflops(name))]
    axis.set_xlim(0, 1.04 * max([*roofs, *fastest]))
    axis.set_xlabel("GF/s")
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x", color="white", linewidth=0.8, zorder=2)


def _key(names: Sequence[str]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks = [
        Line2D([], [], linestyle="", marker=MARKERS[name], color=COLOURS[name], markeredgecolor="white", markersize=8,
               label=name)
        for name in names
    ]  # fmt: skip
    return [*marks, Patch(color=ROOF, label="what the machine allows (roofline)")]


def roofline(path: str, ceilings: Ceilings, results: Sequence[Result], *, title: str) -> None:
    """Speed over arithmetic intensity, both logarithmic, below the measured ceilings."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    points = [(_intensity(result), result.gflops(OURS), result) for result in results]
    points = [(x, y, result) for x, y, result in points if y]
    peaks = dict(ceilings.peak(result.job.problem) for *_, result in points)
    peaks = peaks or {name_of("f32"): ceilings.gflops["f32"]}
    peak = max(peaks.values())
    ridges = [peak / level.gb_per_s for level in ceilings.levels]
    left = min([min(ridges) / 2.5, *(x / 1.6 for x, *_ in points)])
    right = max([max(ridges) * 4, *(x * 1.6 for x, *_ in points)])
    bottom = min([peak / 20, *(y / 1.8 for _, y, _ in points)])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 6.2), layout="constrained")
        axis = figure.subplots()
        axis.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, peak * 1.7))
        axis.set_xlabel("arithmetic intensity: operations per byte of inputs and result, each moved once")
        axis.set_ylabel("GF/s")
        axis.grid(color=ROOF, linewidth=0.6)
        _ceilings(axis, ceilings, peaks, (left, right))
        for x, y, result in points:
            roof = result.job.problem.flops / result.bound / 1e9
            axis.plot([x, x], [y, roof], color=OPERATIONS[result.job.op], linewidth=0.7, alpha=0.45, zorder=2)
            axis.scatter([x], [y], s=42, color=OPERATIONS[result.job.op], edgecolors="white", linewidths=0.7, zorder=4)
        ops = dict.fromkeys(result.job.op for *_, result in points)
        marks = [Line2D([], [], linestyle="", marker="o", color=OPERATIONS[op], markersize=7, label=op) for op in ops]
        marks += [Line2D([], [], color=FAINT, linewidth=0.9, label="what is missing to its bound")] if marks else []
        if marks:
            axis.legend(handles=marks, loc="lower right", frameon=True, framealpha=0.9, edgecolor="none", fontsize=9)
        axis.set_title(title, loc="left", fontweight="bold")
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ticks.set_minor_locator(NullLocator())
        figure.draw_without_rendering()
        _name_levels(axis, ceilings)
        _name_points(figure, axis, points)
        _save(figure, path)


def _intensity(result: Result) -> float:
    return result.job.problem.flops / result.job.bytes_moved


def _ceilings(axis: Any, ceilings: Ceilings, peaks: dict[str, float], across: tuple[float, float]) -> None:
    left, right = across
    for name, height in peaks.items():
        start = height / max(level.gb_per_s for level in ceilings.levels)
        axis.plot([start, right], [height, height], color=INK, linewidth=1.6, zorder=3)
        axis.annotate(
            f"{name} {height:.0f} GF/s", (right, height), xytext=(-6, 5), textcoords="offset points",
            ha="right", fontsize=9,
        )  # fmt: skip
    for level in ceilings.levels:
        ridge = max(peaks.values()) / level.gb_per_s
        axis.plot([left, ridge], [left * level.gb_per_s, max(peaks.values())], color=FAINT, linewidth=1.2, zorder=2)


def _name_levels(axis: Any, ceilings: Ceilings) -> None:
    """Along each slope, from where it enters the picture; its angle is known once the axes have their place."""
    left, bottom = axis.get_xlim()[0], axis.get_ylim()[0]
    for level in ceilings.levels:
        at = max(left, bottom / level.gb_per_s) * 1.15
        ends = [axis.transData.transform((x, x * level.gb_per_s)) for x in (at, 10 * at)]
        (x, y), (further, higher) = ends
        axis.annotate(
            f"{level.name} {level.gb_per_s:.0f} GB/s", (at, at * level.gb_per_s), xytext=(-3, 4),
            textcoords="offset points", rotation=degrees(atan2(higher - y, further - x)), rotation_mode="anchor",
            fontsize=8.5, color="#555555",
        )  # fmt: skip


def _name_points(figure: Any, axis: Any, points: Sequence[tuple[float, float, Result]]) -> None:
    """The layer beside its dot, where there is room; those farthest below their bound come first."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2, foreground="white")]
    taken = [_box(axis.transData.transform((x, y)), 0, 0, 9, 9) for x, y, _ in points]
    scale = figure.dpi / 72
    for x, y, result in sorted(points, key=lambda point: point[2].roof(OURS) or 0.0):
        words = result.job.label if len(result.job.label) < 24 else result.job.label[:22] + "…"
        place = axis.transData.transform((x, y))
        wide, high = 5.0 * len(words) * scale, 9 * scale
        peak = axis.transData.transform((x, result.job.problem.flops / result.bound / 1e9))[1]
        for dx, dy, align in ((6, -3, "left"), (-6, -3, "right"), (0, -13, "center")):
            shift = {"left": wide / 2, "right": -wide / 2, "center": 0}[align]
            box = _box(place, dx * scale + shift, dy * scale + high / 2, wide, high)
            inside = axis.bbox.x0 < box[0] and box[2] < axis.bbox.x1 and axis.bbox.y0 < box[1] and box[3] < peak
            if inside and not any(_overlap(box, other) for other in taken if other[4] != box[4] or align == "center"):
                taken.append(box)
                axis.annotate(
                    words, (x, y), xytext=(dx, dy), textcoords="offset points", ha=align, fontsize=7.5, color=INK,
                    path_effects=halo, zorder=5,
                )  # fmt: skip
                break


def _box(place: Any, dx: float, dy: float, wide: float, high: float) -> tuple[float, float, float, float, tuple]:
    x, y = place[0] + dx, place[1] + dy
    return x - wide / 2, y - high / 2, x + wide / 2, y + high / 2, (float(place[0]), float(place[1]))


def _overlap(a: tuple, b: tuple) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _save(figure: Any, path: str) -> None:
    kind = Path(path).suffix.lower()
    figure.savefig(path, dpi=160, metadata={"Date": None} if kind == ".svg" else None)
