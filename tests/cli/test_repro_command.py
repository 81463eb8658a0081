import itertools
import json

import pytest

from convgrad.cli import repro
from convgrad.runtime import num_threads

PROBLEM = ("--deconv", "--dir", "BWD_D,BWD_W", "mb2ic16ih6oc8kh4sh2ph1")


def test_equal_bits_on_any_number_of_threads(convgrad):
    before = num_threads()
    status, out, err = convgrad("repro", "--threads", "1,2,3", *PROBLEM)
    assert (status, err) == (0, "")
    assert out.endswith("passed\n")
    assert out.count(" equal") == 2
    headings, data, weights, _ = out.splitlines()
    assert headings.endswith("2 calls on 1, 2, 3 threads")
    assert all(len(line.split()[2]) == 16 for line in (data, weights))
    assert num_threads() == before


def test_different_bits_fail(convgrad, monkeypatch):
    numbers = itertools.count()
    monkeypatch.setattr(repro, "checksum", lambda array: f"{next(numbers):016x}")
    status, out, _ = convgrad("repro", "--json", *PROBLEM)
    report = json.loads(out)
    assert status == 1
    assert not report["passed"]
    assert list(report["results"][0]["sha256"]) == ["1", "2", "4"]
    numbers = itertools.count()
    _, out, _ = convgrad("repro", "--threads", "1,2", "--repeat", 1, *PROBLEM)
    assert f"  1: {0:016x}; 2: {1:016x}  FAILED, they differ\n" in out


@pytest.mark.parametrize("threads", ["0", "1,x", ""])
def test_thread_counts_are_checked(convgrad, threads):
    status, out, err = convgrad("repro", "--threads", threads, *PROBLEM)
    assert (status, out) == (2, "")
    assert err.startswith("convgrad repro: argument --threads: ")
    assert err.count("\n") == 1
