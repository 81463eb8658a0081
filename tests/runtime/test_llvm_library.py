"""llvmlite's library called as it is: the code that `llvmlite.binding` gives, without importing that."""

import subprocess
import sys

import llvmlite
import pytest

from convgrad.codegen.lower import lower
from convgrad.plan.choose import choose
from convgrad.plan.machine import current_machine, machine_for
from convgrad.problem.conv import Unknown
from convgrad.runtime import jit, llvm_library
from plan.layers import problem_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="llvmlite.binding is used elsewhere")

ONE_CALL = """
import sys
import numpy as np, convgrad
x, w = np.ones((1, 5, 5, 4), np.float32), np.ones((3, 3, 4, 6), np.float32)
assert (convgrad.convolution(x, w, strides=[1, 1], dilations=[1, 1]) == 36).all()
print([name for name in ("llvmlite.binding", "llvmlite.ir") if name in sys.modules])
"""
ADDS = "define i64 @f(i64 %a) {\n  %b = add i64 %a, 1\n  ret i64 %b\n}\n"
NOTHING_ADDED = "define i64 @f(i64 %a) {\n  %b = add i64 %a, 0\n  ret i64 %b\n}\n"
TORN = "define i64 @f(i64 %a) {\n  ret i64 %b\n}\n"
WRONG_SIDE = "define i64 @f() {\n  %c = add i64 %b, 1\n  %b = add i64 1, 1\n  ret i64 %c\n}\n"


@pytest.fixture
def unknown(monkeypatch):
    """llvmlite of a version that nobody has looked at."""
    llvm_library.library.cache_clear()
    monkeypatch.setattr(llvmlite, "__version__", f"0.{llvm_library.KNOWN.stop}.0")
    yield
    llvm_library.library.cache_clear()


@pytest.fixture
def written():
    """The IR of one convolution."""
    problem = problem_of(Unknown.Y, channels=(24, 33), image=9, windows=9, taps=3, low=1)
    return lower(choose(problem, current_machine())).ir


def test_the_library_of_the_installed_version_is_known():
    assert llvm_library.library() is not None


def test_a_kernel_is_compiled_without_llvmlite_binding(tmp_path):
    program = [sys.executable, "-c", ONE_CALL]
    env = {"CONVGRAD_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run(program, env=env, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("level", [jit.CODEGEN_LEVEL, jit.IN_HASTE])
def test_either_way_gives_the_same_code(level, written, monkeypatch):
    direct = jit.compile_ir(written, current_machine(), level)
    monkeypatch.setattr(jit, "library", lambda: None)
    assert jit.compile_ir(written, current_machine(), level) == direct


def test_code_made_in_haste_is_another():
    machine = machine_for("portable")
    assert jit.compile_ir(NOTHING_ADDED, machine, jit.IN_HASTE) != jit.compile_ir(NOTHING_ADDED, machine)


def test_versions_nobody_has_looked_at_go_by_llvmlite_binding(unknown):
    assert llvm_library.library() is None
    assert jit.compile_ir(ADDS, machine_for("portable"))


def test_so_does_a_library_that_lacks_a_function(unknown, monkeypatch):
    monkeypatch.setattr(llvmlite, "__version__", "0.50.0")
    monkeypatch.setitem(llvm_library._DECLARED, "Foresee", (None, ()))
    assert llvm_library.library() is None


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("ir", "said"), [(TORN, "use of undefined value"), (WRONG_SIDE, "does not dominate")])
def test_what_llvm_says_of_a_module_is_told(ir, said, known, monkeypatch):
    if not known:
        monkeypatch.setattr(jit, "library", lambda: None)
    with pytest.raises(jit.CompileError, match=rf"LLVM does not accept the module: (.|\n)*{said}"):
        jit.compile_ir(ir, machine_for("portable"))


def test_a_target_that_llvm_does_not_have_is_refused():
    known = llvm_library.library()
    assert known is not None
    with pytest.raises(llvm_library.Refused, match="quantum"):
        known.object_code(ADDS, ("quantum-unknown-linux", "", ""), jit.PASSES, 2)
