"""Running a graph on given or random inputs, timed, and checked if asked for: what `run` and `verify` share."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from convgrad.cli.bounds import Check, check
from convgrad.cli.display import Progress, UsageError, extents
from convgrad.dtypes import FLOATING
from convgrad.graph import CompiledGraph, CompiledPartition, Graph, LogicalTensor, memory
from convgrad.spec.weights import letter_axes


@dataclass(slots=True)
class Step:
    """What became of one operation."""

    partition: CompiledPartition
    times: list[float] = field(default_factory=list)  # seconds, one for each repetition
    result: np.ndarray | None = None
    check: Check | None = None

    @property
    def seconds(self) -> float:
        """Of the fastest repetition."""
        return min(self.times)

    @property
    def gflops(self) -> float:
        """10^9 operations per second; a multiply-add is two, and taps on padding are none."""
        assert self.partition.code is not None
        return self.partition.code.problem.flops / self.seconds / 1e9

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        assert self.partition.code is not None
        assert self.result is not None
        op, code = self.partition.op, self.partition.code
        report = {
            "id": op.id,
            "name": op.name,
            "kind": op.kind,
            "output": code.output.id,
            "shape": list(self.result.shape),
            "dtype": code.output.dtype,
            "sha256": checksum(self.result),
            "seconds": self.seconds,
            "gflops": self.gflops,
        }
        return report if self.check is None else report | {"check": self.check.as_dict()}


@dataclass(slots=True)
class Run:
    """What became of a graph."""

    steps: list[Step]
    arrays: dict[int, np.ndarray]  # every tensor, by id
    compile_seconds: float

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(step.check is None or step.check.passed for step in self.steps)

    @property
    def seconds(self) -> float:
        """Of all operations, each at its fastest."""
        return sum(step.seconds for step in self.steps)

    @property
    def gflops(self) -> float:
        """Of all operations together."""
        flops = sum(step.partition.code.problem.flops for step in self.steps if step.partition.code)
        return flops / self.seconds / 1e9


def run_graph(
    compiled: CompiledGraph, inputs: dict[int, np.ndarray], *, repeat: int, with_check: bool, progress: Progress
) -> Run:
    """Run a compiled graph some times on the same inputs."""
    start = time.perf_counter()
    steps = [Step(partition) for partition in compiled.compiled_for(inputs)]
    waited = time.perf_counter() - start
    results: dict[int, np.ndarray] = {}
    for _ in range(repeat):
        waiting = iter(steps)

        def note(partition: CompiledPartition, seconds: float, waiting=waiting) -> None:
            next(waiting).times.append(seconds)
            progress.step(partition.op.label)

        results = compiled.execute(inputs, keep_all=True, on_step=note)
    arrays = inputs | results
    for step in steps:
        code = step.partition.code
        assert code is not None
        step.result = arrays[code.output.id]
        if with_check:
            progress.step(f"checking {step.partition.op.label}")
            given = [arrays[tensor.id] for tensor in code.inputs]
            step.check = check(code.resolved, code.problem, given, step.result)
    return Run(steps, arrays, waited)


def random_inputs(graph: Graph, seed: int) -> dict[int, np.ndarray]:
    """Normally distributed arrays for every input of a graph; the same for the same seed.

    Weights are scaled so that values neither overflow nor vanish on their way through many layers.
    """
    ports = graph.get_input_ports()
    memory.check_size(ports, "the graph")
    rng = np.random.default_rng(seed)
    return {port.id: _random(graph, port, rng, _scale(graph, port)) for port in ports}


def _scale(graph: Graph, port: LogicalTensor) -> float:
    """One over the root of the number of products in a sum, for weights; 1 for everything else."""
    for op in graph.ops:
        is_weights = len(op.inputs) > 1 and op.inputs[1].id == port.id and "weights_format" in op.attrs
        if is_weights and not op.kind.endswith("BackwardWeights") and port.known_shape and len(port.known_shape) > 2:
            axes = letter_axes(op.attrs["weights_format"], len(port.known_shape) - 2)
            channels = min(port.known_shape[axes["O"]], port.known_shape[axes["I"]])
            return max(1, prod(port.known_shape) // max(1, channels)) ** -0.5
    return 1.0


def _random(graph: Graph, port: LogicalTensor, rng: np.random.Generator, scale: float) -> np.ndarray:
    if port.dtype == "s32":
        return _shape_told(graph, port)
    if not port.is_known or port.dtype not in FLOATING:
        raise UsageError(f"input {port}: its shape and type must be known to fill it with random numbers; use --inputs")
    array = memory.empty(port)
    shape = port.known_shape or ()
    number = np.float64 if port.dtype == "f64" else np.float32
    array[...] = rng.standard_normal(shape, dtype=number) * number(scale)
    return array


def _shape_told(graph: Graph, port: LogicalTensor) -> np.ndarray:
    """A shape tensor is filled with the shape of the result, which the graph must tell in another place then."""
    for op in graph.ops:
        if port.id in [tensor.id for tensor in op.inputs]:
            known = op.outputs[0].known_shape or op.attrs.get("dst_shape") or op.attrs.get("weights_shape")
            if known:
                return np.array(known, np.int32)
    raise UsageError(f"input {port} tells the shape of a result, and nothing else does; give its value with --inputs")


def checksum(array: np.ndarray) -> str:
    """The first 16 digits of the SHA-256 of the elements in row-major order."""
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).data).hexdigest()[:16]


def shape_and_type(step: Step) -> str:
    """Such as `4x3x64x64 f32`."""
    assert step.result is not None
    assert step.partition.code is not None
    return f"{extents(step.result.shape)} {step.partition.code.output.dtype}"
