"""Which variant of its plan a problem runs: the first, unless tuning found a faster one and it is remembered here.

A decision is a file in the disk cache, under the rules of that cache, and is looked up once for each kernel that is
made. One that is missing, damaged or not ours is no decision. Planning stays a pure function of problem and machine:
a decision only says which of its variants is taken.
"""

from __future__ import annotations

from convgrad.plan.machine import Machine
from convgrad.problem.conv import ConvProblem
from convgrad.runtime import cache

PREFIX = "variant-"  # of the names of these files, which tells them from kernels
MOST_VARIANTS = 64  # more than any plan has

_decided: dict[tuple[ConvProblem, Machine], int] = {}  # by this process, for when nothing can be kept on disk


def variant_of(problem: ConvProblem, machine: Machine) -> int:
    """The remembered variant of a problem, counted in predicted order; 0 if nobody tuned it."""
    found = _decided.get((problem, machine))
    if found is None:
        found = _on_disk(problem, machine)
    return found or 0


def remember(problem: ConvProblem, machine: Machine, variant: int) -> bool:
    """Decide for this process and, if the cache can be used, for later ones; returns whether those will find it."""
    _decided[problem, machine] = variant
    notes = {"what": f"variant {variant} of: {problem}", "isa": machine.isa, "variant": variant}
    cache.write(_key(problem, machine), cache.Entry(b"", notes))
    return _on_disk(problem, machine) == variant


def forget(problem: ConvProblem, machine: Machine) -> bool:
    """Drop the decision on a problem, in memory and on disk; returns whether there was one."""
    known = _decided.pop((problem, machine), None) is not None
    folder = cache.state().folder
    return cache.remove(cache.path_of(folder, _key(problem, machine))) or known if folder else known


def forget_all() -> int:
    """Drop every decision, those of other machines and versions too; returns how many there were."""
    known = len(_decided)
    _decided.clear()
    folder = cache.state().folder
    files = cache.files(folder, PREFIX) if folder else []
    return max(known, sum(cache.remove(path) for _, _, path in files))


def forget_in_memory() -> None:
    """Drop what this process decided, so that the disk is asked again."""
    _decided.clear()


def _key(problem: ConvProblem, machine: Machine) -> str:
    return PREFIX + cache.key_of("variant", problem, machine)


def _on_disk(problem: ConvProblem, machine: Machine) -> int | None:
    entry = cache.read(_key(problem, machine))
    variant = entry.notes.get("variant") if entry else None
    return variant if type(variant) is int and 0 <= variant < MOST_VARIANTS else None
