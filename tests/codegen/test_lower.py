"""Every kind of plan finds what it is lowered to."""

import pkgutil
from importlib import import_module

import pytest

import convgrad.plan
from convgrad.codegen.lower import LOWERINGS
from convgrad.plan.depthwise.plane_data import PlaneDataPlan
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.weights import WeightsPlan

BASES = (DataPlan, WeightsPlan, PlaneDataPlan, PlaneWeightsPlan)  # data and weights in turn
ABSTRACT = {"TileByTilePlan", "FlatWeightsPlan"}  # what two kinds have in common
KINDS = {
    value
    for module in pkgutil.walk_packages(convgrad.plan.__path__, "convgrad.plan.")
    for value in vars(import_module(module.name)).values()
    if isinstance(value, type) and issubclass(value, BASES)
}


def test_each_kind_has_a_row():
    assert {kind.__name__ for kind in KINDS} - ABSTRACT == set(LOWERINGS)


@pytest.mark.parametrize("name", sorted(set(LOWERINGS.values())))
def test_each_row_names_the_stages_of_a_kernel(name):
    module, _, stages = name.rpartition(".")
    assert callable(getattr(import_module(f"convgrad.codegen.{module}"), stages).emit)


@pytest.mark.parametrize("side", [BASES[::2], BASES[1::2]], ids=["data", "weights"])
def test_kinds_are_told_apart_in_words(side):
    words = [kind.KIND for kind in KINDS if issubclass(kind, side) and kind.KIND]
    assert len(set(words)) == len(words)
