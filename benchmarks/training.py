"""Whole training steps, forward, backward and optimizer: PyTorch as it is, and with convgrad.torch.enable().

    python benchmarks/training.py                               everything, in about fifteen minutes
    python benchmarks/training.py --models unet --dtypes f32    one training
    python benchmarks/training.py --json FILE                   keeps what earlier runs left there, unless measured anew
    python benchmarks/training.py --json FILE --page docs/training.md            writes the tables of that page
    python benchmarks/training.py --profile --models resnet50   where the time goes, and the slowest layers

Two copies of a network, equal to the bit, take turns in one process: a step of one, the same step of the other. What
counts is the fastest step, since the machine may be disturbed, and the median is told beside it. Where PyTorch knows
two layouts, it is first timed in both, and both copies train in the one that is faster without convgrad. The first
step, in which kernels are compiled, is not timed, but its loss is compared.

Losses agree if they differ, relative to the larger of the loss and 1, by no more than TOLERANCE at any step. Sums in
another order differ by rounding, and training amplifies that from step to step; --control shows by how much, on a third
copy that PyTorch trains from weights that differ in their last bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import breakdown
import report
import torch
from trainings import CASES, DTYPES, Case, Training

import convgrad
import convgrad.torch

TOLERANCE = {"f32": 1e-2, "bf16": 1e-1}
TRIAL_STEPS = 3  # of each layout
KEEP_BYTES = 512 << 20  # what enable() keeps in a program that calls it once; here, steps of PyTorch come in between
STOCK, OURS, CONTROL = "stock", "convgrad", "control"


def timed_step(training: Training, number: int, *, by: str) -> tuple[float, float]:
    """Seconds, and the loss."""
    with convgrad.torch.enabled() if by == OURS else nullcontext():
        gc.collect()
        start = perf_counter()
        loss = training.step(number).item()
        return perf_counter() - start, loss


def faster_layout(case: Case, dtype: str) -> tuple[str, dict[str, float]]:
    """The layout in which PyTorch alone is faster, and the fastest step in each; layouts take turns."""
    seconds: dict[str, list[float]] = {layout: [] for layout in case.layouts}
    if len(seconds) == 1:
        return case.layouts[0], {}
    trainings = {layout: case.train(layout, dtype) for layout in case.layouts}
    for number in range(TRIAL_STEPS + 1):
        for layout, training in trainings.items():
            seconds[layout].append(timed_step(training, number, by=STOCK)[0])
    best = {layout: min(times[1:]) for layout, times in seconds.items()}
    return min(best, key=best.__getitem__), best


def in_last_bit(training: Training) -> Training:
    """The same training with every weight moved to a neighbouring number."""
    with torch.no_grad():
        for value in vars(training).values():
            for weights in value.parameters() if isinstance(value, torch.nn.Module) else ():
                weights.copy_(torch.nextafter(weights, torch.full_like(weights, torch.inf)))
    return training


def compare(case: Case, dtype: str, *, layout: str | None, steps: int, control: bool) -> dict[str, Any]:
    """Train copies in turns."""
    trial: dict[str, float] = {}
    if layout is None:
        layout, trial = faster_layout(case, dtype)
    trainings = {by: case.train(layout, dtype) for by in (STOCK, OURS)}
    if control:
        trainings[CONTROL] = in_last_bit(case.train(layout, dtype))
    seconds: dict[str, list[float]] = {by: [] for by in trainings}
    losses: dict[str, list[float]] = {by: [] for by in trainings}
    taken = convgrad.torch.taken()
    for number in range(steps + 1):
        for by, training in trainings.items():
            spent, loss = timed_step(training, number, by=by)
            seconds[by].append(spent)
            losses[by].append(loss)
            if by == OURS:
                taken = convgrad.torch.taken()  # of this step: each `enabled` counts anew
    found = {
        "about": case.about,
        "dtype": dtype,
        "layout": layout,
        "seconds_in_layouts": trial,
        "seconds": {by: {"best": min(times[1:]), "median": median(times[1:])} for by, times in seconds.items()},
        "first_step_seconds": {by: times[0] for by, times in seconds.items()},
        "losses": losses,
        "loss_difference": difference(losses[STOCK], losses[OURS]),
        "tolerance": TOLERANCE[dtype],
        "taken": taken.operations,
        "left": {f"{name}: {why}": count for (name, why), count in taken.left.items()},
    }
    if control:
        found["control_difference"] = difference(losses[STOCK], losses[CONTROL])
    for statistic in ("best", "median"):
        found[f"ratio_{statistic}"] = found["seconds"][STOCK][statistic] / found["seconds"][OURS][statistic]
    return found


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest of any step, relative to the larger of the loss and 1; NaN if a loss is."""
    differences = [abs(a - b) / max(abs(a), 1.0) for a, b in zip(one, other, strict=True)]
    return float(torch.tensor(differences).max())  # which hands on NaN


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES), metavar="M", help=", ".join(CASES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), metavar="T", help="f32, bf16")
    parser.add_argument("--steps", type=int, default=20, help="timed steps (default 20)")
    parser.add_argument("--threads", type=int, default=2, help="(default 2)")
    parser.add_argument(
        "--layout", choices=("contiguous", "channels_last"), help="(default: the one in which PyTorch alone is faster)"
    )
    parser.add_argument("--control", action="store_true", help="train a third copy, see above")
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead of timing steps")
    parser.add_argument("--budget", type=float, default=0.2, help="with --profile: seconds for a layer and an engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep results there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write tables into this page, needs --json")
    args = parser.parse_args(words)
    if args.steps < 1 or args.threads < 1:
        parser.error("--steps and --threads take numbers of at least 1")
    if args.page and not args.json:
        parser.error("--page writes what --json keeps; give both")
    return args


def main(words: Sequence[str] | None = None) -> int:
    """0 if all losses agree."""
    args = arguments(words)
    torch.set_num_threads(args.threads)
    convgrad.set_num_threads(args.threads)
    convgrad.torch.keep_results(KEEP_BYTES)
    disagreed = False
    for model in args.models:
        for dtype in args.dtypes:
            case = CASES[model]
            if args.layout and args.layout not in case.layouts:
                print(f"{model} {dtype}: PyTorch has no {args.layout} for one spatial axis")
                continue
            if args.profile:
                layout = args.layout or faster_layout(case, dtype)[0]
                found = breakdown.of_training(case, layout, dtype, args.budget)
                print(report.breakdown(model, found), flush=True)
            else:
                found = compare(case, dtype, layout=args.layout, steps=args.steps, control=args.control)
                print(report.line(model, found), flush=True)
                disagreed |= not report.agrees(found)
            if args.json:
                report.keep(args.json, "profiles" if args.profile else "steps", model, args.threads, found)
    if args.json:
        print(report.summary(json.loads(args.json.read_text())))
    if args.page:
        report.write(args.page, json.loads(args.json.read_text()))
    return int(disagreed)


if __name__ == "__main__":
    sys.exit(main())
