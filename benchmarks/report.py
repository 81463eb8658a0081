"""What was measured, in lines for a terminal, in a file of JSON that grows, and in tables for the site."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Iterator
from datetime import date
from math import exp, log
from pathlib import Path
from typing import Any

import torch

import convgrad
from convgrad.plan.machine import current_machine

BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->"
SLOWEST = 12  # layers that a breakdown shows

Results = dict[str, Any]


def agrees(found: Results) -> bool:
    """Whether losses are close; a NaN is not."""
    return found["loss_difference"] <= found["tolerance"]


def line(model: str, found: Results) -> str:
    """One training."""
    seconds = found["seconds"]
    text = (
        f"{model:9} {found['dtype']:5} {found['layout']:13} "
        f"stock {seconds['stock']['best']:6.3f} s ({seconds['stock']['median']:.3f})  "
        f"convgrad {seconds['convgrad']['best']:6.3f} s ({seconds['convgrad']['median']:.3f})  "
        f"ratio {found['ratio_best']:.2f} ({found['ratio_median']:.2f})  "
        f"losses {found['losses']['stock'][0]:.4f} to {found['losses']['stock'][-1]:.4f}, "
        f"differ by {found['loss_difference']:.1e}"
    )
    if "control_difference" in found:
        text += f" (control {found['control_difference']:.1e})"
    if not agrees(found):
        text += f", MORE THAN {found['tolerance']:.0e}"
    return text + "".join(f"\n          left to PyTorch: {count} x {why}" for why, count in found["left"].items())


def breakdown(model: str, found: Results) -> str:
    """Where the time goes: shares, other operators, slowest layers."""
    lines = [f"{model} {found['dtype']} {found['layout']}: {found['about']}"]
    for by in ("stock", "convgrad"):
        part = found[by]
        share = part["convolution_seconds"] / part["step_seconds"]
        others = ", ".join(f"{name.removeprefix('aten::')} {s:.3f}" for name, s in part["other_operators"].items())
        lines.append(
            f"  {by:8} step {part['step_seconds']:.3f} s, convolutions {part['convolution_seconds']:.3f} s "
            f"({share:.0%}); besides: {others}"
        )
    for operation, count, stock, ours in by_operation(found["layers"]):
        lines.append(
            f"  {operation:28} {count:4} calls  stock {stock:.3f} s  convgrad {ours:.3f} s  {stock / ours:.2f}"
        )
    lines.append("  ratio   ms in a step      GF/s   vs stock  calls  layer, those that cost most first")
    for layer in found["layers"][:SLOWEST]:
        lines.append(
            f"  {layer['ratio']:5.2f}  {1e3 * layer['convgrad_seconds'] * layer['calls']:13.1f}  "
            f"{layer['convgrad_gflops']:8.0f}  {layer['stock_gflops']:9.0f}  {layer['calls']:5}  "
            f"{layer['operation']} {layer['layout']} {layer['dtype']} {layer['problem']}"
        )
    return "\n".join(lines)


def by_operation(layers: Iterable[Results]) -> Iterator[tuple[str, int, float, float]]:
    """Operation, calls in a step, seconds by PyTorch and by convgrad."""
    layers = list(layers)
    for operation in sorted({layer["operation"] for layer in layers}):
        of_it = [layer for layer in layers if layer["operation"] == operation]
        yield (
            operation,
            sum(layer["calls"] for layer in of_it),
            sum(layer["stock_seconds"] * layer["calls"] for layer in of_it),
            sum(layer["convgrad_seconds"] * layer["calls"] for layer in of_it),
        )


def keep(file: Path, kind: str, model: str, threads: int, found: Results) -> None:
    """Put a result beside those that a file holds, per instruction set; a new one takes the place of an old one."""
    every = json.loads(file.read_text()) if file.exists() else {}
    kept = every.setdefault(current_machine().isa, {})
    kept["machine"] = machine()
    kept.setdefault(kind, {})[f"{model} {found['dtype']} {threads}"] = {"date": str(date.today()), **found}
    file.write_text(json.dumps(every, indent=1) + "\n")


def machine() -> dict[str, str]:
    """What the figures hold for."""
    return {
        "instruction set": current_machine().isa,
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "convgrad": convgrad.__version__,
    }


def geometric_means(steps: Results) -> dict[str, float]:
    """Of the ratios of fastest steps, by type."""
    logs: dict[str, list[float]] = {}
    for found in steps.values():
        logs.setdefault(found["dtype"], []).append(log(found["ratio_best"]))
    return {dtype: exp(sum(each) / len(each)) for dtype, each in logs.items()}


def summary(every: Results) -> str:
    """Geometric means of what a file holds for this machine's instruction set."""
    means = geometric_means(every[current_machine().isa].get("steps", {}))
    return "\n".join(f"geometric mean {dtype}: {mean:.2f}" for dtype, mean in means.items())


def tables(every: Results) -> str:
    """For the site, by instruction set."""
    return "\n".join(_tables(kept) for _, kept in sorted(every.items()) if kept.get("steps"))


def _tables(kept: Results) -> str:
    about = ", ".join(f"{name} {version}" for name, version in kept["machine"].items())
    days = sorted({found["date"] for found in kept["steps"].values()})
    lines = [
        f"Measured on {', '.join(days)}: {about}.",
        "",
        "| training | type | threads | layout | PyTorch, s | convgrad, s | ratio | of medians | losses differ by |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for key, found in kept["steps"].items():
        model, dtype, threads = key.split()
        seconds = found["seconds"]
        lines.append(
            f"| {model} | {dtype} | {threads} | {found['layout']} | {seconds['stock']['best']:.3f} "
            f"| {seconds['convgrad']['best']:.3f} | {found['ratio_best']:.2f} | {found['ratio_median']:.2f} "
            f"| {found['loss_difference']:.0e} |"
        )
    for dtype, mean in geometric_means(kept["steps"]).items():
        lines.append(f"| **geometric mean** | {dtype} | | | | | **{mean:.2f}** | | |")
    if kept.get("profiles"):
        lines += ["", *_shares(kept["profiles"])]
    return "\n".join(lines) + "\n"


def _shares(profiles: Results) -> Iterator[str]:
    yield "Seconds of a step that are convolutions, each timed by itself:"
    yield ""
    yield "| training | type | operation | calls | PyTorch | convgrad | ratio |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for key, found in profiles.items():
        model, dtype, _ = key.split()
        for operation, count, stock, ours in by_operation(found["layers"]):
            yield f"| {model} | {dtype} | {operation} | {count} | {stock:.3f} | {ours:.3f} | {stock / ours:.2f} |"


def write(page: Path, every: Results) -> None:
    """Put the tables between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    made, count = re.subn(
        re.escape(BEGIN) + r".*?" + re.escape(END), lambda _: f"{BEGIN}\n{tables(every)}\n{END}", text, flags=re.S
    )
    if count != 1:
        raise ValueError(f"{page}: lines {BEGIN.strip()} and {END} are expected once, found {count} times")
    page.write_text(made, encoding="utf-8")
