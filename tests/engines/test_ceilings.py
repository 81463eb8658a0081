import json

import pytest

from convgrad.engines.ceilings import Ceilings, Level, from_dict, measure
from convgrad.errors import FileFormatError
from convgrad.runtime import num_threads

SOME = Ceilings(
    "avx2", 1, {"f32": 100.0, "f64": 50.0}, (Level("L1", 1000.0, 200.0), Level("memory", float("inf"), 10.0))
)


def test_the_bound_is_the_longer_of_arithmetic_and_reading_from_the_nearest_memory_that_holds_all():
    assert SOME.bound(10**9, 1000, "f32") == (0.01, "arithmetic")
    assert SOME.bound(10**9, 1000, "f64") == (0.02, "arithmetic")
    assert SOME.bound(1, 1000, "bf16") == (1000 / 200e9, "reading from L1")
    assert SOME.bound(1, 1001, "f32") == (pytest.approx(1.001e-7), "reading from memory")


def test_ceilings_survive_json():
    assert from_dict(json.loads(json.dumps({"ceilings": SOME.as_dict()})), "file") == SOME


@pytest.mark.parametrize("broken", [{}, [], {"levels": []}, {**SOME.as_dict(), "gflops": {"f32": 0, "f64": 1}}])
def test_a_file_that_holds_no_ceilings_is_explained(broken):
    with pytest.raises(FileFormatError, match="file: "):
        from_dict(broken, "file")


def test_measured_ceilings_are_those_of_a_machine():
    before = num_threads()
    found = measure(1, seconds=0.005)
    assert num_threads() == before
    assert found.gflops["f32"] > 1.2 * found.gflops["f64"] > 1
    assert [level.name for level in found.levels] == ["L1", "L2", "L3", "memory"]
    assert found.levels[0].gb_per_s > found.levels[-1].gb_per_s > 0.5
