"""`convgrad tune`: measure the variants of a plan, and remember the fastest."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from convgrad import graph as graphs
from convgrad.cli import problem_string
from convgrad.cli.display import Table, UsageError, natural, progress, seconds, show
from convgrad.cli.execution import random_inputs
from convgrad.cli.problem_graph import DIRECTIONS, Formats, build
from convgrad.dtypes import FLOATING
from convgrad.errors import ConvError
from convgrad.spec.schemas import DATA_FORMATS, WEIGHTS_FORMATS
from convgrad.values import frozen

if TYPE_CHECKING:
    from convgrad.graph.compiled import Code
    from convgrad.problem.conv import ConvProblem
    from convgrad.runtime.tuning import Tuned

EXAMPLES = f"""\
examples:
  convgrad tune --conv --dir BWD_D mb2_ic16ih14oc32oh14kh3ph1
  convgrad tune --data-format NXC --seconds 5 g32mb8ic32ih56oc32oh56kh3ph1
  convgrad tune examples/dcgan_generator_backward.json
  convgrad tune --forget

problems:
{problem_string.HELP}
What ends in .json is a graph file: every operation in it is tuned, and options that describe a problem have no part
in it but --dtype, which changes every floating tensor.

A decision holds for any number of threads, until the cache is cleared or convgrad changes. It may change the order of
sums, and so the last bits of results.
"""
_LONGEST = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    family = parser.add_mutually_exclusive_group()
    family.add_argument("--conv", dest="transposed", action="store_false", help="convolutions (default)")
    family.add_argument("--deconv", dest="transposed", action="store_true", help="transposed convolutions")
    parser.set_defaults(transposed=False)
    parser.add_argument("--dir", type=str.upper, choices=DIRECTIONS, default="BWD_W", help="as of convgrad verify")
    parser.add_argument("--mb", type=natural, help="batch, instead of that of the problem")
    parser.add_argument("--dtype", choices=FLOATING, help="of all tensors (default f32, and what a graph file says)")
    parser.add_argument("--data-format", type=str.upper, choices=DATA_FORMATS, default="NCX", help="(default NCX)")
    parser.add_argument(
        "--weights-format", type=str.upper, choices=WEIGHTS_FORMATS, help="(default OIX, and IOX with --deconv)"
    )
    parser.add_argument(
        "--seconds", type=_duration, default=1.0, metavar="S",
        help="to spend on timing each operation, besides compilation (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--forget", action="store_true",
        help="go back to the prediction for these problems, or without any for all that were ever tuned",
    )  # fmt: skip
    parser.add_argument(
        "problems", metavar="PROBLEM|FILE", nargs="*", help="in the notation of benchdnn, or a graph file"
    )


def command(args: argparse.Namespace) -> int:
    """Measure variants of operations and remember the fastest."""
    if not args.problems and not args.forget:
        raise UsageError("tune needs problems or graph files; see convgrad tune --help")
    return _forget(args) if args.forget else _tune(args)


@frozen
class _Target:
    """One operation of what the user named."""

    source: str
    operation: str
    problem: ConvProblem


def _tune(args: argparse.Namespace) -> int:
    from convgrad.runtime import cache, tuning

    targets = _targets(args)
    found: dict[ConvProblem, Tuned] = {}  # several operations may be one problem
    with progress(len(targets), quiet=args.json) as shown:
        for target in targets:
            shown.step(f"{target.source}: {target.operation}")
            if target.problem not in found:
                found[target.problem] = tuning.tune(target.problem, seconds=args.seconds)
    kept = all(tuned.remembered for tuned in found.values())
    reason = "" if kept else cache.state().refusal or cache.last_failure()
    report = {
        "operations": [_report(target, found[target.problem]) for target in targets],
        "remembered": kept,
        "reason": reason,
    }
    headings = ["problem", "operation", "predicted", "time", "chosen", "variant"]
    table = Table(
        headings, list(_rows(targets, found)), numbers=["predicted", "time"], spare=["problem"],
        folded=["problem", "operation", "variant"],
    )  # fmt: skip
    changed = sum(tuned.chosen > 0 for tuned in found.values())
    last = f"{changed} of {len(found)} faster in another variant than predicted"
    if found:
        last += "; remembered" if kept else f"; not remembered: {reason}"
    show(report, as_json=args.json, text=[table, last])
    return 0


def _forget(args: argparse.Namespace) -> int:
    from convgrad.runtime import tuning

    if args.problems:
        count = sum(tuning.forget(problem) for problem in {target.problem for target in _targets(args)})
    else:
        count = tuning.forget_all()
    show(
        {"forgotten": count}, as_json=args.json, text=[f"{count} {'decision' if count == 1 else 'decisions'} forgotten"]
    )
    return 0


def _targets(args: argparse.Namespace) -> list[_Target]:
    """The operations of all problems and graph files; one whose result is empty has nothing to tune."""
    targets = []
    with progress(len(args.problems), quiet=args.json) as shown:
        for text in args.problems:
            shown.step(f"compiling {text}")
            targets += _targets_of_file(args, text) if _is_file(text) else _targets_of_problem(args, text)
    return targets


def _targets_of_file(args: argparse.Namespace, file: str) -> list[_Target]:
    graph = graphs.load(file)
    try:
        compiled = _compiled(graph.with_dtype(args.dtype) if args.dtype else graph)
    except ConvError as error:
        raise type(error)(f"{file}: {error}") from error
    return [_Target(file, op.label, code.problem) for op, code in compiled]


def _targets_of_problem(args: argparse.Namespace, text: str) -> list[_Target]:
    problem = problem_string.parse(text, transposed=args.transposed, batch=args.mb)
    graph = build(problem, args.dir, args.dtype or "f32", Formats(args.data_format, args.weights_format))
    return [_Target(text, op.kind, code.problem) for op, code in _compiled(graph)]


def _compiled(graph: graphs.Graph) -> list[tuple[graphs.Op, Code]]:
    graph.finalize()
    compiled = graph.compile()
    partitions = compiled.compiled_for(random_inputs(graph, 0) if compiled.is_deferred else {})
    return [(p.op, p.code) for p in partitions if p.code is not None and p.code.kernel is not None]


def _is_file(text: str) -> bool:
    return text.lower().endswith(".json")


def _report(target: _Target, tuned: Tuned) -> dict[str, Any]:
    return {
        "problem": target.source,
        "operation": target.operation,
        "variants": [
            {"plan": plan, "seconds": time, "chosen": n == tuned.chosen}
            for n, (plan, time) in enumerate(zip(tuned.plans, tuned.seconds, strict=True))
        ],
        "gain": tuned.gain,
    }


def _rows(targets: Sequence[_Target], found: dict[ConvProblem, Tuned]) -> Iterator[list[str]]:
    for target in targets:
        tuned = found[target.problem]
        for n, (plan, time) in enumerate(zip(tuned.plans, tuned.seconds, strict=True)):
            names = ["", ""] if n else [target.source, target.operation]
            variant = plan.partition(": ")[2] or plan  # what stands before is the same for all of them
            yield [*names, str(n + 1), seconds(time), "chosen" if n == tuned.chosen else "", variant]


def _duration(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to {_LONGEST:.0f}")
    return value
