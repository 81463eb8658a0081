import json
import xml.etree.ElementTree as ET

import pytest

from convgrad.spec.schemas import SIDES

PROBLEM = "g2mb1_ic4ih5oc4oh3kh3sh2ph1"


def test_a_sum_is_told_without_a_file(convgrad):
    status, out, err = convgrad("draw", "--op", "ConvolutionBackwardData", "--step", 0, "ic1iw5oc1kw3pw1")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "diff_src[x] = Σ diff_dst[y] · weights[k], over windows y and taps k with y·S + k·D − PB = x",
        "stride S = 1, dilation D = 1, pads PB = 1, PE = 1",
        "diff_src[0] = diff_dst[1]·weights[0] + diff_dst[0]·weights[1]",
    ]


@pytest.mark.parametrize("op", SIDES)
def test_files_of_every_operation(convgrad, tmp_path, op):
    still, animation = tmp_path / "a.svg", tmp_path / "a.html"
    problem = PROBLEM if op.startswith("Convolution") else "g2mb1_ic4ih3oc4oh6kh3sh2ph1"
    status, out, _ = convgrad("draw", "--json", "--op", op, "--still", still, "--animate", animation, problem)
    report = json.loads(out)
    assert (status, report["operation"]) == (0, op)
    assert report["files"] == [str(still), str(animation)]
    assert report["terms"]
    assert op in ET.fromstring(still.read_text()).find("{http://www.w3.org/2000/svg}title").text
    assert animation.read_text().startswith("<!DOCTYPE html>")


def test_family_and_direction_are_those_of_verify(convgrad):
    for arguments, op in [
        ([], "Convolution"),
        (["--dir", "BWD_D"], "ConvolutionBackwardData"),
        (["--deconv", "--dir", "bwd_w"], "ConvTransposeBackwardWeights"),
        (["--op", "convtransposebackpropfilters"], "ConvTransposeBackwardWeights"),
    ]:
        _, out, _ = convgrad("draw", "--json", *arguments, "ic1iw4oc1kw2")
        assert json.loads(out)["operation"] == op


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["draw"], "convgrad draw: the following arguments are required: PROBLEM"),
        (["draw", "ic1id4oc1kd3"], "convgrad: Convolution: a picture has one or two spatial axes, not 3"),
        (["draw", "ic1iw400oc1kw3"], "convgrad: Convolution: src with its pads has 400 elements"),
        (["draw", "--step", "9", "ic1iw4oc1kw3"], "convgrad: --step 9: dst has the elements 0 to 1"),
        (["draw", "--op", "Pool", "ic1iw4oc1kw3"], "convgrad: --op Pool: the operations that can be drawn are"),
        (["draw", "--op", "ConvTranspose", "--conv", "ic1iw4oc1kw3"], "convgrad: --op ConvTranspose says what"),
        (["draw", "--still", "a.html", "ic1iw4oc1kw3"], "convgrad: a.html: the ending says what to write"),
        (["draw", "--still", "/nowhere/a.svg", "ic1iw4oc1kw3"], "convgrad: /nowhere/a.svg: No such file"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(convgrad, arguments, message):
    status, out, err = convgrad(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
