"""What commands work on: the operations of problem strings, graph files and networks, resolved but not compiled."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from convgrad import graph as graphs
from convgrad import settings
from convgrad.cli import networks, problem_string
from convgrad.cli.display import UsageError, natural
from convgrad.cli.problem_graph import DIRECTIONS, Formats, build
from convgrad.dtypes import FLOATING, SIZES
from convgrad.engines.interface import Task
from convgrad.graph import Graph, LogicalTensor, memory
from convgrad.graph.compiled import shape_tensor
from convgrad.problem.canonicalize import canonicalize
from convgrad.problem.conv import SOLVES_FOR, ConvProblem
from convgrad.spec.resolve import resolve
from convgrad.spec.schemas import DATA_FORMATS, WEIGHTS_FORMATS
from convgrad.values import frozen, replace

GRADIENTS = ("BWD_D", "BWD_W")
HELP = f"""\
work:
  a problem in the notation of benchdnn (convgrad verify --help explains it), a graph file (.json),
  or one of the networks {", ".join(networks.NETWORKS)}
"""


@frozen(kw_only=True)
class Job:
    """One operation on dense tensors of known shape."""

    label: str  # of the layer
    again: str  # arguments that name this operation to any command
    task: Task
    problem: ConvProblem

    @property
    def op(self) -> str:
        """As the specification calls it."""
        return self.task.resolved.op

    @property
    def bytes_moved(self) -> int:
        """Inputs and result, once each."""
        resolved = self.task.resolved
        given = sum(prod(shape) for shape in resolved.input_shapes) * SIZES[self.task.dtype]
        return given + prod(resolved.output_shape) * SIZES[self.task.out_dtype]


def add_arguments(parser: argparse.ArgumentParser, *, many: bool, directions: Sequence[str], nargs: str = "+") -> None:
    """The arguments that name work: of one direction, or with `many` of a list of them."""
    family = parser.add_mutually_exclusive_group()
    family.add_argument("--conv", dest="transposed", action="store_false", help="problems are convolutions (default)")
    family.add_argument("--deconv", dest="transposed", action="store_true", help="problems are transposed convolutions")
    parser.set_defaults(transposed=False)
    parser.add_argument(
        "--dir", type=_directions if many else _direction, default=tuple(directions), metavar="D",
        help=f"{'one or some, with commas between, of' if many else 'one of'} {', '.join(DIRECTIONS)} "
        f"(default {','.join(directions)}); graph files have operations of their own",
    )  # fmt: skip
    parser.add_argument("--mb", type=natural, help=f"batch, instead of the problem's; of networks {networks.BATCH}")
    parser.add_argument("--dtype", choices=FLOATING, help="of all tensors (default f32, or what a graph file has)")
    parser.add_argument("--data-format", type=str.upper, choices=DATA_FORMATS, default="NCX", help="(default NCX)")
    parser.add_argument(
        "--weights-format", type=str.upper, choices=WEIGHTS_FORMATS, help="(default OIX, and IOX of transposed ones)"
    )
    parser.add_argument("work", metavar="WORK", nargs=nargs, help="a problem, a graph file, or the name of a network")


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """All operations that the arguments name."""
    return [job for text in args.work for job in _jobs(text, args)]


def _jobs(text: str, args: argparse.Namespace) -> Iterator[Job]:
    if text in networks.NETWORKS:
        batch = networks.BATCH if args.mb is None else args.mb
        for name, layer, transposed in networks.layers(text):
            yield from _of_problem(layer, transposed, batch, name, args)
    elif text.endswith(".json") or Path(text).is_file():
        graph = graphs.load(text)
        yield from of_graph(graph.with_dtype(args.dtype) if args.dtype else graph, text)
    else:
        yield from _of_problem(text, args.transposed, args.mb, "", args)


def _of_problem(text: str, transposed: bool, batch: int | None, name: str, args: argparse.Namespace) -> Iterator[Job]:
    problem = problem_string.parse(text, transposed=transposed, batch=batch)
    formats = Formats(args.data_format, args.weights_format)
    for direction in args.dir:
        graph = build(problem, direction, args.dtype or "f32", formats)
        again = again_of(problem, direction, args.dtype or "f32", formats)
        for job in of_graph(graph, name or problem.text):
            yield replace(job, label=name or problem.text, again=again)


def again_of(problem: problem_string.ProblemString, direction: str, dtype: str, formats: Formats) -> str:
    """The arguments that name a problem in full; defaults are left out."""
    words = ["--deconv"] * problem.transposed + ["--dir", direction]
    words += [] if dtype == "f32" else ["--dtype", dtype]
    words += [] if formats.data == "NCX" else ["--data-format", formats.data]
    words += [] if formats.weights is None else ["--weights-format", formats.weights]
    return " ".join([*words, "--mb", str(problem.batch), problem.text])


def of_graph(graph: Graph, name: str) -> Iterator[Job]:
    """The operations of a graph in order, shapes flowing from one to the next; nothing is compiled."""
    graph.finalize()
    known: dict[int, LogicalTensor] = {}
    for partition in graph.get_partitions():
        if partition.reason is not None:
            raise UsageError(f"{name}: {partition.reason}")
        op = partition.ops[0]
        shape = shape_tensor(op)
        inputs = [known.get(tensor.id, tensor) for tensor in op.inputs if tensor is not shape]
        asked = op.outputs[0]
        unknown = [tensor for tensor in inputs if not tensor.is_known]
        if unknown:
            raise UsageError(f"{name}: {op.label}: input {unknown[0]} has no known shape")
        shapes = [tensor.known_shape or () for tensor in inputs]
        resolved = resolve(op.kind, op.attrs, shapes, output_shape=asked.known_shape)
        out_dtype = inputs[0].dtype if asked.dtype == "undef" else asked.dtype
        output = LogicalTensor(asked.id, out_dtype, resolved.output_shape)
        known[asked.id] = output
        problem = canonicalize(
            resolved,
            input_strides=[memory.strides_of(replace(tensor, strides=None)) for tensor in inputs[:2]],
            output_strides=memory.strides_of(output),
            dtype=inputs[0].dtype,
            out_dtype=out_dtype,
            bias_stride=1 if len(inputs) == 3 else None,
            fpmath_mode=graph.fpmath_mode if graph.fpmath_mode != "strict" else settings.fpmath_mode(),
        )
        task = Task(resolved, inputs[0].dtype, out_dtype)
        yield Job(label=op.name or f"op {op.id}", again=name, task=task, problem=problem)


def _direction(text: str) -> tuple[str, ...]:
    found = _directions(text)
    if len(found) > 1:
        raise argparse.ArgumentTypeError("one direction at a time")
    return found


def _directions(text: str) -> tuple[str, ...]:
    found = tuple(text.upper().split(","))
    for word in found:
        if word not in DIRECTIONS:
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(DIRECTIONS)}")
    return found


def operations(text: str) -> tuple[str, ...]:
    """An argument that lists operations by name."""
    known = {name.lower(): name for name in (*SOLVES_FOR, "BiasAddBackward")}
    for word in text.split(","):
        if word.lower() not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(known.values())}")
    return tuple(known[word.lower()] for word in text.split(","))
