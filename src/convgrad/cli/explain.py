"""`convgrad explain`: what an operation is made of, how it will be computed, and why so."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

from convgrad import settings
from convgrad.cli import plane_facts, problem_string, roofs, work
from convgrad.cli.display import Table, UsageError, Verbatim, positive, progress, seconds, show
from convgrad.cli.roofs import size
from convgrad.codegen.lower import lower
from convgrad.codegen.module import KernelModule
from convgrad.dtypes import SIZES
from convgrad.engines.ceilings import Ceilings
from convgrad.plan.choose import Plan, variants
from convgrad.plan.data import DataPlan
from convgrad.plan.folded import FoldedPlan
from convgrad.plan.machine import Machine, current_machine, machine_for
from convgrad.plan.plane_data import PlaneDataPlan
from convgrad.plan.plane_weights import PlaneWeightsPlan
from convgrad.plan.weights import WeightsPlan
from convgrad.runtime import decisions, driver, jit, num_threads

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
    return machine_for(isa, caches=(here.l1_bytes, here.l2_bytes, here.l3_bytes))


def _plans(job: work.Job, machine: Machine) -> list[Plan]:
    problem = job.problem
    return list(variants(problem, machine)) if prod(problem.shapes[problem.unknown.value]) else []


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
    text = module.ir if args.ir else jit.assembly(driver.with_driver(module, machine.triple), machine)
    comment = ";" if args.ir else "#"
    head = f"{comment} {job.op}: {job.problem}\n{comment} {machine}\n"
    return {"operation": job.op, "problem": str(job.problem), "text": head + text.strip()}


@dataclass(slots=True)
class _Traffic:
    """Bytes that one kind of work reads and writes, in all tasks together."""

    what: str
    bytes: int
    note: str


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
        report["plan"] = {name: value for name, value, _ in _facts(self.plan)}
        report["traffic"] = [{"what": one.what, "bytes": one.bytes} for one in _traffic(self.plan)]
        report["variant"] = self.used + 1
        report["tuned"] = self.tuned
        report["variants"] = [self._variant(i) for i in range(len(self.plans))]
        return report

    def _variant(self, number: int) -> dict[str, Any]:
        plan, module = self.plans[number], self.modules[number]
        return {
            "prediction": _prediction(plan, number),
            "tasks": [stage.tasks for stage in module.stages],
            "shared_bytes": module.shared_bytes,
            "scratch_bytes": module.scratch_bytes,
            "workspace_bytes": self._workspace(module),
        }

    def _workspace(self, module: KernelModule) -> int:
        most = max(stage.tasks for stage in module.stages)
        return module.shared_bytes + max(1, min(self.threads, most)) * module.scratch_bytes

    def _bound(self) -> tuple[float, str]:
        assert self.ceilings is not None
        return self.ceilings.bound(self.job.problem.flops, self.job.bytes_moved, self.job.task.dtype)

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
        yield from _columns("plan", [(name, text) for name, _, text in _facts(self.plan)])
        module = self.modules[self.used]
        yield from _columns(
            "",
            [
                ("stages", ", then ".join(f"{stage.symbol} in {_tasks(stage.tasks)}" for stage in module.stages)),
                (
                    "workspace",
                    f"{size(self._workspace(module))}: {size(module.shared_bytes)} shared, "
                    f"{size(module.scratch_bytes)} for each of {_threads(self.threads)}",
                ),
            ],
        )
        yield ""
        yield from _columns("traffic", [(one.what, f"{size(one.bytes)}{one.note}") for one in _traffic(self.plan)])
        yield ""
        yield from self._variants()

    def _variants(self) -> Iterator[str | Table]:
        rows = []
        for number, (plan, module) in enumerate(zip(self.plans, self.modules, strict=True)):
            mark = "used" if number == self.used else ""
            tasks = " + ".join(str(stage.tasks) for stage in module.stages)
            rows.append(
                [f"{number + 1}", _prediction(plan, number), _tile(plan), tasks, size(self._workspace(module)), mark]
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


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _by(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


def _prediction(plan: Plan, number: int) -> str:
    """The planner's own words on a variant."""
    return next(islice(plan.reasons, number, None), "not compared")


def _tile(plan: Plan) -> str:
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        return plane_facts.tile(plan)
    if isinstance(plan, DataPlan):
        return f"{_by(plan.tile)} outputs x {plan.width} channels"
    return f"{plan.row_channels} rows x {plan.width} lanes x {plan.tile_taps} taps"


def _facts(plan: Plan) -> Iterator[tuple[str, Any, str]]:
    """Name, value for programs, words for people."""
    yield "vectors", *_twice(_vectors(plan))
    yield "numbers", plan.compute, f"{plan.compute}, {plan.lanes} in a vector"
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        yield from plane_facts.facts(plan)
    elif isinstance(plan, DataPlan):
        yield from _data_facts(plan)
    else:
        yield from _weights_facts(plan)


def _twice(text: str) -> tuple[str, str]:
    return text, text


def _vectors(plan: Plan) -> str:
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        return plane_facts.vectors(plan)
    if isinstance(plan, DataPlan):
        along = "outputs of the innermost axis" if plan.pixels else "output channels"
        along += ", all phases at once" if isinstance(plan, FoldedPlan) else ""
        return f"{along}, of {plan.lane_groups} groups" if plan.spread else along
    if plan.along_windows:
        return "windows, added up in the end"
    of = f"channels of {plan.lane_side}"
    return f"{of}, of {plan.lane_groups} groups" if plan.spread else of


def _data_facts(plan: DataPlan) -> Iterator[tuple[str, Any, str]]:
    phases = [len(axis.phases) for axis in plan.axes]
    taps = [[phase.taps for phase in axis.phases] for axis in plan.axes[1:]]
    listed = " and ".join(" + ".join(map(str, of_axis)) for of_axis in taps)
    dense = "one: every output meets the same taps"
    split = f"{prod(phases)}: taps per axis {listed}, so no product with an inserted zero"
    yield "phases", phases[1:], dense if prod(phases) == 1 else split
    yield "tile", {"outputs": plan.tile, "channels": plan.width}, f"{_tile(plan)}, in registers"
    yield "block", plan.block, f"{_by(plan.block)} outputs of each phase per task (batch first)"
    yield "input channels", plan.i_block, f"{plan.i_block} of {plan.in_channels} packed at a time"
    blocks = f"{plan.blocks_per_task} of {plan.lane_blocks} blocks of {plan.width}, per task"
    yield "output channels", plan.blocks_per_task, blocks
    yield "input", plan.reads_in_place, "read where it lies" if plan.reads_in_place else "packed into a slab"
    yield (
        "result",
        plan.writes_in_place,
        "written where it lies" if plan.writes_in_place else "summed aside, then copied",
    )
    yield "written out", plan.unroll, f"taps of {plan.unroll} axes" if plan.unroll else "no taps: loops over all axes"
    size_of = SIZES[plan.compute]
    yield "weights", plan.panel * size_of, f"panels of {size(plan.panel * size_of)}, read again for every tile"
    by_tasks = "by the tasks that multiply them, each panel right before"
    yield "packing", plan.packs_weights, by_tasks if plan.packs_weights else "of all weights, by a stage of its own"
    if not plan.reads_in_place:
        yield "slab", plan.slab_size * size_of, f"{size(plan.slab_size * size_of)} of input, packed once per task"


def _weights_facts(plan: WeightsPlan) -> Iterator[tuple[str, Any, str]]:
    yield (
        "tile",
        {"rows": plan.row_channels, "lanes": plan.width, "taps": plan.tile_taps},
        f"{_tile(plan)}, in registers",
    )
    yield "block", plan.block, f"{_by(plan.block)} windows packed at a time (batch first)"
    chunks = "one: every sum is formed in one go" if plan.chunks == 1 else f"{plan.chunks}, summed apart and then added"
    yield "chunks", plan.chunks, chunks
    shares = f"{plan.lane_shares} of the lanes, {plan.row_shares} of the rows, {plan.bundles} bundles of groups"
    yield "shares", [plan.lane_shares, plan.row_shares, plan.bundles], shares
    yield "inputs", plan.direct, "read where they lie" if plan.direct else "packed into slabs"
    size_of = SIZES[plan.compute]
    if not plan.direct:
        slabs = [plan.row_slab_size * size_of, plan.lane_slab_size * size_of]
        yield "slabs", slabs, f"{size(slabs[0])} of rows, {size(slabs[1])} of lanes"
    kept = plan.own_sum_size if plan.own_sums else plan.sum_size
    yield "sums", kept * size_of, f"{size(kept * size_of)} in each {'task' if plan.own_sums else 'chunk'}"


def _traffic(plan: Plan) -> list[_Traffic]:
    """What the plan moves, predicted from its sizes."""
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        return [_Traffic(*moved) for moved in plane_facts.traffic(plan)]
    number = SIZES[plan.compute]
    if isinstance(plan, DataPlan):
        tasks = prod(plan.grid)
        slabs = 0 if plan.reads_in_place else tasks * plan.i_blocks * plan.slab_size * number
        panels = tasks * plan.blocks_per_task * plan.i_blocks * plan.panel * number
        results = 0 if plan.writes_in_place else tasks * plan.result_block * plan.blocks_per_task * number
        packed = panels if plan.packs_weights else plan.weights_size * number
        return [
            _Traffic("weights packed", packed, ", by the tasks that multiply them" if plan.packs_weights else ", once"),
            _Traffic("input packed", slabs, _share_of(slabs, prod(plan.grid)) if slabs else ": read where it lies"),
            _Traffic("weights read", panels, ", by all tasks together, once per block"),
            _Traffic("results copied", results, "" if results else ": written where they lie"),
        ]
    first = prod(plan.grid)
    per_task = 0 if plan.direct else (plan.row_slab_size + plan.lane_slab_size) * number
    blocks = -(-prod(plan.block_grid) // plan.chunks)
    packed = first * blocks * per_task
    sums = _Traffic(
        "sums", plan.chunks * plan.sum_size * number, f", of {plan.chunks} chunks, added by the second stage"
    )
    if plan.own_sums:
        sums = _Traffic(
            "sums", plan.sum_size * number, ", in registers" if plan.straight else ", by the tasks themselves"
        )
    return [_Traffic("inputs packed", packed, _share_of(packed, first) if packed else ": read where it lies"), sums]


def _share_of(total: int, tasks: int) -> str:
    return f", {size(total / tasks)} in each of {_tasks(tasks)}"
