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
    assert num_threads() == before


def test_different_bits_fail(convgrad, monkeypatch):
    numbers = itertools.count()
    monkeypatch.setattr(repro, "checksum", lambda array: f"{next(numbers):016x}")
    status, out, _ = convgrad("repro", "--json", *PROBLEM)
    report = json.loads(out)
    assert status == 1
    assert not report["passed"]
    assert list(report["results"][0]["sha256"]) == ["1", "2", "4"]
    _, out, _ = convgrad("repro", *PROBLEM)
    assert "FAILED, they differ" in out


@pytest.mark.parametrize("threads", ["0", "1,x", ""])
def test_thread_counts_are_checked(convgrad, threads):
    status, out, err = convgrad("repro", "--threads", threads, *PROBLEM)
    assert (status, out) == (2, "")
    assert err.startswith("convgrad repro: argument --threads: ")
    assert err.count("\n") == 1
