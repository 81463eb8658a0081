import json
from pathlib import Path

import pytest

from convgrad.cli.problem_string import ProblemStringError, parse

LAYERS = Path(__file__).parents[3] / "shared" / "vectors" / "layers.json"
FIELDS = {
    "in_spatial": "src",
    "out_spatial": "dst",
    "kernel": "kernel",
    "strides": "stride",
    "pads_begin": "pad_begin",
    "pads_end": "pad_end",
    "dilations": "dilation",
}


def test_everything_is_read():
    problem = parse("g2mb4_ic8ih10iw12_oc6kh3kw2_sh2sw3_ph1pw0_dh1dw0_nname", transposed=False)
    assert (problem.groups, problem.batch, problem.ic, problem.oc) == (2, 4, 8, 6)
    assert {name: problem.each(field) for name, field in FIELDS.items()} == {
        "in_spatial": (10, 12),
        "out_spatial": (4, 4),  # (10 - 5 + 2) // 2 + 1 and (12 - 2) // 3 + 1
        "kernel": (3, 2),
        "strides": (2, 3),
        "pads_begin": (1, 0),
        "pads_end": (0, -1 + 1),
        "dilations": (2, 1),
    }


@pytest.mark.parametrize(
    ("text", "transposed", "expected"),
    [
        ("ic1oc1iw5kw3", False, {"dst": (3,), "pad_begin": (0,), "pad_end": (0,)}),
        ("ic1oc1iw5kw3ow5", False, {"pad_begin": (1,), "pad_end": (1,)}),
        ("ic1oc1iw5kw3pw1", False, {"dst": (5,), "pad_end": (1,)}),
        ("ic1oc1ih5kh3", False, {"src": (5, 5), "kernel": (3, 3)}),
        ("ic1oc1id5kd3", False, {"src": (5, 5, 5)}),
        ("ic1oc1ih5kh3iw7kw2", False, {"src": (5, 7), "dst": (3, 6)}),
        ("ic1oc1iw6kw3sw2pw0", False, {"dst": (2,), "pad_end": (0,)}),  # the last element is not read
        ("ic1oc1iw3kw3sw2", True, {"dst": (7,), "output_padding": (0,)}),
        ("ic1oc1iw3kw3sw2pw1", True, {"dst": (5,), "pad_end": (1,)}),
        ("ic1oc1iw3kw3sw2ow8pw0", True, {"pad_end": (0,), "output_padding": (1,)}),
        ("ic1oc1iw5kw3ow4", True, {"pad_begin": (1,), "pad_end": (2,)}),
        ("ic1oc1iw5kw1sh2", False, {"src": (5,)}),
    ],
)
def test_what_is_missing_follows(text, transposed, expected):
    problem = parse(text, transposed=transposed)
    assert {field: problem.each(field) for field in expected} == expected


def test_batch_is_2_or_as_named_or_replaced():
    assert parse("ic1oc1iw5kw3", transposed=False).batch == 2
    assert parse("mb0ic1oc1iw5kw3", transposed=False).batch == 0
    assert parse("mb7ic1oc1iw5kw3", transposed=False, batch=3).batch == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ic is missing or 0"),
        ("ic1iw5kw3", "oc is missing or 0"),
        ("ic1oc1", "no spatial axis"),
        ("ic1oc1kw3", "iw is missing or 0"),
        ("ic1oc1iw3", "kw is missing or 0"),
        ("ic1oc1iw3kw3sw0", "sw is missing or 0"),
        ("ic1oc1iw3kw5", "ow comes out as -1; a larger iw or pw is needed"),
        ("g0ic1oc1iw3kw3", "do not divide into g0 groups"),
        ("g2ic3oc2iw3kw3", "ic3 and oc2 do not divide into g2 groups"),
        ("ic1oc1id5kd3iw5kw3", "axis d with only one of h and w"),
        ("ic1oc1iw5kw3x", "expected at 'x'"),
        ("ic1oc1iw-5kw3", "expected at 'iw-5kw3'"),
        ("ic1oc1iw5kw3xx4", "'xx' means nothing"),
        ("ic1oc1iw5kw3pw99999999999", "the number of pw is larger than 2147483647"),
        ("ic1oc1iw٣kw3", "expected at"),
    ],
)
def test_a_string_that_names_no_problem_is_explained(text, message):
    with pytest.raises(ProblemStringError, match=message):
        parse(text, transposed=False)


@pytest.mark.skipif(not LAYERS.exists(), reason="the layers of real networks are not beside the checkout")
def test_layers_of_real_networks_are_read_as_benchdnn_does():
    wrong = []
    for layer in json.loads(LAYERS.read_text()):
        problem = parse(layer["desc"], transposed=layer["kind"] == "deconv")
        got = {name: list(problem.each(field)) for name, field in FIELDS.items()}
        got |= {"mb": problem.batch, "groups": problem.groups, "ic": problem.ic, "oc": problem.oc}
        if problem.transposed:
            got["output_padding"] = list(problem.each("output_padding"))
        if any(layer.get(name, value) != value for name, value in got.items()):
            wrong.append(layer["desc"])
    assert not wrong
