import csv
import importlib.util
import io
import json
import sys
from types import SimpleNamespace

import pytest

from convgrad.cli import networks, plots, racing, work
from convgrad.cli.problem_string import parse
from convgrad.cli.racing import Result, Timing
from convgrad.engines.interface import EngineError

SMALL = ("--budget", "0.01", "--dir", "BWD_D,BWD_W", "--deconv", "mb1ic8ih8oc8kh4sh2ph1nsmall")
needs_matplotlib = pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed")


def test_ratios_and_shares_come_from_the_fastest_samples(convgrad, stand_ins, peaks):
    status, out, err = convgrad("bench", "--json", *peaks, *SMALL)
    report = json.loads(out)
    data, weights = report["results"]
    assert (status, err) == (0, "")
    assert data["ratio"] == weights["ratio"] == 2
    assert data["engines"]["torch"]["gflops"] == data["flops"] / 2e-3 / 1e9
    assert data["roof"]["convgrad"] == data["bound_seconds"] / 1e-3
    assert weights["engines"]["onednn"] == {"status": "unsupported", "detail": "invalid_shape"}
    assert report["absent"] == {"jax": "jax cannot be used here"}
    assert report["summary"][0] == {
        "operation": "ConvTransposeBackwardData", "ratio": pytest.approx(2), "ahead": 1, "compared": 1
    }  # fmt: skip


def test_a_pipe_gets_plain_words(convgrad, stand_ins, peaks):
    status, out, err = convgrad("bench", *peaks, *SMALL)
    assert (status, err) == (0, "")
    assert out.splitlines()[0].split() == ["layer", "operation", "convgrad", "torch", "onednn", "ratio", "roof"]
    assert "unsupported   2.00" in out
    assert "2.00 times as fast as the best other (geometric mean), ahead in 1 of 1" in out
    assert "not measured: jax cannot be used here" in out
    assert "\x1b" not in out


def test_a_terminal_gets_progress(convgrad, stand_ins, peaks, monkeypatch):
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    status, out, err = convgrad("bench", *peaks, *SMALL)
    assert status == 0
    assert "convgrad" in out
    assert "small" in err or "measuring" in err


def test_commas(convgrad, stand_ins, peaks):
    _, out, _ = convgrad("bench", "--csv", *peaks, *SMALL)
    data, weights = csv.DictReader(io.StringIO(out))
    assert data["layer"] == "mb1ic8ih8oc8kh4sh2ph1nsmall"
    assert float(data["convgrad_seconds"]) == 1e-3
    assert weights["onednn_status"] == "unsupported"
    assert weights["onednn_gflops"] == ""


def test_engines_are_really_measured_and_checked(convgrad, peaks):
    status, out, err = convgrad("bench", "--json", "--check", "--engines", "convgrad,torch", *peaks, *SMALL)
    (result, _) = json.loads(out)["results"]
    assert (status, err) == (0, "")
    assert result["engines"]["convgrad"]["error_in_bounds"] <= 1
    assert result["engines"]["convgrad"]["gflops"] > 0


def test_a_wrong_result_is_no_rival_and_an_error(convgrad, stand_ins, peaks, monkeypatch):
    def check(self, job, timings, seed):
        timings["torch"].status = "wrong"

    monkeypatch.setattr(racing.Race, "_check", check)
    status, out, _ = convgrad("bench", "--json", "--check", *peaks, *SMALL)
    data, weights = json.loads(out)["results"]
    assert status == 1
    assert (data["ratio"], weights["ratio"]) == (4, None)


def test_a_failure_of_our_own_is_an_error(convgrad, stand_ins, peaks, monkeypatch):
    plain = racing.Remote.ask

    def ask(self, request, *arguments):
        if self.name == "convgrad" and request == "batch":
            raise EngineError("out of order")
        return plain(self, request, *arguments)

    monkeypatch.setattr(racing.Remote, "ask", ask)
    status, out, _ = convgrad("bench", *peaks, *SMALL)
    assert status == 1
    assert "convgrad failed: out of order" in out


@needs_matplotlib
@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_a_picture_is_drawn(convgrad, stand_ins, peaks, tmp_path, suffix):
    path = tmp_path / f"bench{suffix}"
    status, _, _ = convgrad("bench", "--plot", path, *peaks, *SMALL)
    assert status == 0
    assert path.read_bytes()[:4] in (b"<?xm", b"\x89PNG", b"%PDF")


@pytest.mark.parametrize("network", networks.NETWORKS)
def test_layers_of_networks_are_whole(network):
    for name, text, transposed in networks.layers(network):
        problem = parse(text, transposed=transposed)
        assert name
        for axis in problem.axes:  # extents were given, and pads make them meet
            assert axis.output_padding == 0
            assert axis.pad_begin <= (axis.kernel - 1) * axis.dilation


def test_a_job_can_be_named_again(convgrad, stand_ins, peaks):
    _, out, _ = convgrad("bench", "--json", "--dtype", "bf16", "--data-format", "NXC", *peaks, "dcgan")
    first = json.loads(out)["results"][0]
    _, again, _ = convgrad("bench", "--json", *peaks, *first["work"].split())
    (same,) = json.loads(again)["results"]
    assert {**same, "layer": "project"} == first


def test_the_geometric_mean():
    assert racing.geometric_mean([1, 4]) == pytest.approx(2)


def test_no_ratio_without_both_sides():
    job = SimpleNamespace(problem=SimpleNamespace(flops=1))
    assert Result(job, {"convgrad": Timing(times=[1.0])}, 1.0, "").ratio is None
    assert Result(job, {"torch": Timing(times=[1.0])}, 1.0, "").ratio is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engines", "mkl", *SMALL], "convgrad bench: argument --engines: 'mkl' is not one of convgrad, torch"),
        (["--budget", "-1", "ic1"], "convgrad bench: argument --budget: '-1' is not a number of seconds above 0"),
        (["--plot", "x.gif", *SMALL], "convgrad: --plot x.gif: the name must end in one of .svg, .png, .pdf"),
        (["--plot", "nowhere/x.svg", *SMALL], "convgrad: --plot nowhere/x.svg: there is no such directory"),
        (["--csv", "--json", *SMALL], "convgrad: --csv and --json are two forms of one report"),
        (["--ops", "Convolution", *SMALL], "convgrad: there is nothing to measure"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(convgrad, arguments, message):
    status, out, err = convgrad("bench", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_missing_matplotlib_is_said_before_anything_is_measured(convgrad, monkeypatch, tmp_path):
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    status, _, err = convgrad("bench", "--plot", tmp_path / "x.svg", *SMALL)
    assert status == 2
    assert "--plot needs matplotlib; pip install 'convgrad[plot]'" in err


def test_examples_are_understood():
    assert work.HELP.count("resnet50") == 1
