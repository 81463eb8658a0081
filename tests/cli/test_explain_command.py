import json
import sys

import pytest

from convgrad.plan.machine import LEVELS

DECONV = ("--deconv", "mb2_ic16ih8oc24kh4sh2ph1")


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_W", "BWD_WB"])
def test_a_plan_is_told_with_its_reasons(convgrad, peaks, direction):
    status, out, err = convgrad("explain", *peaks, *DECONV, "--dir", direction)
    assert (status, err) == (0, "")
    for word in ("problem", "roofline", "plan", "tile", "workspace", "traffic", "variant", "Mcycles predicted", "used"):
        assert word in out
    assert "bound by reading from memory" in out or "bound by arithmetic" in out


def test_the_report_is_json(convgrad, peaks):
    status, out, _ = convgrad("explain", *peaks, "--isa", "avx512", "--json", *DECONV)
    (one,) = json.loads(out)["operations"]
    assert status == 0
    assert one["operation"] == "ConvTransposeBackwardData"
    assert one["bound_seconds"] == max(one["flops"] / 100e9, one["bytes"] / 10e9)
    assert one["variant"] == 1
    assert len(one["variants"]) >= 2
    assert one["plan"]["numbers"] == "f32"


@pytest.mark.parametrize(
    ("isa", "dtype", "numbers"),
    [
        ("avx512", "bf16", "f32, 16 in a vector"),
        ("avx512_bf16", "bf16", "pairs of bf16, 16 in a vector, by dot products"),
        ("amx", "bf16", "bf16 in tiles, as they are"),
        ("amx", "f32", "bf16 in tiles, 3 pieces each, 6 products of them"),
    ],
)
@pytest.mark.parametrize("direction", ["BWD_D", "BWD_W"])
def test_what_is_multiplied_is_told(convgrad, direction, isa, dtype, numbers):
    layer = ("--conv", "--dir", direction, "--dtype", dtype, "mb4_ic256ih14oc256kh3ph1")
    assert numbers in " ".join(convgrad("explain", "--isa", isa, *layer)[1].split())


def test_phases_are_explained(convgrad, peaks):
    _, out, _ = convgrad("explain", *peaks, "--dir", "BWD_D", "ic8ih9oc8kh3sh2ph1")
    assert "4: taps per axis 1 + 2 and 1 + 2, so no product with an inserted zero" in out
    _, out, _ = convgrad("explain", *peaks, "--dir", "BWD_D", "ic8ih40iw9oc8kh3kw3sh9sw3")
    assert "27: taps per axis 1 + 1 + 1 + 6 x 0 and 1 + 1 + 1, so no product with an inserted zero" in out


def test_lanes_of_a_tile_along_runs_of_taps_are_told(convgrad):
    arguments = ("explain", "--isa", "avx512", "--json", "--conv", "--dir", "BWD_W", "mb2ic19ih31oc23kh5sh2ph2")
    (one,) = json.loads(convgrad(*arguments)[1])["operations"]
    assert one["plan"]["vectors"] == "runs of taps and channels of x"
    assert one["plan"]["tile"] == {"rows": 8, "lanes": 48, "taps": 1}


@pytest.mark.parametrize(
    ("layer", "own", "words"),
    [
        ("mb1_ic512ih4oc512kh3ph1", True, "by the tasks that multiply them"),
        ("mb4_ic64ih56oc64kh3ph1", False, "of all weights, by a stage of its own"),
    ],
)
def test_who_packs_the_weights_is_told(convgrad, peaks, layer, own, words):
    _, out, _ = convgrad("explain", *peaks, layer)
    assert words in out
    assert ("pack in " in out, "main in " in out) == (not own, True)
    (one,) = json.loads(convgrad("explain", *peaks, "--json", layer)[1])["operations"]
    assert one["plan"]["packing"] is own


@pytest.mark.parametrize("isa", LEVELS)
def test_code_of_every_instruction_set_is_shown(convgrad, isa):
    status, out, _ = convgrad("explain", "--isa", isa, "--asm", *DECONV)
    assert status == 0
    shown = {"avx2": "ymm", "portable": "mulps", "neon": "fmla"}
    assert shown.get(isa, "zmm") in out


def test_ir_is_what_llvm_reads(convgrad):
    status, out, _ = convgrad("explain", "--ir", *DECONV)
    assert status == 0
    assert out.startswith("; ConvTransposeBackwardData: solve y")
    assert "define" in out


def test_a_graph_file_is_explained_whole(convgrad, peaks, request):
    path = request.config.rootpath / "examples" / "mixed_nxc_bf16.json"
    status, out, err = convgrad("explain", *peaks, path)
    assert (status, err) == (0, "")
    assert out.count("traffic") == 3


def test_an_empty_result_has_no_plan(convgrad, peaks):
    status, out, _ = convgrad("explain", *peaks, "--mb", 0, "ic2ih5oc3kh3")
    assert status == 0
    assert "none: the result is empty" in out


def test_on_a_terminal_progress_is_shown_and_goes_away(convgrad, peaks, monkeypatch):
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    status, out, err = convgrad("explain", *peaks, *DECONV)
    assert status == 0
    assert "Mcycles" in out
    assert err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet51"], "convgrad: resnet51: "),
        (["missing.json"], "convgrad: missing.json: "),
        (["--dir", "BWD_D,BWD_Q", "ic1"], "convgrad explain: argument --dir: 'BWD_Q' is not one of FWD_B"),
        (["--ops", "Convolve", "ic1"], "convgrad explain: argument --ops: 'Convolve' is not one of"),
        (["--variant", "99", *DECONV], "convgrad: --variant 99: ConvTransposeBackwardData of"),
        (["--peaks", "missing.json", *DECONV], "convgrad: missing.json: No such file"),
        (["--ir", "--asm", *DECONV], "convgrad explain: argument --asm: not allowed with"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(convgrad, arguments, message):
    status, out, err = convgrad("explain", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
