import json
import sys
from pathlib import Path

import numpy as np
import pytest

from convgrad.cli import bounds, verify
from convgrad.cli.bounds import reduction_length
from convgrad.cli.problem_graph import DIRECTIONS, Formats, build
from convgrad.cli.problem_string import parse
from convgrad.cli.sampling import define_at, factors_of, sample
from convgrad.engines.interface import EngineError, Unsupported
from convgrad.spec.definition import define, magnitude
from convgrad.spec.resolve import resolve

ROOT = Path(__file__).parents[2]
PROBLEM = "g2mb2_ic4ih7iw8_oc6kh3kw2_sh2sw1_ph1pw0_dh0dw1"


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("family", ["--conv", "--deconv"])
def test_every_direction_passes(convgrad, family, direction):
    status, out, err = convgrad("verify", family, "--dir", direction, PROBLEM)
    assert (status, err) == (0, "")
    assert out.endswith("passed\n")
    assert out.count(PROBLEM) == (2 if direction == "BWD_WB" else 1)


@pytest.mark.parametrize("weights_format", ["OIX", "XIO", "IOX", "XOI"])
@pytest.mark.parametrize("data_format", ["NCX", "nxc"])
@pytest.mark.parametrize("family", ["--conv", "--deconv"])
def test_every_format_passes(convgrad, family, data_format, weights_format):
    formats = ["--data-format", data_format, "--weights-format", weights_format]
    for dtype, direction in [("f32", "BWD_W"), ("bf16", "BWD_D"), ("f16", "FWD_B")]:
        status, _, err = convgrad("verify", family, "--dir", direction, "--dtype", dtype, *formats, PROBLEM)
        assert (status, err) == (0, "")


def test_several_problems_and_json(convgrad):
    status, out, _ = convgrad("verify", "--json", "--mb", 3, "ic2oc3iw5kw3", "ic2oc3ih5kh3")
    report = json.loads(out)
    assert (status, report["passed"], report["directions"]) == (0, True, ["BWD_W"])
    assert [problem["problem"] for problem in report["problems"]] == ["ic2oc3iw5kw3", "ic2oc3ih5kh3"]
    assert report["problems"][1]["operations"][0]["shape"] == [3, 2, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify"], "convgrad verify: the following arguments are required: WORK"),
        (["verify", "ic1"], "convgrad: ic1: oc is missing or 0"),
        (["verify", "--dir", "UP", "ic1"], "convgrad verify: argument --dir: 'UP' is not one of"),
        (
            ["verify", "--conv", "--deconv", "ic1"],
            "convgrad verify: argument --deconv: not allowed with",
        ),
        (["verify", "--mb", "-1", "ic1"], "convgrad verify: argument --mb: "),
        (["verify", "ic1oc1iw2000000000kw1"], "convgrad: "),
        (["verify", "--ops", "BiasAddBackward", PROBLEM], "convgrad: no operation is left to verify"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(convgrad, arguments, message):
    status, out, err = convgrad(*arguments, *(["--mb", "2000000000"] if "iw2000000000" in arguments[-1] else []))
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize("formats", [Formats("NCX"), Formats("NXC", "XIO"), Formats("NXC", "IOX")], ids=str)
@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_W"])
@pytest.mark.parametrize("transposed", [False, True])
def test_sampled_elements_are_those_of_the_whole_definition(transposed, direction, formats):
    graph = build(parse(PROBLEM, transposed=transposed), direction, "f32", formats)
    (op,) = graph.ops
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(tensor.shape) for tensor in op.inputs]
    resolved = resolve(op.kind, op.attrs, [array.shape for array in inputs])
    indices = sample(resolved.output_shape, 60)
    values, sizes = define_at(resolved, inputs, indices)
    np.testing.assert_allclose(values, define(resolved, inputs)[tuple(indices.T)], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sizes, magnitude(resolved, inputs)[tuple(indices.T)], rtol=1e-12)


def test_the_length_of_a_reduction_is_the_most_products_in_a_sum():
    for transposed in (False, True):
        for direction in ("FWD_D", "BWD_D", "BWD_W"):
            graph = build(parse("mb2ic3oc4iw9kw5sw2pw2dw2", transposed=transposed), direction, "f32", Formats())
            graph.finalize()
            code = graph.get_partitions()[0].compile().code
            ones = [np.ones(tensor.shape) for tensor in code.inputs]
            assert define(code.resolved, ones).max() <= reduction_length(code.problem)


def test_a_single_problem_shows_the_spread_of_errors_and_the_worst_element(convgrad):
    _, out, _ = convgrad("verify", PROBLEM)
    assert "error in bounds" in out
    assert "worst element [" in out
    assert "src[" in out
    assert "again:" not in out


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_W"])
@pytest.mark.parametrize("family", ["--conv", "--deconv"])
def test_the_products_of_the_worst_element_are_in_the_report(convgrad, family, direction):
    _, out, _ = convgrad("verify", "--json", family, "--dir", direction, PROBLEM)
    (one,) = json.loads(out)["problems"][0]["operations"]
    assert one["worst"]["index"] == one["check"]["worst"]
    assert sum(row["elements"] for row in one["histogram"]) == one["check"]["checked"]
    assert one["worst"]["got"] == pytest.approx(one["worst"]["expected"], rel=1e-3, abs=1e-5)
    assert len(one["worst"]["largest_products"]) == min(3, one["worst"]["products"])


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D", "BWD_W"])
@pytest.mark.parametrize("transposed", [False, True])
def test_an_element_is_the_sum_of_the_products_that_are_told(transposed, direction):
    graph = build(parse(PROBLEM, transposed=transposed), direction, "f32", Formats("NXC"))
    (op,) = graph.ops
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(tensor.shape) for tensor in op.inputs]
    resolved = resolve(op.kind, op.attrs, [array.shape for array in inputs])
    expected = define(resolved, inputs)
    for index in sample(resolved.output_shape, 10).tolist():
        places = factors_of(resolved, resolved.input_shapes, index)
        a, b = (array.ravel()[flat] for array, flat in zip(inputs, places, strict=True))
        assert np.sum(a * b) == pytest.approx(expected[tuple(index)], abs=1e-12)


class Faulty:
    """An engine that spoils one element, or refuses."""

    def __init__(self, name, threads):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, request, *arguments):
        if request == "prepare":
            task, inputs = arguments
            if task.resolved.groups > 1:
                raise Unsupported("invalid_shape")
            self.result = define(task.resolved, inputs).astype(np.float32)
            self.result[0, 1, 2, 3] = np.nan
            return {"call_seconds": 1e-3}
        return self.result if request == "output" else "1.0"


def test_a_failure_is_told_with_the_command_that_does_it_again(convgrad, monkeypatch):
    monkeypatch.setattr(verify, "Remote", Faulty)
    arguments = ["--engine", "onednn", "--deconv", "--dir", "BWD_D", "--dtype", "f32", "--seed", "4"]
    status, out, _ = convgrad("verify", *arguments, "mb2ic4ih6oc3kh3")
    assert status == 1
    assert "FAILED at [0, 1, 2, 3]" in out
    assert "FAILED above 1000" in out
    assert "worst element [0, 1, 2, 3]: got nan" in out
    (again,) = [line.removeprefix("again: convgrad ") for line in out.splitlines() if line.startswith("again: ")]
    assert again == "verify --engine onednn --seed 4 --deconv --dir BWD_D --mb 2 mb2ic4ih6oc3kh3"
    assert convgrad(*again.split())[:2] == (status, out)
    json.loads(convgrad("verify", "--json", *arguments, "mb2ic4ih6oc3kh3")[1])


def test_a_refusal_has_not_passed(convgrad, monkeypatch):
    monkeypatch.setattr(verify, "Remote", Faulty)
    status, out, _ = convgrad("verify", "--engine", "onednn", "--dir", "BWD_D", "g2ic4ih6oc4kh3")
    assert status == 1
    assert "FAILED, no result: invalid_shape" in out


def test_an_absent_engine_is_a_mistake_of_the_command_line(convgrad, monkeypatch):
    def ask(self, request, *arguments):
        raise EngineError("jax cannot be used here: no")

    monkeypatch.setattr(verify.Remote, "ask", ask)
    assert convgrad("verify", "--engine", "jax", "ic2ih6oc4kh3") == (2, "", "convgrad: jax cannot be used here: no\n")


def test_bars_and_failures_on_a_terminal(convgrad, monkeypatch):
    monkeypatch.setattr(verify, "Remote", Faulty)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    status, out, _ = convgrad("verify", "--engine", "torch", "--dir", "BWD_D", "ic4ih6oc3kh3")
    assert status == 1
    assert "####" in out


def test_graph_files_networks_and_lists_of_directions_are_verified(convgrad, monkeypatch):
    monkeypatch.setattr(bounds, "FULL_FLOPS", 0)
    monkeypatch.setattr(bounds, "SAMPLES", 50)
    file = ROOT / "examples" / "mixed_nxc_bf16.json"
    status, out, err = convgrad("verify", "--json", "--ops", "BiasAddBackward,ConvolutionBackwardWeights", file)
    assert (status, err) == (0, "")
    kinds = [one["kind"] for problem in json.loads(out)["problems"] for one in problem["operations"]]
    assert kinds == ["ConvolutionBackwardWeights", "BiasAddBackward"]
    status, out, err = convgrad("verify", "--dir", "BWD_D,BWD_W", "--mb", 1, "hifigan", "ic2oc3iw5kw3nshort")
    assert (status, err) == (0, "")
    assert out.endswith("\npassed\n")
    assert out.count("BackwardData ") == out.count("BackwardWeights ") == 11
    assert "error in bounds" not in out
