"""Where the time of a training step goes: the share of convolutions, the other operators, and every layer."""

from __future__ import annotations

from contextlib import nullcontext
from time import perf_counter
from typing import Any

import layers
from torch.profiler import ProfilerActivity, profile
from trainings import Case, Training

import convgrad.torch

CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")  # what all ways to a convolution end in
OTHERS = 8  # operators that are told besides


def of_training(case: Case, layout: str, dtype: str, budget: float) -> dict[str, Any]:
    """Steps of both under the profiler, and every convolution of a step by itself; `budget` is seconds for each."""
    training = case.train(layout, dtype)
    training.step(0)
    with layers.Recorder() as recorder:
        training.step(1)
    found: dict[str, Any] = {"about": case.about, "dtype": dtype, "layout": layout}
    for by, enabled in (("stock", nullcontext), ("convgrad", convgrad.torch.enabled)):
        with enabled():
            training.step(2)
            found[by] = shares(training, 3)
    compared = sorted(layers.compare(recorder.layers, budget), key=lambda each: -each.ours * each.count)
    found["layers"] = [each.as_dict() for each in compared]
    return found


def shares(training: Training, number: int) -> dict[str, Any]:
    """Seconds of a step, of its convolutions, and of the operators that take longest besides."""
    start = perf_counter()
    training.step(number)
    plain = perf_counter() - start
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        training.step(number + 1)
    events = profiler.key_averages()
    inside = sum(event.cpu_time_total for event in events if event.key in CONVOLUTIONS)
    others = sorted(
        ((event.self_cpu_time_total / 1e6, event.key) for event in events if "conv" not in event.key.lower()),
        reverse=True,
    )
    return {
        "step_seconds": plain,
        "convolution_seconds": inside / 1e6,
        "other_operators": {name: seconds for seconds, name in others[:OTHERS]},
    }
