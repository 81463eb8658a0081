import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from convgrad.cli import _parser, bounds, display, execution, npz
from convgrad.cli.display import Table
from convgrad.dtypes import numpy_dtype
from convgrad.graph import LogicalTensor, Op, dumps, save
from graph.builders import IMAGE, KINDS, graph_of, inputs_of, op_of

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "graphs"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="oneDNN's graph files are not beside the checkout")


@pytest.fixture
def file(tmp_path):
    """A graph file of all seven operations, none of which reads what another makes."""
    path = tmp_path / "all.json"
    save(graph_of(*[op_of(kind, id=i, first=10 * i) for i, kind in enumerate(KINDS)]), path)
    return path


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
def test_all_operations_pass_the_check(convgrad, file, dtype):
    status, out, err = convgrad("run", file, "--check", "--dtype", dtype, "--repeat", 1)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["operation", "kind", "tensor", "result", "checksum", "time", "GF/s", "check"]
    for line, kind in zip(lines[1:], KINDS, strict=False):
        assert f"{kind.lower()} " in line
        assert f" {dtype} " in line
        assert " ok, error " in line
    assert f"all.json: {len(KINDS)} operations compiled in " in lines[-1]


def test_json_is_one_object_and_nothing_else(convgrad, file):
    status, out, _ = convgrad("run", file, "--json", "--check", "--repeat", 2)
    report = json.loads(out)
    assert (status, report["passed"], report["checked"]) == (0, True, True)
    first = report["operations"][0]
    assert (first["kind"], first["output"], first["shape"], first["dtype"]) == ("Convolution", 3, [2, 4, 4, 5], "f32")
    assert first["check"]["passed"]
    assert first["check"]["checked"] == first["check"]["elements"] == 160
    assert 0 < first["seconds"] <= report["seconds"]
    assert report["gflops"] > 0


def test_the_seed_decides_the_inputs_and_the_same_seed_gives_the_same_bits(convgrad, file):
    def checksums(seed):
        operations = json.loads(convgrad("run", file, "--json", "--seed", seed, "--repeat", 1)[1])["operations"]
        return [operation["sha256"] for operation in operations]

    assert checksums(1) == checksums(1)
    assert not set(checksums(1)) & set(checksums(2))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_inputs_come_from_and_results_go_to_npz(convgrad, tmp_path, dtype):
    graph = graph_of(op_of("ConvTransposeBackwardData", dtype=dtype))
    save(graph, tmp_path / "graph.json")
    inputs = inputs_of(graph)
    npz.write(str(tmp_path / "in.npz"), inputs)
    status, _, err = convgrad(
        "run", tmp_path / "graph.json", "--inputs", tmp_path / "in.npz", "--output", tmp_path / "out"
    )
    assert (status, err) == (0, "")
    (expected,) = graph.compile().execute(inputs).values()
    (result,) = npz.read(str(tmp_path / "out"), [LogicalTensor(2, dtype, expected.shape)]).values()
    assert result.dtype == numpy_dtype(dtype)
    np.testing.assert_array_equal(result, expected)
    with np.load(tmp_path / "out") as stored:
        assert stored.files == ["2.bf16" if dtype == "bf16" else "2"]
        if dtype == "bf16":
            assert stored["2.bf16"].dtype == np.uint16
            np.testing.assert_array_equal((stored["2.bf16"].astype(np.uint32) << 16).view(np.float32), expected)


def test_inputs_of_a_wider_type_are_rounded(convgrad, tmp_path):
    graph = graph_of(op_of("BiasAddBackward"))
    save(graph, tmp_path / "graph.json")
    np.savez(tmp_path / "in.npz", **{"0": np.full(IMAGE, 1 + 2**-10, np.float64)})
    arguments = ["run", tmp_path / "graph.json", "--dtype", "bf16", "--inputs", tmp_path / "in.npz"]
    status, _, err = convgrad(*arguments, "--output", tmp_path / "out.npz")
    assert (status, err) == (0, "")
    (result,) = npz.read(str(tmp_path / "out.npz"), [LogicalTensor(1, "bf16", (3,))]).values()
    np.testing.assert_array_equal(result, np.full(3, 144))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "there is no entry '0'"),
        ({"0": np.zeros((1, 2))}, r"'0' has shape \(1, 2\), but is the tensor 0 \(f32 2x3x9x8\)"),
        ({"0": np.zeros(IMAGE, np.int64)}, "'0' holds int64"),
        ({"0": np.zeros(IMAGE), "7": np.zeros(1)}, "'7' is not an input of the graph; its inputs are 0"),
        ({"0.bf16": np.zeros(IMAGE)}, "'0.bf16' holds float64; the bits of bf16 are uint16"),
    ],
)
def test_inputs_that_do_not_fit_are_told(convgrad, tmp_path, entries, message):
    save(graph_of(op_of("BiasAddBackward")), tmp_path / "graph.json")
    np.savez(tmp_path / "in.npz", **entries)
    status, out, err = convgrad("run", tmp_path / "graph.json", "--inputs", tmp_path / "in.npz")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert re.search(message, err)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x93NUMPY", b"text"])
def test_a_broken_npz_is_told(convgrad, tmp_path, content):
    save(graph_of(op_of("BiasAddBackward")), tmp_path / "graph.json")
    (tmp_path / "in.npz").write_bytes(content)
    status, _, err = convgrad("run", tmp_path / "graph.json", "--inputs", tmp_path / "in.npz")
    assert status == 2
    assert "in.npz: not an .npz file" in err


def relu():
    return graph_of(Op(1, "ReLU", "", {}, [LogicalTensor(0, "f32", (1,))], [LogicalTensor(1, "f32", (1,))]))


def unknown_shape():
    return graph_of(Op(1, "BiasAddBackward", "", {}, [LogicalTensor(0, "f32", None)], [LogicalTensor(1)]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "convgrad run: the following arguments are required: FILE; see convgrad run --help"),
        (["run", "missing.json"], "convgrad: missing.json: No such file or directory"),
        (["run", "."], "convgrad: .: Is a directory"),
        (["run", "torn.json"], "convgrad: torn.json: not JSON: line 1, column 2: "),
        (["run", "relu.json"], "convgrad: relu.json: the graph cannot be run: op 1 (ReLU): convgrad runs Convolution"),
        (
            ["run", "unknown.json"],
            "convgrad: unknown.json: op 1 (BiasAddBackward): input tensor 0 (f32 unknown rank)",
        ),
        (["run", "bias.json", "--dtype", "int8"], "convgrad run: argument --dtype: invalid choice: 'int8'"),
        (["run", "bias.json", "--repeat", "0"], "convgrad run: argument --repeat: 0 is too few"),
        (["run", "bias.json", "--seed", "-1"], "convgrad run: argument --seed: "),
        (["run", "bias.json", "--inputs", "missing.npz"], "convgrad: missing.npz: No such file or directory"),
        (["run", "bias.json", "--output", "missing/out.npz"], "convgrad: --output missing/out.npz: there is no such"),
        (["walk"], "convgrad: argument COMMAND: invalid choice: 'walk'"),
        (["--json"], "convgrad: the following arguments are required: COMMAND"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(convgrad, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    save(graph_of(op_of("BiasAddBackward")), "bias.json")
    save(relu(), "relu.json")
    save(unknown_shape(), "unknown.json")
    Path("torn.json").write_text("{")
    status, out, err = convgrad(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


NAME = "\ud800\x1b[31m\nred·"


def named(path, kind="BiasAddBackward"):
    graph = json.loads(dumps(graph_of(op_of("BiasAddBackward"))))
    graph["graph"][0] |= {"name": NAME, "kind": kind}
    path.write_text(json.dumps(graph))
    return path


def test_what_a_terminal_would_obey_or_cannot_show_is_written_as_escapes(convgrad, tmp_path):
    status, out, _ = convgrad("run", named(tmp_path / "graph.json"))
    assert status == 0
    assert out.splitlines()[1].startswith(r"\ud800\x1b[31m red·")
    status, _, err = convgrad("run", named(tmp_path / "graph.json", "ReLU" + NAME))
    assert status == 2
    assert r"ReLU\ud800\x1b[31m red·" in err
    assert err.count("\n") == 1


def test_a_terminal_of_ascii_gets_a_plain_rule(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(display, "_has_rich", lambda: False)
    Table(["name"], [["a"]]).print()
    sys.stdout.flush()
    assert written.getvalue() == b"name\n----\na\n"


@pytest.mark.parametrize("output", ["in ASCII", "closed"])
def test_output_need_not_take_every_letter_or_be_there(tmp_path, output, capfdbinary):
    def close():
        os.close(1)

    command = [sys.executable, "-m", "convgrad", "verify", "--dir", "BWD_D", "--mb", "1", "ic1ih3oc1kh3"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, preexec_fn=close if output == "closed" else None, check=True)
    assert done.returncode == 0
    out, err = capfdbinary.readouterr()
    assert not err
    assert (b"\\xb7 weights[" in out) == (output != "closed")


def test_a_device_without_an_end_is_no_graph(convgrad):
    status, _, err = convgrad("run", "/dev/zero")
    assert status == 2
    assert "/dev/zero: 16777217 bytes and more; a graph file has at most" in err


def test_numbers_beyond_s32_are_no_shape(convgrad, tmp_path):
    op = op_of("ConvolutionBackwardData")
    shape = LogicalTensor(9, "s32", (len(op.inputs[0].shape),))
    op.add_input(shape)
    save(graph_of(op), tmp_path / "graph.json")
    entries = {str(t.id): np.zeros(t.shape, np.float32) for t in op.inputs[:2]}
    np.savez(tmp_path / "in.npz", **entries, **{"9": np.array(op.attrs["dst_shape"]) + 2**32})
    status, _, err = convgrad("run", tmp_path / "graph.json", "--inputs", tmp_path / "in.npz")
    assert status == 2
    assert "of which not all are s32" in err


def test_a_wrong_result_fails_the_check_with_status_1(convgrad, file, monkeypatch):
    right = execution.check

    def wrong(resolved, problem, inputs, result):
        spoiled = result.copy()
        spoiled.flat[1] += 0.5
        return right(resolved, problem, inputs, spoiled)

    monkeypatch.setattr(execution, "check", wrong)
    status, out, _ = convgrad("run", file, "--check", "--repeat", 1)
    assert status == 1
    assert "FAILED at [0, 0, 0, 1]" in out
    assert "FAILED at [1]" in out


def test_a_shape_tensor_is_filled_from_what_else_tells_the_shape(convgrad, tmp_path):
    op = op_of("ConvolutionBackwardData")
    op.add_input(LogicalTensor(9, "s32", (4,)))
    save(graph_of(op), tmp_path / "graph.json")
    assert convgrad("run", tmp_path / "graph.json", "--check")[0] == 0
    op.outputs = (LogicalTensor(2, "f32"),)
    del op.attrs["dst_shape"]
    save(graph_of(op), tmp_path / "graph.json")
    status, _, err = convgrad("run", tmp_path / "graph.json", "--check")
    assert status == 2
    assert "tells the shape of a result, and nothing else does; give its value with --inputs" in err
    inputs = inputs_of(graph_of(op)) | {9: np.array(IMAGE, np.int32)}
    npz.write(str(tmp_path / "in.npz"), inputs)
    assert convgrad("run", tmp_path / "graph.json", "--check", "--inputs", tmp_path / "in.npz")[0] == 0


def test_a_sample_of_elements_is_checked_where_all_would_take_too_long(convgrad, file, monkeypatch):
    monkeypatch.setattr(bounds, "FULL_FLOPS", 0)
    monkeypatch.setattr(bounds, "SAMPLES", 50)
    for dtype in ("f32", "bf16"):
        status, out, _ = convgrad("run", file, "--check", "--repeat", 1, "--dtype", dtype)
        assert status == 0
        assert out.count("50 of ") == len(KINDS) - 1


@needs_shared
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.json")), ids=lambda path: path.stem)
def test_files_of_onednn_pass_the_check(convgrad, path, dtype):
    status, out, err = convgrad("run", path, "--check", "--dtype", dtype)
    assert (status, err) == (0, "")
    assert " ok, error " in out


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.json")), ids=lambda path: path.stem)
def test_examples_pass_the_check(convgrad, path):
    status, out, err = convgrad("run", path, "--check", "--repeat", 1)
    assert (status, err) == (0, "")
    assert "FAILED" not in out


@pytest.mark.parametrize("command", ["run", "verify", "doctor"])
def test_help_shows_examples(convgrad, command):
    status, out, _ = convgrad(command, "--help")
    assert status == 0
    assert f"examples:\n  convgrad {command}" in out


def test_without_a_command_help_is_shown_and_its_examples_are_commands(convgrad):
    status, out, err = convgrad()
    assert (status, err) == (0, "")
    assert convgrad("--help") == (0, out, "")
    lines = [line.split()[1:] for line in out.splitlines() if line.startswith("  convgrad ")]
    assert [words[0] for words in lines] == ["run", "verify", "draw", "explain", "bench"]
    for words in lines:
        _parser().parse_args(words)
