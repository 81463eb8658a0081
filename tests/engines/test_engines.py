import numpy as np
import pytest

from convgrad import engines
from convgrad.cli.bounds import check
from convgrad.cli.problem_graph import DIRECTIONS, Formats, build
from convgrad.cli.problem_string import parse
from convgrad.cli.work import of_graph
from convgrad.engines.interface import EngineError, Unsupported

OTHERS = [name for name in engines.NAMES if name != "convgrad"]
PROBLEM = "mb2ic4ih7iw8oc6kh3kw2sh2sw1ph1pw0"
BOUNDS_OF_OTHERS = 1.5  # some round oftener than sums in order do


def jobs(text, direction, *, transposed, dtype="f32", formats=None):
    return list(of_graph(build(parse(text, transposed=transposed), direction, dtype, formats or Formats()), text))


def run(remote, job, seed=3):
    inputs = job.task.random_inputs(seed)
    remote.ask("prepare", job.task, inputs)
    return check(job.task.resolved, job.problem, inputs, remote.ask("output"))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", engines.NAMES)
def test_every_engine_computes_every_operation(remotes, name, direction, transposed):
    remote = remotes(name)
    for job in jobs(PROBLEM, direction, transposed=transposed):
        if name == "onednn" and job.op == "BiasAddBackward":
            continue
        assert run(remote, job).error < BOUNDS_OF_OTHERS, job.op


@pytest.mark.parametrize(("data", "weights"), [("NXC", "XIO"), ("NXC", "OIX")])
@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_W"])
@pytest.mark.parametrize("name", ["convgrad", "torch", "jax"])
def test_layouts_and_groups_mean_the_same_to_every_engine(remotes, name, direction, data, weights):
    for job in jobs("g2" + PROBLEM, direction, transposed=False, formats=Formats(data, weights)):
        assert run(remotes(name), job).error < BOUNDS_OF_OTHERS


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
@pytest.mark.parametrize("name", ["convgrad", "torch"])
def test_types(remotes, name, dtype):
    for job in jobs(PROBLEM, "BWD_D", transposed=True, dtype=dtype):
        assert run(remotes(name), job).error < BOUNDS_OF_OTHERS


def test_pads_that_differ_are_no_problem_of_pytorch(remotes):
    (job,) = jobs("ic2iw8oc3ow6kw4pw0", "BWD_W", transposed=False)
    assert job.task.resolved.pads_end == (1,)
    with pytest.raises(Unsupported, match="both ends"):
        remotes("torch").ask("prepare", job.task, 0)


@pytest.mark.parametrize(("transposed", "text"), [(True, "ic16ih8oc8kh3dh1"), (False, "g2ic16ih8oc8kh3")])
def test_known_faults_of_onednn_are_found(remotes, transposed, text):
    (job,) = jobs(text, "BWD_D", transposed=transposed)
    remote = remotes("onednn")
    try:
        found = str(run(remote, job))
    except (Unsupported, EngineError) as error:
        found = str(error)
    assert any(word in found for word in ("FAILED", "invalid_shape", "the process died"))
    (sound,) = jobs("ic16ih8oc8kh3", "BWD_D", transposed=transposed)
    assert run(remote, sound).passed  # by a new process, if the old one died


def test_a_worker_times_calls(remotes):
    (job,) = jobs(PROBLEM, "BWD_D", transposed=True)
    remote = remotes("convgrad")
    assert remote.ask("prepare", job.task, 0)["call_seconds"] > 0
    times = remote.ask("batch", 0.005)
    assert times
    assert min(times) > 0


def test_the_same_seed_gives_every_process_the_same_inputs(remotes):
    (job,) = jobs(PROBLEM, "BWD_D", transposed=True)
    remote = remotes("convgrad")
    remote.ask("prepare", job.task, 7)
    one = remote.ask("output")
    remote.ask("prepare", job.task, job.task.random_inputs(7))
    np.testing.assert_array_equal(remote.ask("output"), one)
