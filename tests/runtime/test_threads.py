"""Threads: how many, whose, and what becomes of them in forked children."""

import os
import sys
import threading

import numpy as np
import pytest
from tiny_kernels import run_tiny, tiny_kernel

from convgrad.errors import SettingError
from convgrad.plan import host, machine
from convgrad.runtime import doctor, num_threads, pool, set_num_threads, threads

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")

# A runtime that is in the process before convgrad looks, as PyTorch's would be.
LOAD_OPENMP = """
import ctypes, ctypes.util, sys
name = ctypes.util.find_library("gomp")
if name is None:
    print("no OpenMP here")
    sys.exit()
openmp = ctypes.CDLL(name)
"""
COMPUTE = """
from tiny_kernels import run_tiny, tiny_kernel
from convgrad.runtime import num_threads, set_num_threads
from convgrad.runtime.threads import team
set_num_threads(THREADS)
tiny = tiny_kernel(64)
for first in range(50):
    run_tiny(tiny, 64, first)
print(team.route.name)
"""
IN_CHILD = """
import os
for generation in range(3):
    child = os.fork()
    if child == 0:
        for first in range(50):
            run_tiny(tiny, 64, first)
        print("child", team.route.name, num_threads(), flush=True)
        continue  # and fork again from the child
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    break
run_tiny(tiny, 64, 99)
"""


def printed(text):
    """The lines of a process, unless it had no OpenMP to test with."""
    if "no OpenMP here" in text:
        pytest.skip("there is no libgomp on this system")
    return text.split("\n")


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None])
def test_a_number_of_threads_is_a_whole_number(count):
    with pytest.raises(SettingError, match="takes a whole number of threads, 1 or more"):
        set_num_threads(count)


def test_the_number_of_threads_is_what_was_set(team):
    for count in (1, 2, np.int64(5)):
        set_num_threads(count)
        assert num_threads() == count


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"CONVGRAD_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, "3 CONVGRAD_NUM_THREADS"),
        ({"CONVGRAD_NUM_THREADS": "", "OMP_NUM_THREADS": "2,4"}, "2 OMP_NUM_THREADS"),
        (
            {"CONVGRAD_NUM_THREADS": "", "OMP_NUM_THREADS": ""},
            "{} {}".format(*host.available_cpus()),
        ),
    ],
    ids=["ours", "OpenMP's", "default"],
)
def test_the_environment_decides_how_many(python, finish, variables, expected):
    program = "from convgrad.runtime import threads; n = threads.num_threads(); print(n, threads.team.source)"
    assert finish(python(program, **variables)).strip() == expected


def test_a_wrong_setting_is_raised_by_the_call_and_not_at_import(python, finish):
    program = "import convgrad.runtime as r\ntry: r.num_threads()\nexcept ValueError as error: print(error)"
    assert "CONVGRAD_NUM_THREADS is 'x'" in finish(python(program, CONVGRAD_NUM_THREADS="x"))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_affinity_is_obeyed(python, finish):
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from convgrad.runtime import num_threads; print(num_threads())"
    )
    assert finish(python(program, CONVGRAD_NUM_THREADS="", OMP_NUM_THREADS="")).strip() == "1"


@pytest.mark.skipif(not pool.is_supported(), reason="needs POSIX threads")
@pytest.mark.parametrize("count", [2, 7])
def test_without_openmp_the_pool_computes(python, finish, count):
    assert finish(python(COMPUTE.replace("THREADS", str(count)))).split() == ["pool"]


MASKS = """
import contextlib, pathlib, signal, time
def blocked():
    masks = []
    for task in pathlib.Path('/proc/self/task').iterdir():
        with contextlib.suppress(OSError):  # a thread that compiled something may just have ended
            lines = (task / 'status').read_text().splitlines()
            masks += [int(line.split()[1], 16) for line in lines if line.startswith('SigBlk')]
    return sorted(masks)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_workers_leave_signals_to_others_and_keep_their_own_faults(python, finish):
    """What is sent to the process interrupts Python; a fault is reported by whoever handles faults, as faulthandler."""
    program = COMPUTE.replace("THREADS", "2") + MASKS
    program += "for _ in range(500):\n"  # a thread that begins blocks all of them, and may not have run yet
    program += "    masks = blocked()\n    if not masks[-1] >> signal.SIGSEGV - 1 & 1: break\n    time.sleep(0.01)\n"
    program += "print(masks[-1] and [s.name for s in signal.Signals if not masks[-1] >> s - 1 & 1])"
    *_, last = finish(python(program)).splitlines()
    faults = {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"}
    assert set(eval(last)) == faults | {"SIGKILL", "SIGSTOP"}


def test_python_threads_compute_where_there_is_nothing_better(python, finish):
    program = "from convgrad.runtime import pool\npool.is_supported = lambda: False\n" + COMPUTE.replace("THREADS", "3")
    assert finish(python(program)).split() == ["python"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_the_openmp_of_the_process_is_shared(python, finish):
    lines = printed(finish(python(LOAD_OPENMP + COMPUTE.replace("THREADS", "2"))))
    assert lines[0] == "openmp"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_an_openmp_that_comes_later_is_found(python, finish):
    later = COMPUTE.replace("THREADS", "2") + LOAD_OPENMP + "import sched, graphlib, wave\ntiny_kernel(3)\n"
    lines = printed(finish(python(later + "print(team.route.name)\nrun_tiny(tiny, 64)")))
    assert lines[:2] == ["pool", "openmp"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_limit_set_on_the_openmp_runtime_is_obeyed(python, finish):
    program = LOAD_OPENMP + (
        "from convgrad.runtime import num_threads\n"
        "print(num_threads()); openmp.omp_set_num_threads(1); print(num_threads())\n"
        "from convgrad.runtime import set_num_threads; set_num_threads(3); print(num_threads())\n"
    )
    assert printed(finish(python(program, OMP_NUM_THREADS="2", CONVGRAD_NUM_THREADS="")))[:3] == ["2", "1", "3"]


@pytest.mark.parametrize("early", [True, False], ids=["before the first call", "later"])
def test_threadpoolctl_limits_our_threads(python, finish, early):
    pytest.importorskip("threadpoolctl")
    program = (
        "from threadpoolctl import threadpool_info, threadpool_limits\n"
        "from convgrad.runtime import num_threads, set_num_threads\n"
        f"if not {early}: num_threads()\n"
        "with threadpool_limits(2): print(num_threads())\n"
        "print(num_threads())\n"
        "with threadpool_limits(2, user_api='blas'): print(num_threads())\n"
        "with threadpool_limits(1):\n"
        "    set_num_threads(4); print(num_threads())\n"
        "print(num_threads())\n"
        "with threadpool_limits(9): print(num_threads())\n"
        "print([i['num_threads'] for i in threadpool_info() if i['user_api'] == 'convgrad'])\n"
    )
    lines = finish(python(program, CONVGRAD_NUM_THREADS="3")).split("\n")
    assert lines[:7] == ["2", "3", "3", "4", "3", "4", "[3]"]


@forks
def test_a_child_of_a_process_that_used_openmp_computes(python, finish):
    lines = printed(finish(python(LOAD_OPENMP + COMPUTE.replace("THREADS", "2") + IN_CHILD)))
    assert lines.count("child pool 2") == 3


@forks
def test_a_child_of_a_process_that_used_the_pool_computes(python, finish):
    lines = finish(python(COMPUTE.replace("THREADS", "3") + IN_CHILD)).split("\n")
    assert lines.count("child pool 3") == 3


@forks
def test_a_fork_while_others_compile_and_compute(python, finish):
    program = COMPUTE.replace("THREADS", "2") + (
        "import os, threading\n"
        "stop = False\n"
        "def busy(n):\n"
        "    while not stop: run_tiny(tiny_kernel(n), n); os.environ['CONVGRAD_CACHE_DIR'] = 'off'\n"
        "others = [threading.Thread(target=busy, args=(n,)) for n in (5, 6)]\n"
        "for t in others: t.start()\n"
        "for _ in range(10):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        run_tiny(tiny_kernel(7), 7); run_tiny(tiny, 64); os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "stop = True\n"
        "for t in others: t.join()\n"
    )
    finish(python(program))


def test_first_use_from_many_threads_at_once(python, finish):
    program = (
        "import threading\n"
        "from tiny_kernels import run_tiny, tiny_kernel\n"
        "from convgrad.runtime import num_threads, set_num_threads\n"
        "def use(n):\n"
        "    if n % 2: num_threads()\n"
        "    if n % 3 == 0: set_num_threads(2 + n % 2)\n"
        "    run_tiny(tiny_kernel(n), n)\n"
        "users = [threading.Thread(target=use, args=(n,)) for n in range(1, 13)]\n"
        "for t in users: t.start()\n"
        "for t in users: t.join()\n"
    )
    assert finish(python(program)) == ""


def test_calls_from_threads_that_end_leave_nothing_behind(team):
    set_num_threads(2)
    tiny = tiny_kernel(16)
    before = threading.active_count()
    for _ in range(50):
        caller = threading.Thread(target=run_tiny, args=(tiny, 16))
        caller.start()
        caller.join()
    assert threading.active_count() == before


def test_run_stage_runs_a_function_on_a_record(team):
    import ctypes

    from convgrad.runtime import jit

    ir = """
define void @count(ptr %at) nounwind {
  %old = atomicrmw add ptr %at, i64 1 monotonic
  ret void
}
"""
    addresses, _alive = jit.load(jit.compile_ir(ir, machine.current_machine()), ("count",))
    set_num_threads(2)
    for asked in (1, 2, 5):
        seen = ctypes.c_int64(0)
        threads.run_stage(addresses["count"], ctypes.addressof(seen), asked)
        assert 1 <= seen.value <= min(asked, 2)


def test_the_pool_is_compiled_for_other_machines():
    from convgrad.runtime import jit

    for triple in ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "riscv64-unknown-linux-gnu"):
        target = machine.machine_for("portable", triple=triple)
        assert b"convgrad_pool_parallel" in jit.compile_ir(pool.pool_ir(triple), target, jit.IN_HASTE)


def test_the_report_names_what_was_found(team, cache_folder):
    set_num_threads(2)
    report = doctor.report()
    assert report["threads"]["threads"] == 2
    assert report["threads"]["decided by"] == "set_num_threads"
    assert report["cache"]["directory"] == str(cache_folder)
    assert report["machine"]["instruction set"] in machine.available_isas()
    assert report["instruction sets"]["portable"] == "available"
    assert report["versions"]["llvmlite"].startswith("0.")


def test_the_report_survives_wrong_settings(monkeypatch):
    monkeypatch.setenv("CONVGRAD_ISA", "sse9")
    assert "CONVGRAD_ISA is 'sse9'" in doctor.report()["machine"]["error"]
