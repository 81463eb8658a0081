"""A short soak. docs/reliability.md has the log of a long one."""

import pytest


def test_threads_forks_interrupts_and_caches_in_trouble(program):
    text = program("soak.py", "--seconds", "6", "--shapes", "30", "--slack", "64")
    assert text.count(": right; ") >= 5, text
    assert text.endswith("all right\n"), text


def test_under_the_openmp_threads_of_pytorch(program):
    pytest.importorskip("torch")
    text = program("soak.py", "--seconds", "3", "--shapes", "12", "--slack", "64", "--no-caches", "--torch")
    assert text.endswith("all right\n"), text
