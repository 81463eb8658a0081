"""Groups of a task, one after the other, whose channels lie side by side in its slab."""

import pytest

from codegen.dense_problems import SAME, W, X, Y, problem_of
from codegen.emitted import HOST_ISAS
from codegen.random_problems import check_plan
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.general import data
from convgrad.plan.general.data import DataPlan
from convgrad.plan.general.data_in_place import writes_in_place
from convgrad.plan.general.weights import WeightsPlan
from convgrad.plan.machine import machine_for
from convgrad.values import replace

PROBLEMS = {
    "whole vectors": problem_of(Y, (7, 9), (7, 9), (3, 3), channels=(2, 16), groups=5, layout="NXC", batch=2, **SAME),
    "parts of vectors": problem_of(
        Y, (7, 9), (4, 5), (3, 3), channels=(3, 12), groups=5, layout="NXC", stride=2, low=1, batch=3
    ),
    "several blocks of lanes": problem_of(
        Y, (7, 9), (7, 9), (3, 3), channels=(5, 72), groups=3, layout="NXC", bias=True, **SAME
    ),
    "phases": problem_of(X, (13, 17), (7, 9), (3, 3), channels=(24, 3), groups=5, layout="NXC", stride=2, low=1),
}
AVX512 = machine_for("avx512")


def along_channels(problem, machine, **changes):
    """The plan of that kind, with its input packed, and changes."""
    plans = (plan for plan in variants(problem, machine) if type(plan) is DataPlan and plan.isa == machine.isa)
    plan = next(plan for plan in plans if not (plan.pixels or plan.spread))
    plan = replace(plan, reads_in_place=False, reads_weights=False, writes_in_place=False, **changes)
    return replace(plan, writes_in_place=writes_in_place(plan))


def grouped(positions, channels, groups, batch=1, layout="NXC"):
    """A 3x3 that keeps the extent."""
    return problem_of(
        Y, positions, positions, (3, 3), channels=channels, groups=groups, layout=layout, batch=batch, **SAME
    )


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("own", [False, True], ids=["shared weights", "own weights"])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_bundles_are_exact(problem, own, isa):
    """The last one may have fewer groups."""
    for bundle in (2, 3):
        plan = along_channels(problem, machine_for(isa), packs_weights=own, bundle=bundle)
        assert plan.grid[-2] == -(-problem.groups // bundle)
        check_plan(problem, plan, machine_for(isa))


IN_PLACE = {
    "one tap": problem_of(Y, (5, 29), (5, 29), (1, 1), channels=(3, 24), groups=5, layout="NXC", batch=2, bias=True),
    "taps": problem_of(Y, (5, 59), (5, 57), (1, 3), channels=(2, 16), groups=5, layout="NXC"),
    "phases": problem_of(X, (9, 57), (5, 29), (1, 1), channels=(48, 3), groups=5, layout="NXC", stride=2),
}


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("problem", IN_PLACE.values(), ids=IN_PLACE)
def test_bundles_in_place_are_exact(problem, isa):
    machine = machine_for(isa)
    plan = next(plan for plan in variants(problem, machine) if type(plan) is DataPlan and plan.reads_in_place)
    for bundle in (2, 3, 5):
        check_plan(problem, replace(plan, bundle=bundle), machine)


def test_the_next_slab_is_fetched_through_all_groups(monkeypatch):
    """Each sweep of a task asks for lines of its own, so that a tile asks for fewer, though whole lines are more."""
    monkeypatch.setattr(data, "KEPT_BYTES", 0)
    problem = grouped((9, 12), (8, 40), 6, batch=3)
    isa = HOST_ISAS[-1]
    alone, all_of_them = (along_channels(problem, machine_for(isa), packs_weights=False, bundle=n) for n in (1, 6))
    assert all_of_them.fetches_slab
    assert 0 < lower(all_of_them).ir.count("prefetch") < lower(alone).ir.count("prefetch")
    for plan in (alone, all_of_them):
        check_plan(problem, plan, machine_for(isa))


@pytest.mark.parametrize(
    ("problem", "bundled"),
    [
        (grouped((64, 33), (2, 16), 16, batch=8), True),  # pages of 17 MB are left after each group else
        (grouped((12, 12), (2, 24), 9, batch=8), True),  # parts of lines are copied, each group for itself else
        (grouped((64, 33), (2, 16), 16, batch=8, layout="NCX"), False),  # where groups are planes
        (problem_of(Y, (40, 40), (40, 40), (1, 1), channels=(32, 64), groups=16, layout="NXC"), True),  # in place
        (grouped((14, 14), (32, 32), 8, batch=2), False),  # whole lines, and outputs that L2 holds
    ],
    ids=["a large output", "parts of lines", "channels first", "in place", "whole lines"],
)
def test_where_groups_have_parts_of_lines_they_are_bundled(problem, bundled):
    plan = choose(problem, AVX512)
    assert (plan.bundle > 1) == bundled


def test_outputs_of_a_bundle_are_few_pages():
    plan = choose(grouped((64, 33), (2, 16), 16, batch=8), AVX512)
    assert plan.bundle == plan.problem.groups
    images, rows, positions = plan.result_extent
    position = 4 * plan.problem.groups * plan.out_channels
    assert images * rows * position * positions <= 40 * 4096


# --- weights gradients

OF_WEIGHTS = {
    "rows shift": problem_of(W, (7, 9), (7, 9), (3, 3), channels=(3, 16), groups=5, layout="NXC", batch=3, **SAME),
    "lanes shift": problem_of(W, (7, 9), (7, 9), (2, 2), channels=(24, 3), groups=5, layout="NXC", batch=3, **SAME),
    "turned": problem_of(W, (9, 11), (9, 11), (1, 1), channels=(5, 24), groups=5, batch=2),
}


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("problem", OF_WEIGHTS.values(), ids=OF_WEIGHTS)
def test_weights_of_several_groups_are_exact(problem, accumulate, chunks, isa):
    """Of a task that has their sums to itself, or shares them; the last one may have fewer groups."""
    machine, problem = machine_for(isa), replace(problem, accumulate=accumulate)
    plan = next(plan for plan in variants(problem, machine) if type(plan) is WeightsPlan and not plan.spread)
    blocks = (1, 3, *plan.block[2:])
    for at_once in (2, 5):
        changed = replace(plan, at_once=at_once, chunks=chunks, block=blocks, lane_shares=1, row_shares=1)
        assert changed.grid == (chunks, -(-5 // at_once), 1, 1)
        check_plan(problem, changed, machine)


@pytest.mark.parametrize(
    ("channels", "groups", "bias", "grouped"),
    [
        ((2, 16), 32, False, True),
        ((2, 16), 32, True, False),  # whose sums are of one group
        ((64, 64), 8, False, False),  # more arithmetic than coming back costs
    ],
    ids=["memory", "bias", "arithmetic"],
)
def test_groups_are_summed_at_once_where_memory_decides(channels, groups, bias, grouped):
    problem = problem_of(W, (61, 61), (61, 61), (1, 1), channels=channels, groups=groups, layout="NXC")
    plan = choose(replace(problem, bias_gradient="y") if bias else problem, AVX512)
    assert (plan.at_once > 1) == grouped


def test_sums_of_many_chunks_are_small():
    """Else tasks have a few groups each, and their sums to themselves."""
    few, many = (
        choose(problem_of(W, (16000,), (16000 - taps + 1,), (taps,), channels=(2, 16), groups=32, layout="NXC"), AVX512)
        for taps in (2, 13)
    )
    assert (few.at_once, few.chunks) == (32, 8)
    assert (many.at_once, many.chunks) == (4, 1)
