"""Memory of large results: huge pages where it is new, and kept for the next one of its size."""

import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad.torch  # noqa: E402
from convgrad.torch.kept import empty_strided  # noqa: E402
from convgrad.torch.results import FRESH_BYTES, LARGE_BYTES, STORE, allocator  # noqa: E402
from frameworks.kept_results import NUMBERS, result  # noqa: E402

CHANNELS = 2048, FRESH_BYTES // 4 // 2048  # of weights that are just large enough
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_huge_pages = pytest.mark.skipif(
    not HUGE_PAGES.exists() or not Path("/proc/self/smaps").exists(), reason="this system has no huge pages to advise"
)


def flags_at(address):
    """Of the mapping that holds an address, as the kernel tells them."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if name.endswith(":"):
            if inside and name == "VmFlags:":
                return rest
        else:
            start, stop = (int(end, 16) for end in name.split("-"))
            inside = start <= address < stop
    raise AssertionError(f"no mapping holds {address:#x}")


def said_by(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def gradient_by_takeover(src, diff_dst):
    how = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    weights = torch.empty(diff_dst.shape[1], src.shape[1], 1, 1)
    with convgrad.torch.enabled():
        return torch.ops.aten.convolution_backward(diff_dst, src, weights, None, *how, [False, True, False])[1]


def gradient_by_operator(src, diff_dst):
    return convgrad.torch.convolution_backward_weights(src, diff_dst, (diff_dst.shape[1], src.shape[1], 1, 1))


@needs_huge_pages
@pytest.mark.parametrize("gradient", [gradient_by_takeover, gradient_by_operator])
def test_large_gradients_lie_on_huge_pages_in_every_call(gradient):
    outputs, inputs = CHANNELS
    src, diff_dst = torch.arange(inputs) % 5 - 2.0, torch.arange(outputs) % 3 - 1.0
    for _ in range(2):  # the first call plans, the second one only runs
        found = None  # gives the memory back
        found = gradient(src.reshape(1, -1, 1, 1), diff_dst.reshape(1, -1, 1, 1))
        assert "hg" in flags_at(found.data_ptr() + FRESH_BYTES // 2)
        assert torch.equal(found[:, :, 0, 0], torch.outer(diff_dst, src))


def test_memory_that_malloc_keeps_is_left_as_it_is():
    assert allocator((LARGE_BYTES // 4 - 1,), torch.float32) is empty_strided
    assert allocator((LARGE_BYTES // 2 - 1,), torch.bfloat16) is empty_strided
    assert allocator((LARGE_BYTES // 2,), torch.bfloat16) is not empty_strided


def test_the_memory_of_a_dead_result_goes_to_the_next_of_its_size(keep):
    keep(4 * LARGE_BYTES)
    first, larger = result(fill=1), result(2 * NUMBERS)
    at, larger_at = first.data_ptr(), larger.data_ptr()
    del first, larger
    assert STORE.idle_bytes == 3 * LARGE_BYTES
    halves = result(2 * NUMBERS, 2.0, torch.bfloat16)  # of the size of the first one, whatever the type
    assert halves.data_ptr() == at
    assert result(2 * NUMBERS).data_ptr() == larger_at
    matrix = allocator((2, NUMBERS), torch.float32)((NUMBERS, 2), (1, NUMBERS), torch.float32)
    assert matrix.stride() == (1, NUMBERS)
    assert matrix.data_ptr() == larger_at


def test_results_that_live_never_share_memory(keep):
    keep(8 * LARGE_BYTES)
    alive = {}
    for number in range(60):  # drops and takes in an order that is no queue and no stack
        alive.pop(number * 7 % 11, None)
        alive[number % 11] = result(NUMBERS * (1 + number % 2), number), number
        ends = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each, _ in alive.values())
        assert all(stop <= start for (_, stop), (start, _) in pairwise(ends))
    assert all(torch.equal(each, torch.full_like(each, value)) for each, value in alive.values())


def test_what_is_kept_stays_below_the_limit_and_the_oldest_goes_first(keep):
    keep(3 * LARGE_BYTES)
    many = [result() for _ in range(5)]
    addresses = [each.data_ptr() for each in many]
    while many:
        many.pop(0)
        assert STORE.idle_bytes <= 3 * LARGE_BYTES
    assert STORE.idle_bytes == 3 * LARGE_BYTES
    again = [result() for _ in range(3)]
    assert [each.data_ptr() for each in again] == addresses[:1:-1]
    del again
    keep(LARGE_BYTES)
    assert STORE.idle_bytes == LARGE_BYTES
    result(2 * NUMBERS)
    assert STORE.idle_bytes == LARGE_BYTES, "what is larger than the limit does not drive out what is kept"


RESIDENT = """
import os
import torch
import convgrad.torch
from convgrad.torch.results import FRESH_BYTES, allocator

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

n = FRESH_BYTES // 4
make = allocator((n,), torch.float32)
convgrad.torch.keep_results(4 * FRESH_BYTES)
large = [make((n,), (1,), torch.float32).fill_(1) for _ in range(4)]
held = resident()
del large
assert resident() > held - FRESH_BYTES
convgrad.torch.keep_results(0)
assert resident() < held - 3 * FRESH_BYTES
print("given back")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell how much memory is in use")
def test_memory_goes_back_to_the_system():
    """In a process of its own, whose malloc has no room for as much."""
    assert said_by(RESIDENT) == "given back\n"


def test_threads_that_take_and_drop_results_never_meet(keep):
    keep(3 * LARGE_BYTES)
    wrong, start = [], threading.Barrier(4)

    def work(number):
        start.wait()
        for turn in range(40):
            value = float(100 * number + turn)
            made = [result(fill=value), result(fill=-value)]
            if not (bool((made[0] == value).all()) and bool((made[1] == -value).all())):
                wrong.append((number, turn))
            with STORE._lock:  # a thread that gives back is over the limit for a moment
                if STORE.idle_bytes > 3 * LARGE_BYTES:
                    wrong.append("limit")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORKED = """
import os, threading
import torch
import convgrad.torch
from convgrad.torch.results import LARGE_BYTES, STORE, allocator

torch.set_num_threads(1)  # OpenMP of a forked child would wait for threads that stayed behind
n = LARGE_BYTES // 4
make = allocator((n,), torch.float32)
convgrad.torch.keep_results(8 * LARGE_BYTES)
alive, dead = make((n,), (1,), torch.float32).fill_(1), make((n,), (1,), torch.float32)
del dead
inside, leave = threading.Event(), threading.Event()

def hold():
    with STORE._lock:
        inside.set()
        leave.wait()

threading.Thread(target=hold, daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    try:
        alive.fill_(2)
        assert STORE.idle_bytes == 0
        other = make((n,), (1,), torch.float32).fill_(3)
        assert alive[0] == 2 and other[0] == 3
        del alive
        assert STORE.idle_bytes == LARGE_BYTES
    except BaseException as error:
        print(error)
        os._exit(1)
    os._exit(0)
leave.set()
assert os.waitpid(child, 0)[1] == 0
assert alive[0] == 1 and STORE.idle_bytes == LARGE_BYTES
print("apart")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_begins_with_an_empty_store():
    assert said_by(FORKED) == "apart\n"
