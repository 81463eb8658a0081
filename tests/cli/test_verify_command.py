import json

import numpy as np
import pytest

from convgrad.cli.bounds import reduction_length
from convgrad.cli.problem_graph import DIRECTIONS, Formats, build
from convgrad.cli.problem_string import parse
from convgrad.cli.sampling import define_at, sample
from convgrad.spec.definition import define, magnitude
from convgrad.spec.resolve import resolve

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
    assert (status, report["passed"], report["direction"]) == (0, True, "BWD_W")
    assert [problem["problem"] for problem in report["problems"]] == ["ic2oc3iw5kw3", "ic2oc3ih5kh3"]
    assert report["problems"][1]["operations"][0]["shape"] == [3, 2, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify"], "convgrad verify: the following arguments are required: PROBLEM"),
        (["verify", "ic1"], "convgrad: ic1: oc is missing or 0"),
        (["verify", "--dir", "UP", "ic1"], "convgrad verify: argument --dir: invalid choice: 'UP'"),
        (
            ["verify", "--conv", "--deconv", "ic1"],
            "convgrad verify: argument --deconv: not allowed with",
        ),
        (["verify", "--mb", "-1", "ic1"], "convgrad verify: argument --mb: "),
        (["verify", "ic1oc1iw2000000000kw1"], "convgrad: "),
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
