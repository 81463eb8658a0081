"""`convgrad run`: compile and run a graph file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from convgrad import graph as graphs
from convgrad.cli import npz
from convgrad.cli.display import Table, UsageError, natural, positive, progress, seconds, show
from convgrad.cli.execution import Run, random_inputs, run_graph, shape_and_type
from convgrad.dtypes import FLOATING
from convgrad.errors import ConvError

EXAMPLES = """\
examples:
  convgrad run examples/dcgan_generator_backward.json
  convgrad run graph.json --dtype bf16 --check
  convgrad run graph.json --inputs in.npz --output out.npz
  convgrad run graph.json --json | jq '.operations[].gflops'

files:
  FILE is a graph in oneDNN's form, as ONEDNN_GRAPH_DUMP=graph writes it. An entry of an .npz file is named by the id
  of its tensor, such as 10; bf16 tensors are called 10.bf16 and hold the bits of each element as uint16.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("file", metavar="FILE", help="a graph file")
    parser.add_argument("--dtype", choices=FLOATING, help="change every floating tensor to this type")
    parser.add_argument("--inputs", metavar="NPZ", help="arrays for the inputs; random ones if not given")
    parser.add_argument("--seed", type=natural, default=0, help="of the random inputs (default 0)")
    parser.add_argument("--output", metavar="NPZ", help="write the results of the graph to this file")
    parser.add_argument("--check", action="store_true", help="compare every operation with the definition")
    parser.add_argument(
        "--repeat", type=positive, default=3, metavar="N", help="run N times, tell the fastest (default 3)"
    )


def command(args: argparse.Namespace) -> int:
    """Compile and run a graph file."""
    if args.output and not Path(args.output).absolute().parent.is_dir():
        raise UsageError(f"--output {args.output}: there is no such directory")
    graph = graphs.load(args.file)
    try:
        return _run(args, graph.with_dtype(args.dtype) if args.dtype else graph)
    except ConvError as error:
        raise type(error)(f"{args.file}: {error}") from error


def _run(args: argparse.Namespace, graph: graphs.Graph) -> int:
    graph.finalize()
    steps = len(graph.get_partitions())
    with progress(1 + steps * (args.repeat + args.check), quiet=args.json) as shown:
        shown.step("compiling")
        start = time.perf_counter()
        compiled = graph.compile()
        compile_seconds = time.perf_counter() - start
        ports = graph.get_input_ports()
        inputs = npz.read(args.inputs, ports) if args.inputs else random_inputs(graph, args.seed)
        run = run_graph(compiled, inputs, repeat=args.repeat, with_check=args.check, progress=shown)
        run.compile_seconds += compile_seconds
    if args.output:
        npz.write(args.output, {port.id: run.arrays[port.id] for port in graph.get_output_ports()})
    show(_report(args, run), as_json=args.json, text=_text(args, run))
    return 0 if run.passed else 1


def _report(args: argparse.Namespace, run: Run) -> dict[str, Any]:
    return {
        "file": args.file,
        "operations": [step.as_dict() for step in run.steps],
        "compile_seconds": run.compile_seconds,
        "seconds": run.seconds,
        "gflops": run.gflops,
        "checked": args.check,
        "passed": run.passed,
    }


def _text(args: argparse.Namespace, run: Run) -> list[str | Table]:
    headings = ["operation", "kind", "tensor", "result", "checksum", "time", "GF/s"]
    rows = []
    for step in run.steps:
        report = step.as_dict()
        name = step.partition.op.name or f"op {step.partition.op.id}"
        row = [name, report["kind"], str(report["output"]), shape_and_type(step), report["sha256"]]
        rows.append([*row, seconds(step.seconds), f"{step.gflops:.1f}", *([str(step.check)] if args.check else [])])
    total = f"compiled in {seconds(run.compile_seconds)}, ran in {seconds(run.seconds)}, {run.gflops:.1f} GF/s"
    checked = ["check"] * args.check
    table = Table(
        headings + checked, rows, numbers=["tensor", "time", "GF/s"], spare=["tensor", "checksum"],
        folded=["result", *checked],
    )  # fmt: skip
    return [table, f"{args.file}: {len(rows)} operations {total}"]
