"""AArch64: the instructions, and, where a cross compiler and an emulator are installed, the results."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codegen.dense_problems import EDGES
from codegen.kinds_of_plans import KINDS
from codegen.random_problems import check, random_problem
from convgrad.codegen.lower import lower
from convgrad.codegen.module import CALL_FIELDS
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for
from convgrad.runtime import jit

TRIPLE = "aarch64-unknown-linux-gnu"
TOOLS = ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objcopy", "qemu-aarch64")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
emulated = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (Debian's gcc-aarch64-linux-gnu and qemu-user)"
)
NEON = machine_for("neon", triple=TRIPLE)

CALLS = re.compile(r"^\s*(?:bl|b)\s+([A-Za-z_][\w.$]*)\s*$", re.MULTILINE)


def assembly_of(problem, variant, machine=NEON):
    plans = list(variants(problem, machine))
    module = lower(plans[variant % len(plans)])
    return module, jit.assembly(module.ir, machine)


@pytest.mark.parametrize("first", [True, False], ids=["chosen", "another"])
@pytest.mark.parametrize(("number", "name"), list(enumerate(KINDS)), ids=KINDS)
def test_products_are_fused_and_in_vectors(number, name, first):
    module, text = assembly_of(KINDS[name][0], 0 if first else 1 + number % 2)
    vectors = len(re.findall(r"\bfmla\s+v\d+\.4s", text))
    alone = len(re.findall(r"\bf(?:madd|mla)\s+s\d+", text))
    assert vectors > alone, f"{vectors} vectors, {alone} single numbers"
    called = set(CALLS.findall(text)) - set(re.findall(r"^define internal void @([\w.]+)", module.ir, re.MULTILINE))
    assert called <= {"memset", "memcpy"}, "products are instructions, not calls of a library"


def test_a_call_of_a_library_would_be_noticed():
    """A target without fused multiply-add calls fmaf for it; that is what `Isa.fma` is for."""
    ir = "define float @f(float %x) {\n  %y = call float @llvm.fma.f32(float %x, float %x, float %x)\n"
    ir += "  ret float %y\n}\n"
    ir += "declare float @llvm.fma.f32(float, float, float)\n"
    text = jit.assembly(ir, machine_for("portable", triple="x86_64-unknown-linux-gnu"))
    assert "fmaf" in text


def test_half_precision_is_converted_by_the_processor():
    problem = KINDS["along channels, packed"][0]
    _, text = assembly_of(replace(problem, dtype="f16", out_dtype="f16"), 0)
    assert "fcvtl" in text
    assert "fcvtn" in text
    assert not set(CALLS.findall(text)) & {"__extendhfsf2", "__truncsfhf2"}


# --- results


@pytest.fixture(scope="module")
def run_emulated(tmp_path_factory):
    """Runs a kernel like `emitted.run_here`, in an emulator."""
    folder = tmp_path_factory.mktemp("aarch64")
    source = Path(__file__).with_name("run_foreign.c")
    build("aarch64-linux-gnu-gcc", "-O1", "-c", source, "-o", folder / "driver.o")

    def run(module, machine, arrays, *, low=False):
        kernel, program = folder / "kernel.o", folder / "program"
        kernel.write_bytes(jit.compile_ir(module.ir, machine))
        renamed = [f"--redefine-sym={stage.symbol}=stage_{n}" for n, stage in enumerate(module.stages)]
        build("aarch64-linux-gnu-objcopy", *renamed, kernel)
        build("aarch64-linux-gnu-gcc", "-static", folder / "driver.o", kernel, "-o", program)
        held = [array.buffer.bytes if array else np.zeros(0, np.uint8) for array in arrays]
        numbers = [*map(len, held), -(-module.shared_bytes // 64) * 64, module.scratch_bytes]
        numbers += [array.zero if array else 0 for array in arrays]
        call, result = folder / "call", folder / "result"
        call.write_bytes(np.array(numbers, np.int64).tobytes() + b"".join(part.tobytes() for part in held))
        status = subprocess.run(["qemu-aarch64", program, call, result], timeout=60).returncode
        assert status == 0, {3: "something was written beside a buffer"}.get(status, f"ended with status {status}")
        found = np.frombuffer(result.read_bytes(), np.uint8)
        for part in held:
            part[:], found = found[: len(part)], found[len(part) :]

    return run


def build(*command):
    subprocess.run(list(map(str, command)), check=True, capture_output=True)


def test_the_driver_knows_the_record_of_a_call():
    assert CALL_FIELDS == ("x", "w", "y", "bias", "shared", "scratch", "tasks", "slots", "others")


@emulated
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_plan_is_exact_on_neon(name, run_emulated):
    check(KINDS[name][0], "neon", run=run_emulated)


@emulated
def test_edges_are_exact_on_neon(run_emulated):
    for number, problem in enumerate(EDGES.values()):
        check(problem, "neon", variant=number, run=run_emulated)


@emulated
def test_random_problems_are_exact_on_neon(run_emulated):
    for seed in range(5000, 5025):
        problem = random_problem(np.random.default_rng(seed))
        check(problem, "neon", variant=seed % 3, alter=seed if seed % 2 else None, run=run_emulated)


@emulated
def test_the_emulator_notices_a_wrong_kernel(run_emulated):
    def broken(module, machine, arrays, *, low):
        run_emulated(module, machine, [arrays[0], arrays[1], arrays[2], arrays[3]], low=low)
        arrays[2].view.flat[-1] += 1

    with pytest.raises(AssertionError, match="check"):
        check(KINDS["along channels, packed"][0], "neon", run=broken)
