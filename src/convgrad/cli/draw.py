"""`convgrad draw`: pictures of the arithmetic of an operation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from convgrad.cli import problem_string
from convgrad.cli.display import UsageError, natural, show
from convgrad.cli.problem_graph import DIRECTIONS, Formats, build
from convgrad.drawing.arithmetic import Arithmetic
from convgrad.drawing.picture import ANIMATIONS, STILLS, save
from convgrad.drawing.words import formula, numbers, sum_of
from convgrad.spec.resolve import resolve
from convgrad.spec.schemas import OP_ALIASES, SIDES

EXAMPLES = f"""\
examples:
  convgrad draw mb1_ic1ih5oc1kh3sh2ph1
  convgrad draw --op ConvolutionBackwardData --still gradient.svg ic2ih6oc3oh3kh3sh2ph1
  convgrad draw --op ConvTranspose --animate transposed.html ic1ih3oc1oh6kh3sh2ph1
  convgrad draw --op ConvolutionBackwardWeights --still tap.svg --step 2 ic1iw9oc1kw3pw2dw1

problems:
{problem_string.HELP}

Pictures have one or two spatial axes. SVG and HTML need nothing installed; PNG and GIF need convgrad[draw].
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    family = parser.add_mutually_exclusive_group()
    family.add_argument("--conv", dest="transposed", action="store_false", help="a convolution (default)")
    family.add_argument("--deconv", dest="transposed", action="store_true", help="a transposed convolution")
    parser.set_defaults(transposed=None)
    parser.add_argument("--dir", type=str.upper, choices=DIRECTIONS, help="what is computed (default FWD_D)")
    parser.add_argument("--op", metavar="OP", help=f"instead of these three, one of {', '.join(SIDES)}")
    parser.add_argument("--still", type=Path, metavar="FILE", help="write the picture of one step: .svg or .png")
    parser.add_argument("--animate", type=Path, metavar="FILE", help="write all steps: .html or .gif")
    parser.add_argument(
        "--step", type=natural, metavar="N", help="of the still: an element of the result, in row-major order"
    )
    parser.add_argument("problem", metavar="PROBLEM", help="in the notation of benchdnn")


def command(args: argparse.Namespace) -> int:
    """Draw which elements and weights an operation multiplies and adds."""
    transposed, direction = _operation(args)
    arithmetic = arithmetic_of(args.problem, transposed, direction)
    last = len(arithmetic.elements) - 1
    step = arithmetic.telling_step if args.step is None else args.step
    if step > last:
        raise UsageError(f"--step {step}: {arithmetic.names[arithmetic.unknown.value]} has the elements 0 to {last}")
    written = [path for path in (args.still, args.animate) if path]
    if args.still:
        save(arithmetic, args.still, step=step, kinds=STILLS)
    if args.animate:
        save(arithmetic, args.animate, step=None, kinds=ANIMATIONS)
    text = [formula(arithmetic), numbers(arithmetic), sum_of(arithmetic, step), *(f"wrote {path}" for path in written)]
    show(_report(arithmetic, step, written), as_json=args.json, text=text)
    return 0


def arithmetic_of(problem: str, transposed: bool, direction: str) -> Arithmetic:
    """What there is to draw of a problem."""
    graph = build(problem_string.parse(problem, transposed=transposed), direction, "f32", Formats())
    op = graph.ops[0]
    shapes = [tensor.shape for tensor in op.inputs if tensor.shape is not None]
    return Arithmetic.of(resolve(op.kind, op.attrs, shapes))


def _operation(args: argparse.Namespace) -> tuple[bool, str]:
    """Family and direction."""
    if args.op is None:
        return bool(args.transposed), args.dir or "FWD_D"
    if args.transposed is not None or args.dir is not None:
        raise UsageError(f"--op {args.op} says what is computed; leave out --conv, --deconv and --dir")
    known = {op.lower(): op for op in SIDES} | {alias.lower(): op for alias, op in OP_ALIASES.items()}
    op = known.get(args.op.lower())
    if op not in SIDES:
        raise UsageError(f"--op {args.op}: the operations that can be drawn are {', '.join(SIDES)}")
    direction = "BWD_D" if op.endswith("Data") else "BWD_W" if op.endswith("Weights") else "FWD_D"
    return op.startswith("ConvTranspose"), direction


def _report(a: Arithmetic, step: int, written: list[Path]) -> dict[str, Any]:
    terms = [{"x": list(term.x), "tap": list(term.tap), "y": list(term.y)} for term in a.terms(a.elements[step])]
    return {
        "operation": a.resolved.op,
        "tensors": a.names,
        "steps": len(a.elements),
        "step": step,
        "element": list(a.elements[step]),
        "terms": terms,
        "on_padding": len(a.padding_terms(a.elements[step])),
        "files": [str(path) for path in written],
    }
