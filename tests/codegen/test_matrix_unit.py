"""The matrix unit itself: the emulated tile, the instructions of kernels for the real one, and why it is missing."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest

from codegen.dense_problems import W
from codegen.emitted import compile_function
from codegen.matrix_checks import BF16, IDS, ISA, SMALL, multiplied, needs_tiles, plan_of
from convgrad.codegen.isa.matrix import EmulatedTileUnit
from convgrad.codegen.lower import lower
from convgrad.plan import host, machine
from convgrad.plan.machine import machine_for
from convgrad.runtime import doctor, jit

pytestmark = needs_tiles


# --- one instruction


@pytest.mark.parametrize("rows", [16, 5])
def test_a_product_of_tiles_is_what_the_manual_says(rows):
    def body(b, c, a, x):
        unit = EmulatedTileUnit(rows)
        unit.begin(b)
        unit.load(b, 0, c, 64)
        unit.load(b, 4, a, 64)
        unit.load(b, 6, x, 64)
        unit.multiply_add(b, 0, 4, 6)
        unit.store(b, 0, c, 64)

    call = compile_function(ISA, ["ptr", "ptr", "ptr"], body)
    rng = np.random.default_rng(0)
    for scale in (1.0, 2.0**-60, 2.0**-64):  # products that are normal, denormal, and neither alone
        a, b = ((rng.standard_normal((16, 32)) * scale).astype(BF16) for _ in range(2))
        a[0, 0], b[0, 0] = BF16(1e-39), BF16(1.0)
        c = (rng.standard_normal((16, 16)) * scale * scale).astype(np.float32)
        wanted = multiplied(c, a, b, rows)
        call(c.ctypes.data, a.ctypes.data, b.ctypes.data)
        np.testing.assert_array_equal(c, wanted)


def test_tiles_that_are_zeroed_are_zero():
    def body(b, c):
        unit = EmulatedTileUnit()
        unit.begin(b)
        unit.zero(b, 3)
        unit.store(b, 3, c, 64)

    c = np.ones((16, 16), np.float32)
    compile_function(ISA, ["ptr"], body)(c.ctypes.data)
    np.testing.assert_array_equal(c, 0)


# --- the real unit


@pytest.mark.parametrize("problem", SMALL, ids=IDS)
def test_kernels_for_the_real_unit_use_its_instructions_and_give_the_tiles_back(problem):
    machine = machine_for("amx")
    text = jit.assembly(lower(plan_of(problem, "amx")).ir, machine)
    for instruction in (
        "ldtilecfg",
        "tilezero" if problem.unknown is not W else "tileloadd",
        "tileloadd",
        "tdpbf16ps",
        "tilestored",
        "tilerelease",
    ):
        assert instruction in text
    assert text.count("ldtilecfg") == text.count("tilerelease")


# --- why it is not there


@pytest.fixture
def amx_flags(monkeypatch):
    """A CPU with the flags that level `amx` needs, but for some, and a kernel that answers with an error number."""

    def pretend(without=(), error=0):
        def syscall(*_):
            return -1 if error else 0

        libc = SimpleNamespace(syscall=syscall)
        known = {"CDLL": lambda *_, **__: libc, "get_errno": lambda: error}
        monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(machine.LEVELS["amx"].needs) - set(without))
        monkeypatch.setattr(host, "ctypes", SimpleNamespace(c_long=int, c_ulong=int, **known))
        forget()

    def forget():
        for cached in (machine.why_not, machine.available_isas, machine.amx_refusal, machine._current):
            cached.cache_clear()

    yield pretend
    monkeypatch.undo()
    forget()


def what_doctor_says():
    return doctor.report()["instruction sets"]["amx"]


@pytest.mark.this_processor
def test_doctor_says_which_part_of_the_unit_is_missing(amx_flags):
    amx_flags(without=("amx_bf16",))
    assert what_doctor_says() == "the CPU or the operating system does not offer amx_bf16"
    amx_flags(without=("amx_bf16", "amx_tile"))
    assert what_doctor_says() == "the CPU or the operating system does not offer amx_tile, amx_bf16"


@pytest.mark.this_processor
@pytest.mark.parametrize("error", [errno.EPERM, errno.EINVAL, errno.ENOSYS])
def test_doctor_says_that_the_kernel_refuses_the_unit(amx_flags, error):
    amx_flags(error=error)
    assert what_doctor_says() == f"the kernel refused the tile registers (arch_prctl: {os.strerror(error)})"
    assert "amx" not in machine.available_isas()


@pytest.mark.this_processor
def test_the_unit_is_taken_where_it_is_granted(amx_flags):
    amx_flags()
    assert what_doctor_says() == "available"
    assert machine.available_isas()[-1] == "amx"
