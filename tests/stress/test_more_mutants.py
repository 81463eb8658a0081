"""Every defect that is put into the compiler or the runtime on purpose is noticed."""

import mutants
import pytest

from convgrad.plan.host import available_cpus
from convgrad.plan.machine import why_not


@pytest.fixture(scope="module")
def table(program):
    """Name of each mutant, and how it died."""
    rows = [line.split(" | ") for line in program("mutants.py", status=None).splitlines() if line.startswith("| ")]
    return {name.removeprefix("| "): (killer, how) for name, _, killer, how in rows[1:]}


@pytest.mark.parametrize("name", [name for name in mutants.MUTANTS if name != "none"])
def test_a_mutant_is_killed(table, name):
    if mutants.MUTANTS[name].threads and available_cpus()[0] < 2:
        pytest.skip("threads that never run at the same time do not meet")
    reason = why_not(mutants.MUTANTS[name].isa)
    if reason:
        pytest.skip(reason)
    killer, how = table[name]
    assert killer in ("fuzzer", "threads"), how


def test_what_is_not_broken_lives(table):
    assert table["none"][0] == "(lives)"
