"""From a problem to a plan: which algorithm, which tile, which blocks. A pure function of problem and machine."""

from __future__ import annotations

from math import prod

from convgrad.plan.choose_data import choose_data
from convgrad.plan.choose_weights import choose_weights
from convgrad.plan.data import DataPlan
from convgrad.plan.machine import Machine
from convgrad.plan.weights import WeightsPlan
from convgrad.problem.conv import ConvProblem, Unknown

Plan = DataPlan | WeightsPlan


def choose(problem: ConvProblem, machine: Machine) -> Plan:
    """The plan; the same for equal arguments, on any number of threads. The unknown must hold at least one number."""
    problem.validate()
    assert prod(problem.shapes[problem.unknown.value]), "an empty result needs no kernel"
    if problem.unknown is Unknown.W:
        return choose_weights(problem, machine)
    return choose_data(problem, machine)
