"""Register tiles stay in registers: loops of products hardly touch the stack, on instruction sets of any machine."""

import re

import pytest

from codegen.dense_problems import problem_of
from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose
from convgrad.plan.host import host_triple
from convgrad.plan.machine import machine_for
from convgrad.problem.conv import Unknown
from convgrad.runtime import jit

pytestmark = pytest.mark.skipif(not host_triple().startswith("x86_64"), reason="reads assembly of x86")

GROUPED = {"channels": (4, 8), "groups": 8, "low": 1}
CASES = {  # instruction set, problem, a word of its plan; and stack accesses for a multiply-add, without this
    "tiles at the edge of planes": (  # 0.73
        "avx512", problem_of(Unknown.Y, (23, 62), (23, 62), (3, 3), **GROUPED), "planes",
    ),
    "few planes beside each other": (  # 1.03
        "avx512", problem_of(Unknown.Y, (18, 18), (18, 18), (3, 3), **GROUPED), "planes",
    ),
    "weights of taps that meet windows again": (  # 1.23
        "avx2", problem_of(Unknown.W, (26, 99), (26, 93), (7, 7), channels=(8, 8), groups=4, low=(3, 0)), "along y",
    ),
    "numbers of groups, 32 registers": (  # 0.41
        "avx512", problem_of(Unknown.X, (23, 62), (23, 62), (3, 3), **GROUPED, layout="NXC"), "several groups",
    ),
    "numbers of groups, 16 registers": (  # 0.58
        "avx2", problem_of(Unknown.X, (23, 62), (23, 62), (3, 3), **GROUPED, layout="NXC"), "several groups",
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
    plan = choose(problem, machine_for(isa))
    assert kind in str(plan)
    met = 0
    for loop in inner_loops(jit.assembly(lower(plan).ir, machine_for(isa))):
        products = sum("vfmadd" in line for line in loop)
        if products >= 8:
            assert sum("(%rsp)" in line for line in loop) <= 0.1 * products, "\n".join(loop)
            met += 1
    assert met
