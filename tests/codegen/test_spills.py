"""Register tiles stay where they are: loops of products hardly touch the stack, nor move sums between registers."""

import re

import pytest

from codegen.dense_problems import problem_of
from convgrad.codegen.lower import lower
from convgrad.plan.choose import variants
from convgrad.plan.host import host_triple
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown
from convgrad.runtime import jit

pytestmark = pytest.mark.skipif(not host_triple().startswith("x86_64"), reason="reads assembly of x86")

ELSEWHERE = re.compile(r"\(%rsp\)|\svmov\w+\s+%[xyz]mm\d+, %[xyz]mm\d+$")  # on the stack, or in another register
IN_TURN = 'asm sideeffect "", ""()'  # before what is read where it is wanted, not earlier
GROUPED = {"channels": (4, 8), "groups": 8, "low": 1}
CASES = {  # instruction set, problem, a word of its plan; and stack accesses and moves for a multiply-add, without this
    "tiles at the edge of planes": (  # 1.11
        "avx512", problem_of(Unknown.Y, (23, 62), (23, 62), (3, 3), **GROUPED), "planes",
    ),
    "few planes beside each other": (  # 1.10
        "avx512", problem_of(Unknown.Y, (18, 18), (18, 18), (3, 3), **GROUPED), "planes",
    ),
    "weights of taps that meet windows again": (  # 1.45
        "avx2", problem_of(Unknown.W, (26, 99), (26, 93), (7, 7), channels=(4, 6), groups=4, low=(3, 0)), "along y",
    ),
    "numbers of groups, 32 registers": (  # 0.83
        "avx512", problem_of(Unknown.X, (23, 62), (23, 62), (3, 3), **GROUPED, layout="NXC"), "several groups",
    ),
    "numbers of groups, 16 registers": (  # 0.65
        "avx2", problem_of(Unknown.X, (23, 62), (23, 62), (3, 3), **GROUPED, layout="NXC"), "several groups",
    ),
    "neighbours that meet two channels, with 28 sums": (  # 1.43
        "avx512", problem_of(Unknown.W, (129, 129), (129, 129), (7, 7), channels=(6, 4), low=3, batch=8),
        "along windows",
    ),
    "neighbours that several taps meet": (  # 1.44
        "avx2", problem_of(Unknown.X, (91, 91), (91, 91), (3, 3), channels=(1, 1), groups=4, low=1, layout="NXC"),
        "several groups",
    ),
    "weights that are turned by the task that sums them": (  # 1.83
        "avx2", problem_of(Unknown.W, (20,), (20,), (3,), channels=(96, 100), low=1), "along x",
    ),
    "weights of bf16 that leave out some lanes": (  # 1.50
        "avx2",
        problem_of(
            Unknown.W, (20,), (20,), (3,), channels=(144, 150), low=1, layout="NXC", dtype="bf16", out_dtype="bf16",
        ),
        "along y",
    ),
    "rows of single channels that five rows of windows meet": (  # 0.73
        "avx2", problem_of(Unknown.W, (112, 112), (112, 112), (3, 3), channels=(1, 1), groups=64, low=1), "windows",
    ),
    "numbers of many taps, with 28 sums": (  # 0.55
        "avx512", problem_of(Unknown.Y, (17, 78), (9, 39), (3, 3), channels=(1, 384), stride=2, low=1), "along outputs",
    ),
}  # fmt: skip


def inner_loops(text):
    """Instructions of each loop that holds no other."""
    lines = text.splitlines()
    labels = {line.split(":")[0]: n for n, line in enumerate(lines) if line.startswith(".L")}
    jumps = [(n, re.match(r"\s+j\w+\s+(\.L\w+)", line)) for n, line in enumerate(lines)]
    spans = [(labels[jump[1]], n) for n, jump in jumps if jump and labels.get(jump[1], n) < n]
    inner = [span for span in spans if not any(span[0] <= a and b <= span[1] for a, b in spans if (a, b) != span)]
    return [lines[begin : end + 1] for begin, end in inner]


@pytest.mark.parametrize("name", CASES)
def test_loops_of_products_hardly_touch_the_stack(name):
    isa, problem, kind = CASES[name]
    plan = next(plan for plan in variants(problem, machine_for(isa)) if kind in str(plan).splitlines()[0])
    met = 0
    for loop in inner_loops(jit.assembly(lower(plan).ir, machine_for(isa))):
        products = sum("vfmadd" in line for line in loop)
        if products >= 8:
            assert sum(ELSEWHERE.search(line) is not None for line in loop) <= 0.1 * products, "\n".join(loop)
            met += 1
    assert met


def test_numbers_that_are_picked_for_every_tap_are_not_read_in_turn():
    """Each would be read and picked again, where a register or the stack has it: 1.3 to 1.5 times the cycles."""
    problem = problem_of(Unknown.X, (777,), (777,), (5,), channels=(8, 8), groups=24, low=2, layout="NXC", batch=4)
    machine = machine_for("avx2")
    plan = next(plan for plan in variants(problem, machine) if "several groups, tile" in str(plan).splitlines()[0])
    assert plan.width == 24
    assert lower(plan).ir.count(IN_TURN) == 0
