"""Where numbers of 16 bits are multiplied two by two, and where vectors that widen them take less time."""

from dataclasses import replace

import pytest

from codegen.dense_problems import problem_of as exact_problem
from convgrad.plan.by_dots.dots import DotDataPlan
from convgrad.plan.by_dots.far_pairs import FarPairsPlan
from convgrad.plan.by_dots.paired_outputs import PairedOutputsPlan
from convgrad.plan.choose import choose
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.in_place.row_data import RowDataPlan
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown
from plan.layers import problem_of

MACHINE = machine_for("avx512_bf16")


def narrow(problem, dtype="bf16"):
    return replace(problem, dtype=dtype, out_dtype=dtype)


@pytest.mark.parametrize(("image", "batch", "few", "many"), [(14, 2, 2, 8), (56, 8, 3, 8), (112, 16, 8, 16)])
def test_lanes_that_meet_a_few_rows_are_read_where_they_lie(image, batch, few, many):
    """The more so, the farther away they are: what is packed is multiplied no more often than there are rows."""

    def plan_of(rows):
        sizes = {"channels": (256, rows), "image": image, "windows": image, "taps": 1, "batch": batch, "nxc": True}
        return choose(narrow(problem_of(Unknown.W, **sizes)), MACHINE)

    plan = plan_of(few)
    assert type(plan) is WeightsPlan
    assert plan.lanes_in_place
    assert isinstance(plan_of(many), FarPairsPlan)


def test_groups_that_are_parts_of_lines_are_not_packed_from_memory_one_by_one():
    def plan_of(batch):
        p = exact_problem(
            Unknown.W, (16000,), (4000,), (3,), channels=(16, 3), groups=32, stride=4, batch=batch, layout="NXC"
        )  # fmt: skip
        return choose(narrow(p), MACHINE)

    assert type(plan_of(8)) is WeightsPlan
    assert isinstance(plan_of(1), FarPairsPlan)


@pytest.mark.parametrize(("channels", "kind"), [((6, 32), PairedOutputsPlan), ((6, 1), RowDataPlan)])
def test_rows_of_several_groups_are_read_where_they_lie_unless_words_of_two_channels_would_do(channels, kind):
    p = problem_of(Unknown.X, channels=channels, image=31, windows=27, taps=7, low=1, groups=8)
    assert isinstance(choose(narrow(p), MACHINE), kind)
    assert isinstance(choose(narrow(p, "f16"), MACHINE), RowDataPlan)


def test_weights_that_few_outputs_meet_are_not_packed():
    def plan_of(image):
        sizes = {"channels": (512, 512), "low": 1, "layout": "NXC", "weights": "NXC"}
        return choose(narrow(exact_problem(Unknown.Y, (image,) * 2, (image,) * 2, (3, 3), **sizes)), MACHINE)

    plan = plan_of(2)
    assert type(plan) is DataPlan
    assert plan.reads_weights
    assert isinstance(plan_of(4), DotDataPlan)
