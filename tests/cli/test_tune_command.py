"""`convgrad tune`: what it prints, decides, forgets and refuses."""

import json
from pathlib import Path

import pytest

from convgrad.runtime import kernel, tuning

PROBLEM = "mb1ic5ih7oc6kh3ph1"
SMALL_GRAPH = Path(__file__).parents[2] / "examples" / "mixed_nxc_bf16.json"
OPERATIONS = ["ConvolutionBackwardData", "ConvolutionBackwardWeights", "BiasAddBackward"]


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", str(tmp_path / "cache"))
    kernel.forget()
    yield
    kernel.forget()


@pytest.fixture
def second_is_fastest(monkeypatch):
    monkeypatch.setattr(tuning, "race", lambda calls, seconds: (2.0, 1.0, *[3.0] * len(calls))[: len(calls)])


@pytest.mark.usefixtures("second_is_fastest", "vectors")
def test_a_table_tells_every_variant_and_the_choice(convgrad):
    status, out, err = convgrad("tune", "--dir", "FWD_B", "--data-format", "nxc", PROBLEM)
    assert (status, err) == (0, "")
    headings, first, second, last = out.splitlines()
    assert headings.split() == ["problem", "operation", "predicted", "time", "chosen", "variant"]
    assert first.split()[:6] == [PROBLEM, "Convolution", "1", "2", "s", "vectors"]
    assert second.split()[:5] == ["2", "1", "s", "chosen", "vectors"]
    assert last == "1 of 1 faster in another variant than predicted; remembered"


@pytest.mark.parametrize("family", ["--conv", "--deconv"])
def test_problems_as_json(convgrad, family):
    status, out, _ = convgrad(
        "tune", "--json", "--seconds", "0.01", family, "--dir", "BWD_WB", "--mb", 3, PROBLEM, "ic1oc1iw4kw2"
    )
    report = json.loads(out)
    assert (status, report["remembered"], report["reason"]) == (0, True, "")
    assert [operation["problem"] for operation in report["operations"]] == [PROBLEM] * 2 + ["ic1oc1iw4kw2"] * 2
    for operation in report["operations"]:
        assert [variant["chosen"] for variant in operation["variants"]].count(True) == 1
        assert all(variant["seconds"] > 0 for variant in operation["variants"])
        assert operation["gain"] >= 1


def test_all_operations_of_a_graph_file(convgrad):
    status, out, _ = convgrad("tune", "--json", "--seconds", "0.01", SMALL_GRAPH)
    report = json.loads(out)
    assert status == 0
    names = [operation["operation"] for operation in report["operations"]]
    assert all(kind in name for kind, name in zip(OPERATIONS, names, strict=True))


@pytest.mark.usefixtures("second_is_fastest")
def test_one_problem_in_two_places_is_tuned_once(convgrad):
    status, out, _ = convgrad("tune", PROBLEM, PROBLEM)
    assert status == 0
    assert out.count("chosen") == 3  # with the heading
    assert "1 of 1 faster" in out


def test_an_empty_result_has_nothing_to_tune(convgrad):
    status, out, _ = convgrad("tune", "--dir", "FWD_B", "--mb", 0, PROBLEM)
    assert status == 0
    assert out.endswith("0 of 0 faster in another variant than predicted\n")


def test_why_nothing_is_remembered(convgrad, monkeypatch):
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", "off")
    _, out, _ = convgrad("tune", "--seconds", "0.01", PROBLEM)
    assert out.endswith("not remembered: switched off by CONVGRAD_CACHE_DIR\n")


@pytest.mark.usefixtures("second_is_fastest")
def test_decisions_are_forgotten_one_by_one_or_all(convgrad):
    convgrad("tune", PROBLEM, "ic1oc1iw4kw2", "ic2oc1iw4kw2")
    assert convgrad("tune", "--forget", PROBLEM) == (0, "1 decision forgotten\n", "")
    assert convgrad("tune", "--forget", PROBLEM) == (0, "0 decisions forgotten\n", "")
    assert convgrad("tune", "--forget") == (0, "2 decisions forgotten\n", "")
    status, out, _ = convgrad("tune", "--forget", "--json")
    assert (status, json.loads(out)) == (0, {"forgotten": 0})


@pytest.mark.usefixtures("second_is_fastest")
def test_results_of_a_tuned_graph_are_checked(convgrad):
    convgrad("tune", SMALL_GRAPH)
    status, out, _ = convgrad("run", "--check", "--repeat", 1, SMALL_GRAPH)
    assert (status, "FAILED" in out) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "convgrad: tune needs problems or graph files; see convgrad tune --help"),
        (["ic1"], "convgrad: ic1: oc is missing or 0"),
        (["no-such.json"], "convgrad: no-such.json: No such file"),
        (["--seconds", "0", PROBLEM], "convgrad tune: argument --seconds: '0' is not a number of seconds"),
        (["--seconds", "nan", PROBLEM], "convgrad tune: argument --seconds: 'nan' is not"),
        (["--seconds", "soon", PROBLEM], "convgrad tune: argument --seconds: 'soon' is not"),
        (["--dtype", "f8", PROBLEM], "convgrad tune: argument --dtype: invalid choice: 'f8'"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(convgrad, arguments, message):
    status, out, err = convgrad("tune", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_bad_file_is_named_once(convgrad, tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    status, _, err = convgrad("tune", tmp_path / "bad.json")
    assert status == 2
    assert err.count("bad.json") == 1
