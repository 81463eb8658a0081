"""Plans: valid, readable, the same for equal arguments, of bounded memory, and made in bounded time."""

from dataclasses import replace
from itertools import product
from time import process_time

import numpy as np
import pytest

from cases import shared
from codegen.dense_problems import problem_of as exact_problem
from codegen.random_problems import random_problem
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose, variants
from convgrad.plan.depthwise.plane_data import PlaneDataPlan
from convgrad.plan.depthwise.plane_weights import PlaneWeightsPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.machine import LEVELS, machine_for
from convgrad.problem.conv import Unknown
from convgrad.runtime import set_num_threads
from convgrad.runtime.threads import team
from plan.layers import TABLE, each_level, plans_of, problem_of

MOST_BYTES = 4 << 20  # of workspace on one thread, besides packed weights


@each_level
def test_all_plans_of_layers_are_valid_and_readable(isa):
    for name, problem in TABLE.items():
        for plan in plans_of(name, isa):
            plan.validate()
            first, *reasons = str(plan).splitlines()
            assert ("weights plan" if problem.unknown is Unknown.W else "data plan") in first
            assert f"on {isa}" in first
            assert any("Mcycles predicted" in reason for reason in reasons), "a plan says what it was chosen over"
            assert max(map(len, (first, *reasons))) < 256


@each_level
def test_plans_of_random_problems_are_valid(isa):
    for seed in range(list(LEVELS).index(isa) % 2, 300, 2):
        problem = random_problem(np.random.default_rng(seed))
        for plan in variants(problem, machine_for(isa)):
            plan.validate()
            assert str(plan)


@each_level
def test_the_first_variant_is_chosen(isa):
    for name, problem in TABLE.items():
        assert choose(problem, machine_for(isa)) == plans_of(name, isa)[0]


def test_equal_arguments_give_equal_plans_and_equal_code():
    for problem in list(TABLE.values())[::7]:
        machine, again = machine_for("avx512"), replace(machine_for("avx512"))
        assert choose(problem, machine) == choose(replace(problem), again)
        assert lower(choose(problem, machine)).ir == lower(choose(replace(problem), again)).ir


@pytest.fixture
def threads():
    """Sets their number, and puts it back."""
    team.start()
    before = team.count, team.source
    yield set_num_threads
    team.resize(before[0])
    team.source = before[1]


def test_the_plan_does_not_depend_on_threads(threads, monkeypatch):
    machine = machine_for("avx512")
    plans = []
    for count in (1, 2, 7):
        threads(count)
        monkeypatch.setenv("CONVGRAD_NUM_THREADS", str(count))
        monkeypatch.setenv("OMP_NUM_THREADS", str(count))
        plans.append([choose(problem, machine) for problem in TABLE.values()])
    assert plans[0] == plans[1] == plans[2]


@each_level
def test_the_plan_does_not_depend_on_the_sizes_of_caches(isa):
    """Equal instruction sets give equal bits on all machines."""
    small = machine_for(isa, caches=(32 << 10, 256 << 10, 2 << 20))
    large = machine_for(isa, caches=(48 << 10, 2 << 20, 2 << 20))
    for problem in TABLE.values():
        assert choose(problem, small) == choose(problem, large)


# --- work and memory


@each_level
def test_every_task_of_a_weights_plan_has_rows_of_its_own(isa):
    """A share that begins beyond the last row would pack a negative number of them."""
    for name, problem in TABLE.items():
        if problem.unknown is Unknown.W:
            for plan in plans_of(name, isa):
                if isinstance(plan, PlaneWeightsPlan):
                    assert (plan.runs - 1) * plan.run < problem.groups, name
                    continue
                assert (plan.row_shares - 1) * plan.share_rows < plan.row_count, name


def layer_problem(layer, unknown, nxc):
    """One of the layers of the shared file, which count windows as `out` for convolutions and as `in` for others."""
    image, window = ("in", "out") if layer["kind"] == "conv" else ("out", "in")
    extents = {side: tuple(layer[f"{name}_spatial"]) for side, name in (("x", image), ("y", window))}
    channels = {side: layer[f"{name[0]}c"] // layer["groups"] for side, name in (("x", image), ("y", window))}
    return exact_problem(
        unknown, extents["x"], extents["y"], tuple(layer["kernel"]), channels=(channels["x"], channels["y"]),
        groups=layer["groups"], batch=layer["mb"], stride=tuple(layer["strides"]), dilation=tuple(layer["dilations"]),
        low=tuple(layer["pads_begin"]), layout="NXC" if nxc else "NCX", weights="NCX",
    )  # fmt: skip


def workspace(plan):
    """Bytes that a call on one thread works in, but for one copy of the weights as they are packed."""
    module = lower(plan)
    size = 8 if plan.compute == "f64" else 4
    if isinstance(plan, PlaneDataPlan | PlaneWeightsPlan):
        packed = 0
    elif isinstance(plan, DataPlan):
        packed = 0 if plan.packs_weights else plan.weights_size + plan.bias_size
    else:
        packed = plan.sum_size
    return module.scratch_bytes + module.shared_bytes - size * packed


@pytest.mark.parametrize("nxc", [False, True], ids=["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.W, Unknown.Y])
def test_rows_between_taps_that_are_far_apart_are_not_packed(unknown, nxc):
    problem = problem_of(unknown, channels=(64, 64), image=1000, windows=1000, taps=3, dilation=128, low=128, nxc=nxc)
    plan = choose(problem, machine_for("avx512"))
    assert plan.banded(1)
    extents = plan.x_extent if unknown is Unknown.W else plan.slab_extent
    assert extents[1] == 3 * plan.band(1) < 128
    assert workspace(plan) <= MOST_BYTES


@pytest.mark.parametrize("nxc", [False, True], ids=["NCX", "NXC"])
@pytest.mark.parametrize("unknown", [Unknown.X, Unknown.W, Unknown.Y])
def test_the_workspace_of_real_layers_is_bounded(unknown, nxc):
    machine, offenders = machine_for("avx512"), {}
    for layer in shared("layers.json")[::12]:
        problem = layer_problem(layer, unknown, nxc)
        used = workspace(choose(problem, machine))
        if used > MOST_BYTES:
            offenders[str(problem)] = used
    assert not offenders


@pytest.mark.parametrize("nxc", [False, True], ids=["NCX", "NXC"])
def test_what_grows_with_channels_alone_is_bounded(nxc):
    """Sums of rows of images that have several pieces; words of an odd number of channels, which come all at once."""
    images = problem_of(Unknown.Y, channels=(4346, 1063), image=1, windows=1, taps=1, batch=640, nxc=nxc)
    odd = problem_of(Unknown.X, channels=(1, 100_001), image=9, windows=7, taps=3, nxc=nxc)
    odd = replace(odd, dtype="bf16", out_dtype="bf16")
    for problem, isa in ((images, "avx512"), (odd, "avx512_bf16")):
        assert workspace(choose(problem, machine_for(isa))) <= MOST_BYTES


LONG = {
    "one row": ((1, 100_000), (1, 3)),
    "long rows": ((4, 3_000_000), (3, 3)),
    "many rows": ((3_000_000, 4), (3, 3)),
    "one axis": ((10_000_000,), (5,)),
}


@pytest.mark.parametrize("isa", ["avx2", "avx512", "amx"])
@pytest.mark.parametrize(("image", "taps"), LONG.values(), ids=LONG)
def test_planning_takes_no_longer_for_long_images(image, taps, isa):
    """Every number of outputs counts, none is counted one by one: a table of one, a list of all would take minutes."""
    machine = machine_for(isa)
    for groups, channels in ((32, (1, 1)), (1, (1, 24)), (1, (4, 8)), (8, (4, 4)), (1, (20, 20))):
        for unknown, layout in product(Unknown, ("NCX", "NXC")):
            low = tuple(tap // 2 for tap in taps)
            problem = exact_problem(
                unknown, image, image, taps, channels=channels, groups=groups, low=low, layout=layout
            )
            start = process_time()
            lower(choose(problem, machine))
            assert process_time() - start < 5, str(problem)


def test_no_windows_have_plans_too():
    for channels, groups in (((1, 1), 49), ((5, 3), 1), ((4, 4), 8)):
        problem = problem_of(
            Unknown.W, channels=channels, groups=groups, image=4, windows=0, taps=3, nxc=True, dilation=3
        )
        for isa in ("avx512", "avx512_bf16_emulated", "amx_emulated", "portable"):
            machine = machine_for(isa, triple="x86_64-unknown-linux-gnu")
            assert all(plan.validate() is None for plan in variants(problem, machine))


def test_an_empty_image_has_plans_too():
    """Its rows are packed in no time, however long a run is."""
    problem = problem_of(Unknown.W, channels=(5, 3), image=0, windows=1, taps=1)
    problem = replace(problem, x_strides=(40, 40, 8, 4, 1))  # channels first
    for isa in ("avx512", "portable"):
        machine = machine_for(isa, triple="x86_64-unknown-linux-gnu")
        assert all(plan.validate() is None for plan in variants(problem, machine))
