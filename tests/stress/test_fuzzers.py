"""The fuzzers for a few seconds, and that they see what they are there to see."""

import ctypes
import json
import re
import subprocess
import sys
from importlib.util import find_spec

import elsewhere
import guarded
import json_reader
import numpy as np
import problems
import pytest
from random_cases import case_from, random_case

from convgrad.runtime import memory


def test_random_problems_are_right(program):
    text = program("problems.py", "--seconds", "9", "--seed", "2024")
    assert " 0 wrong" in text, text


@pytest.mark.skipif(find_spec("atheris") is None, reason='atheris is not installed: pip install "convgrad[fuzz]"')
def test_the_reader_of_graph_files_guided_by_coverage(program):
    assert " 0 wrong" in program("json_reader.py", "--seconds", "5")


def test_the_corpus_begins_with_graphs():
    assert all(json_reader.check(content) for content in json_reader.seeds())


def test_an_empty_tensor_of_any_extents_can_be_written_and_read_again():
    """Found by the fuzzer: dense strides of such a tensor did not fit the file."""
    (document, *_) = (json.loads(content) for content in json_reader.seeds())
    for dtype in ("f32", "undef"):
        document["graph"][0]["inputs"][0] |= {"shape": [3, 2**63 - 1, 0, 8], "stride": None, "dtype": dtype}
        json_reader.check(json.dumps(document).encode())


def test_a_line_rebuilds_its_case():
    for number in range(200):
        case = random_case(5, number)
        again = case_from(case.line().split("'")[1])
        assert again.line() == case.line()
        assert again.layouts == case.layouts


def test_a_case_of_another_day_still_runs(program):
    case = random_case(5, 1)
    assert program("problems.py", "--case", case.line().split("'")[1]).endswith("right\n")


def test_kernels_that_were_compiled_elsewhere_are_run_and_checked(program, tmp_path):
    arguments = str(tmp_path), "--isa", "portable", "--problems", "6"
    assert program("elsewhere.py", "record", *arguments).endswith(" 0 wrong\n")
    assert re.fullmatch(r"6 kernels of portable run in \d+ s, 0 wrong\n", program("elsewhere.py", "run", *arguments))
    for path in tmp_path.iterdir():  # fallbacks among them, which no run may need
        path.unlink()
    text = program("elsewhere.py", "run", *arguments, status=1)
    assert "no object code for a kernel on portable" in text
    assert text.endswith(" 6 wrong\n")


def test_kernels_from_elsewhere_that_compute_nothing_are_wrong(capsys):
    assert elsewhere.check_all("portable", 4, run=lambda *given, low: None) == (4, 4)
    assert "check(ConvProblem(" in capsys.readouterr().out


TOUCH = """
import sys; sys.path.append({folder!r})
import ctypes, guarded
block = guarded.Block(100, low={low})
at = block.address + {place}
{touch}
"""


@pytest.mark.parametrize("touch", ["ctypes.string_at(at, 1)", "ctypes.memset(at, 0, 1)"], ids=["read", "write"])
@pytest.mark.parametrize(("low", "place"), [(True, -1), (False, 100)], ids=["below", "above"])
def test_the_byte_beyond_a_block_ends_the_process(low, place, touch):
    folder = str(problems.__file__).rpartition("/")[0]
    code = TOUCH.format(folder=folder, low=low, place=place, touch=touch)
    inside = TOUCH.format(folder=folder, low=low, place=place + (1 if low else -1), touch=touch)
    assert subprocess.run([sys.executable, "-c", inside], check=False).returncode == 0
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode < 0


def test_bytes_written_beside_a_block_are_seen():
    for low, place in ((True, 100), (False, -1)):
        block = guarded.Block(100, low=low)
        ctypes.memset(block.address, 1, 100)
        assert block.redzone_is_whole()
        ctypes.memset(block.address + place, 1, 1)
        assert not block.redzone_is_whole()


def test_gaps_between_elements_are_looked_at():
    for strides in ((6, 2), (2, -8), (-9, 3)):
        one = guarded.GuardedArray((3, 2), strides, np.dtype(np.float32))
        one.array[...] = 7
        assert one.untouched_beside()
        np.testing.assert_array_equal(one.array, np.full((3, 2), 7))
        flat = one.block.whole[one.block.offset :].view(np.float32)
        gap = int(np.flatnonzero(flat != 7)[0])
        flat[gap] = 1
        assert not one.untouched_beside()


def test_the_workspace_is_put_between_guard_pages_and_back():
    plain = memory.acquire
    case = random_case(5, 1)
    with guarded.GuardedWorkspace() as workspace:
        assert memory.acquire != plain
        problems.check(case)
    assert memory.acquire is plain
    assert not workspace.broken
