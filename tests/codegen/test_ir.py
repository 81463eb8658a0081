"""The writer of IR: what is known is folded, what is not is computed, and both agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.emitted import HOST_ISAS, compile_function
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Module, Value, constant

ISA = HOST_ISAS[0]  # index arithmetic is the same on all
NUMBERS = (-(1 << 40), -17, -8, -7, -1, 0, 1, 2, 7, 8, 9, 16, 1 << 40)


def builder():
    return Builder(Module(), "f", [("i64", "n"), ("i64", "m")])


def lines(b):
    """Instructions so far."""
    return b._lines[2:]


def run(body, *numbers, results=1):
    """What `body(b, *numbers)` gives, with the numbers known only at run time."""

    def write(b, out, *arguments):
        found = body(b, *arguments)
        for n, value in enumerate(found if isinstance(found, list) else [found]):
            b.store(value if isinstance(value, Value) else Value("i64", str(value)), b.at(out, n, "i64"), 8)

    out = np.full(results, -999, np.int64)
    compile_function(ISA, ("ptr", *["i64"] * len(numbers)), write)(out.ctypes.data, *numbers)
    return out.tolist() if results > 1 else int(out[0])


# --- folding


def test_known_numbers_become_no_instruction():
    b = builder()
    assert b.add(3, 4) == 7
    assert b.sub(3, 4) == -1
    assert b.mul(3, -4) == -12
    assert b.minimum(3, -4) == -4
    assert b.maximum(3, -4) == 3
    assert b.floor_div(-7, 2) == -4
    assert b.split(23, (2, 3, 5)) == [1, 1, 3]
    assert b.dot([(2, 3), (4, 5)], 1) == 27
    assert lines(b) == []


def test_neutral_numbers_become_no_instruction():
    b = builder()
    n = b.arguments[0]
    assert b.add(n, 0) is b.add(0, n) is b.sub(n, 0) is b.mul(n, 1) is b.mul(1, n) is b.floor_div(n, 1) is n
    assert b.mul(n, 0) == b.mul(0, n) == 0
    assert b.at(n, 0, "float") is n
    assert b.split(n, (1, 1)) == [0, 0]
    assert lines(b) == []


def test_unknown_numbers_become_one_instruction():
    b = builder()
    n, m = b.arguments
    b.add(n, m)
    b.sub(0, n)
    b.mul(n, 3)
    assert [line.split(" = ")[1] for line in lines(b)] == [
        "add nsw i64 %n, %m",
        "sub nsw i64 0, %n",
        "mul nsw i64 %n, 3",
    ]


@pytest.mark.parametrize(("type_", "number", "text"), [
    ("i32", -5, "-5"),
    ("float", 0.1, "0x3FB999999999999A"),
    ("<4 x float>", 1.0, "splat (float 0x3FF0000000000000)"),
    ("<4 x i32>", 7, "splat (i32 7)"),
])  # fmt: skip
def test_constants_are_written_exactly(type_, number, text):
    assert str(constant(type_, number)) == f"{type_} {text}"


# --- arithmetic at run time


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 8, 16])
def test_floor_division_rounds_down(divisor):
    for x in NUMBERS:
        assert run(lambda b, n: b.floor_div(n, divisor), x) == x // divisor == Builder.floor_div(None, x, divisor)


def test_extremes_are_signed():
    for x in NUMBERS:
        for y in (-8, 0, 9):
            assert run(lambda b, n, m: [b.minimum(n, m), b.maximum(n, m)], x, y, results=2) == [min(x, y), max(x, y)]
            assert run(lambda b, n, y=y: [b.minimum(y, n), b.maximum(n, y)], x, results=2) == [min(x, y), max(x, y)]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_split_gives_the_indices_of_a_flat_index(extents, data):
    flat = data.draw(st.integers(0, int(np.prod(extents)) - 1))
    expected = [int(i) for i in np.unravel_index(flat, extents)]
    assert run(lambda b, n: b.split(n, extents), flat, results=max(2, len(extents)))[: len(extents)] == expected
    assert builder().split(flat, extents) == expected


def test_the_first_index_of_a_split_is_not_bounded():
    assert run(lambda b, n: b.split(n, (1 << 62, 5)), 5 * 123456789 + 3, results=2) == [123456789, 3]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=4), st.integers(-9, 9))
def test_dot_is_a_sum_of_products(terms, start):
    expected = start + sum(x * y for x, y in terms)
    assert run(lambda b, one: b.dot([(b.mul(one, x), y) for x, y in terms], b.mul(one, start)), 1) == expected


# --- loops

TRIPS = [(0, 0), (0, 1), (3, 3), (5, 3), (0, 2), (1, 8), (-3, 4), (0, 100)]


def gather(b, start, stop, step):
    """How many trips there were, and a number that depends on their order."""
    zero = {"trips": Value("i64", "0"), "order": Value("i64", "17")}

    def body(i, now):
        return {"trips": b.add(now["trips"], 1), "order": b.add(b.mul(now["order"], 3), i)}

    done = b.loop(start, stop, body, step=step, carried=zero)
    return [done["trips"], done["order"]]


def gathered(start, stop, step):
    order = 17
    for i in range(start, stop, step):
        order = (order * 3 + i + (1 << 63)) % (1 << 64) - (1 << 63)
    return [len(range(start, stop, step)), order]


@pytest.mark.parametrize("step", [1, 2, 7])
@pytest.mark.parametrize(("start", "stop"), TRIPS)
def test_loops_go_as_often_as_range(start, stop, step):
    if len(range(start, stop, step)) > 30:  # `nsw` arithmetic must not overflow
        start = stop - 20
    expected = gathered(start, stop, step)
    assert run(lambda b, n, m: gather(b, n, m, step), start, stop, results=2) == expected, "bounds at run time"
    assert run(lambda b: gather(b, start, stop, step), results=2) == expected, "bounds known"
    assert run(lambda b, n: gather(b, n, stop, step), start, results=2) == expected, "start at run time"
    assert run(lambda b, m: gather(b, start, m, step), stop, results=2) == expected, "stop at run time"


def test_a_loop_of_one_known_trip_is_no_loop():
    b = builder()
    seen = []
    b.loop(4, 6, lambda i, _: seen.append(i), step=2)
    b.loop(4, 4, lambda i, _: seen.append("never"))
    assert seen == [4]
    assert lines(b) == []


def test_loops_nest_and_carry_through_branches():
    """The sum of i · j over i < n, j < i where i + j is odd."""

    def body(b, n):
        def of_i(i, outer):
            def of_j(j, inner):
                add = b.mul(i, j)
                cell = b.select(b.compare("eq", b.sub(b.add(i, j), b.mul(b.floor_div(b.add(i, j), 2), 2)), 1), add,
                                Value("i64", "0"))  # fmt: skip
                with b.when(b.compare("sgt", cell, 1 << 40)):
                    b.loop(0, 3, lambda *_: None)
                return {0: b.add(inner[0], cell)}

            return b.loop(0, i, of_j, carried=outer)

        return b.loop(0, n, of_i, carried={0: Value("i64", "0")})[0]

    for n in (0, 1, 2, 9):
        assert run(body, n) == sum(i * j for i in range(n) for j in range(i) if (i + j) % 2)


def test_one_of_two_bodies_runs():
    def body(b, out, n):
        def write(number):
            return lambda: b.store(Value("i64", str(number)), out, 8)

        b.either(b.compare("slt", n, 5), write(1), write(2))
        with b.when(b.compare("eq", n, 7)):
            write(3)()

    call, out = compile_function(ISA, ("ptr", "i64"), body), np.zeros(1, np.int64)
    for n, expected in ((4, 1), (5, 2), (7, 3)):
        call(out.ctypes.data, n)
        assert out[0] == expected


def test_tables_are_looked_up():
    numbers = [5, -1, 1 << 50, 0]

    def body(b, i):
        return b.lookup(b.module.table(numbers), i)

    assert [run(body, i) for i in range(4)] == numbers


# --- what is computed once


def test_a_value_is_found_again_only_where_the_program_has_come_by():
    b = builder()
    n, _ = b.arguments
    made = []

    def get(key):
        return b.once(key, lambda: made.append(key) or b.add(n, 1))

    first = get("before")
    with b.when(b.compare("sgt", n, 0)):
        assert get("before") is first
        inside = get("inside")
        assert get("inside") is inside
    assert get("inside") is not inside
    b.either(b.compare("sgt", n, 0), lambda: get("either"), lambda: get("either"))
    b.loop(0, n, lambda i, _: get("looped") and None)
    get("looped")
    assert get("before") is first
    assert made == ["before", "inside", "inside", "either", "either", "looped", "looped"]


def test_only_the_index_of_an_innermost_loop_is_shown_to_loop_strength_reduction():
    b = builder()
    n, m = b.arguments
    b.loop(0, n, lambda i, _: b.loop(0, m, lambda j, _: b.store(Value("i64", "0"), b.at(n, b.add(i, j), "i64"), 8)))
    hidden = [line.split(" = ")[0].strip() for line in lines(b) if 'asm ""' in line]
    assert hidden == ["%i2"]
    assert not any("%i2.counter" in line for line in lines(b) if "phi" not in line and 'asm ""' not in line)
