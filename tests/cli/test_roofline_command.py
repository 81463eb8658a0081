import importlib.util
import json

import pytest

from convgrad.cli import roofs

SMALL = ("--budget", "0.01", "--dir", "BWD_D,BWD_W", "--deconv", "mb1ic8ih8oc8kh4sh2ph1nsmall")
needs_matplotlib = pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed")


def test_ceilings_alone(convgrad, peaks):
    status, out, err = convgrad("roofline", *peaks)
    assert (status, err) == (0, "")
    assert out.splitlines()[1].split() == ["f32", "multiply-adds", "100", "GF/s"]
    assert "reading from L1" in out


@pytest.mark.parametrize(("tiles", "slow"), [(570, True), (630, False), (None, False)])
def test_a_matrix_unit_that_is_slow_is_told(convgrad, peaks, tiles, slow):
    """Six products of tiles are one of f32, of which vectors make 100 GF/s."""
    path = peaks[1]
    found = json.loads(path.read_text())
    found["gflops"] |= {"bf16 tile products": tiles} if tiles else {}
    path.write_text(json.dumps(found))
    _, out, _ = convgrad("roofline", *peaks)
    assert ("CONVGRAD_ISA=avx512" in out) == ("make 95 GF/s, and multiply-adds 100" in out) == slow


def test_its_json_is_a_file_of_peaks(convgrad, peaks, tmp_path):
    _, out, _ = convgrad("roofline", "--json", *peaks)
    path = tmp_path / "again.json"
    path.write_text(out)
    assert convgrad("roofline", "--json", "--peaks", path)[1] == out


@needs_matplotlib
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_dots_below_the_ceilings(convgrad, peaks, stand_ins, tmp_path, suffix):
    path = tmp_path / f"roofline{suffix}"
    status, out, err = convgrad("roofline", "--plot", path, *peaks, *SMALL)
    assert (status, err) == (0, "")
    assert "of what the machine allows (geometric mean)" in out
    assert path.stat().st_size > 5000


def test_each_operation_has_its_bound(convgrad, peaks, stand_ins):
    _, out, _ = convgrad("roofline", "--json", *peaks, *SMALL)
    for result in json.loads(out)["results"]:
        assert list(result["engines"]) == ["convgrad"]
        assert result["roof"]["convgrad"] == result["bound_seconds"] / 1e-3


def test_ceilings_of_other_threads_are_refused(convgrad, peaks, monkeypatch):
    monkeypatch.setattr("convgrad.cli.roofs.available_cpus", lambda: (8, "here"))
    status, _, err = convgrad("roofline", "--threads", 2, *peaks)
    assert status == 2
    assert "ceilings of 1 threads, but 2 are asked for" in err


@pytest.mark.parametrize("command", [["roofline"], ["bench", "dcgan"]])
def test_more_threads_than_cpus_are_refused(convgrad, command):
    status, _, err = convgrad(*command, "--threads", 4000)
    assert status == 2
    assert "this process may use" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [("[" * 100_000, "not JSON: maximum recursion depth"), (" " * 2**21, "more than 1048576 bytes")],
)
def test_a_file_that_is_no_ceilings_is_told(convgrad, tmp_path, content, message):
    (tmp_path / "peaks.json").write_text(content)
    status, _, err = convgrad("explain", "--peaks", tmp_path / "peaks.json", "ic1ih3oc1kh3")
    assert status == 2
    assert f"peaks.json: {message}" in err


@pytest.mark.parametrize(
    ("count", "text"), [(100, "100 bytes"), (1536, "1.5 KiB"), (3 << 20, "3 MiB"), (1 << 31, "2 GiB")]
)
def test_sizes_in_words(count, text):
    assert roofs.size(count) == text
