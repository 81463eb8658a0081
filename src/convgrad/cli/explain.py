"""`convgrad explain`: what an operation is made of, how it will be computed, and why so."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

from convgrad import settings
from convgrad.cli import problem_string, roofs, work
from convgrad.cli.display import Table, UsageError, Verbatim, positive, progress, seconds, show
from convgrad.cli.plan_facts import facts, in_tasks, tile, traffic
from convgrad.cli.roofs import size
from convgrad.codegen.lower import lower
from convgrad.codegen.module import KernelModule
from convgrad.engines.ceilings import Ceilings
from convgrad.plan.choose import variants
from convgrad.plan.machine import Machine, current_machine, machine_for
from convgrad.problem.conv import Unknown
from convgrad.runtime import decisions, driver, jit, num_threads

if TYPE_CHECKING:
    from convgrad.plan.choose import Plan

EXAMPLES = f"""\
examples:
  convgrad explain --deconv --dir BWD_D mb4_ic512ih8oc256kh4sh2ph1
  convgrad explain --dir BWD_W g96_ic96ih56oc96kh7ph3
  convgrad explain --deconv --dir BWD_W --isa avx2 --asm ic16ih8oc8kh4sh2ph1
  convgrad explain examples/mixed_nxc_bf16.json

{work.HELP}
problems:
{problem_string.HELP}

Predictions are what the planner goes by: cycles of one core, without waiting for memory beyond its caches.
"""
FORM = "Φ = Σ x[n, g, c, s·p + d·r - lo] · w[g, k, c, r] · y[n, g, k, p]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    work.add_arguments(parser, many=True, directions=("BWD_D",), nargs="+")
    parser.add_argument("--ops", type=work.operations, metavar="OP", help="only these operations, by their names")
    parser.add_argument("--isa", choices=settings.ISAS, help="explain for this instruction set; it need not be here")
    parser.add_argument("--variant", type=positive, metavar="N", help="explain the Nth variant instead of the one used")
    code = parser.add_mutually_exclusive_group()
    code.add_argument("--ir", action="store_true", help="print the LLVM IR of the kernel, as convgrad writes it")
    code.add_argument("--asm", action="store_true", help="print its assembly")
    roofs.add_arguments(parser)


def command(args: argparse.Namespace) -> int:
    """Show the plan of an operation and its reasons, predictions and bounds, or its code."""
    jobs = [job for job in work.jobs_of(args) if args.ops is None or job.op in args.ops]
    if not jobs:
        raise UsageError("no operation is left to explain")
    machine = _machine(args.isa)
    if args.ir or args.asm:
        codes = [_code(job, machine, args) for job in jobs]
        show({"code": codes}, as_json=args.json, text=[Verbatim(code["text"]) for code in codes])
        return 0
    ceilings = None
    with progress(len(jobs) + 1, quiet=args.json) as shown:
        explained = []
        for job in jobs:
            shown.step(f"{job.label} {job.op}")
            explained.append(_Explained(job, machine, args.variant))
        if machine == current_machine() or args.peaks:
            shown.step("measuring the ceilings")
            ceilings = roofs.ceilings(args, None)
        for one in explained:
            one.compare_with(ceilings)
    report = {
        "machine": str(machine),
        "ceilings": ceilings and ceilings.as_dict(),
        "operations": [one.as_dict() for one in explained],
    }
    text: list[str | Table] = []
    for one in explained:
        text += [*([""] if text else []), *one.text()]
    show(report, as_json=args.json, text=text)
    return 0


def _machine(isa: str | None) -> Machine:
    here = current_machine()
    if isa is None or isa == here.isa:
        return here
    return machine_for(
        isa, caches=(here.l1_bytes, here.l2_bytes, here.l3_bytes), loads_alone=here.loads_alone,
        multiplies_alone=here.multiplies_alone,
    )  # fmt: skip


def _plans(job: work.Job, machine: Machine) -> list[Plan]:
    problem = job.problem
    return list(variants(problem, machine)) if prod(problem.shapes[problem.solved]) else []


def _used(job: work.Job, machine: Machine, count: int, asked: int | None) -> int:
    """Which variant: the one asked for, else the one that calls run."""
    if asked is None:
        return min(decisions.variant_of(job.problem, machine), count - 1)
    if asked > count:
        raise UsageError(f"--variant {asked}: {job.op} of {job.label} has {count}")
    return asked - 1


def _code(job: work.Job, machine: Machine, args: argparse.Namespace) -> dict[str, str]:
    plans = _plans(job, machine)
    if not plans:
        return {"operation": job.op, "problem": str(job.problem), "text": "; the result is empty: there is no kernel"}
    module = lower(plans[_used(job, machine, len(plans), args.variant)])
    comment = ";" if args.ir else "#"
    text = f"{comment} {job.op}: {job.problem}\n{comment} {machine}\n{_text(module, machine, args)}"
    while module.fallback:
        module = module.fallback.lower()
        text += f"\n\n{comment} another kernel, compiled when there are numbers that this one is not for\n"
        text += _text(module, machine, args)
    return {"operation": job.op, "problem": str(job.problem), "text": text}


def _text(module: KernelModule, machine: Machine, args: argparse.Namespace) -> str:
    return (module.ir if args.ir else jit.assembly(driver.with_driver(module, machine.triple), machine)).strip()


class _Explained:
    """Everything there is to say of one operation."""

    def __init__(self, job: work.Job, machine: Machine, asked: int | None) -> None:
        self.job, self.machine = job, machine
        self.plans = _plans(job, machine)
        self.modules = [lower(plan) for plan in self.plans]
        self.used = _used(job, machine, len(self.plans), asked) if self.plans else 0
        self.tuned = bool(self.plans) and asked is None and self.used > 0

    def compare_with(self, ceilings: Ceilings | None) -> None:
        """Take ceilings, if there are any, and their number of threads."""
        self.ceilings = ceilings
        self.threads = ceilings.threads if ceilings else num_threads()

    @property
    def plan(self) -> Plan:
        return self.plans[self.used]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        job = self.job
        report: dict[str, Any] = {
            "layer": job.label,
            "operation": job.op,
            "problem": str(job.problem),
            "flops": job.problem.flops,
            "bytes": job.bytes_moved,
        }
        if self.ceilings:
            bound, limit = self._bound()
            report |= {"bound_seconds": bound, "bound_by": limit}
        if not self.plans:
            return report | {"plan": None}
        report["plan"] = {name: value for name, value, _ in facts(self.plan)}
        report["traffic"] = [{"what": one.what, "bytes": one.bytes} for one in traffic(self.plan)]
        report["variant"] = self.used + 1
        report["tuned"] = self.tuned
        report["variants"] = [self._variant(i) for i in range(len(self.plans))]
        return report

    def _variant(self, number: int) -> dict[str, Any]:
        plan, module = self.plans[number], self.modules[number]
        return {
            "prediction": _prediction(plan, number),
            "tasks": [stage.tasks for stage in module.stages],
            "shared_bytes": module.all_shared_bytes,
            "scratch_bytes": module.all_scratch_bytes,
            "workspace_bytes": module.workspace_bytes(self.threads),
            "weights_bytes": module.weights_bytes(self.threads),
        }

    def _bound(self) -> tuple[float, str]:
        assert self.ceilings is not None
        return self.ceilings.bound(self.job.problem, self.job.bytes_moved)

    def text(self) -> Iterator[str | Table]:
        """For people."""
        job, problem = self.job, self.job.problem
        yield f"{job.op}, {job.label}"
        yield ""
        yield f"problem    one unknown of {FORM}"
        yield f"           {problem}"
        intensity = problem.flops / max(1, job.bytes_moved)
        yield (
            f"work       {problem.flops / 1e9:.4g} Gflop on {size(job.bytes_moved)} of inputs and result: "
            f"{intensity:.3g} operations per byte"
        )
        if self.ceilings and problem.flops:
            bound, limit = self._bound()
            yield (
                f"roofline   at least {seconds(bound)} on {_threads(self.threads)}, bound by {limit}: "
                f"{problem.flops / bound / 1e9:.0f} GF/s"
            )
        elif not self.ceilings:
            yield "roofline   not of this machine; give --peaks"
        yield f"machine    {self.machine}"
        if not self.plans:
            yield "plan       none: the result is empty"
            return
        yield ""
        yield from _columns("plan", [(name, text) for name, _, text in facts(self.plan)])
        module, weights = self.modules[self.used], "sums" if problem.unknown is Unknown.W else "packed weights"
        yield from _columns(
            "",
            [
                (
                    "stages",
                    ", then ".join(f"{stage.symbol} in {in_tasks(stage.tasks)}" for stage in module.stages),
                ),
                (
                    "workspace",
                    f"{size(module.workspace_bytes(self.threads))}: {size(module.all_shared_bytes)} shared, "
                    f"{size(module.all_scratch_bytes)} for each of {_threads(self.threads)}; "
                    f"{size(module.weights_bytes(self.threads))} of it {weights}",
                ),
            ],
        )
        yield ""
        yield from _columns("traffic", [(one.what, f"{size(one.bytes)}{one.note}") for one in traffic(self.plan)])
        yield ""
        yield from self._variants()

    def _variants(self) -> Iterator[str | Table]:
        rows = []
        for number, (plan, module) in enumerate(zip(self.plans, self.modules, strict=True)):
            mark = "used" if number == self.used else ""
            tasks = " + ".join(str(stage.tasks) for stage in module.stages)
            rows.append(
                [
                    f"{number + 1}",
                    _prediction(plan, number),
                    tile(plan),
                    tasks,
                    size(module.workspace_bytes(self.threads)),
                    mark,
                ]
            )
        yield Table(
            ["variant", "prediction", "tile", "tasks", "workspace", ""],
            rows,
            numbers=["variant"],
            folded=["prediction", "tile"],
        )
        if self.tuned:
            yield f"variant {self.used + 1} was measured to be the fastest and is remembered (convgrad tune)"
        elif len(rows) > 1 and self.used == 0:
            yield "the first is used: the fewest cycles are predicted for it; convgrad tune measures them all"


def _columns(head: str, pairs: list[tuple[str, str]]) -> Iterator[str]:
    for number, (name, text) in enumerate(pairs):
        yield f"{head if not number else '':10} {name:17} {text}"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _prediction(plan: Plan, number: int) -> str:
    """The planner's own words on a variant."""
    return next(islice(plan.reasons, number, None), "not compared")
