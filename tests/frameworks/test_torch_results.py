"""Memory of large results: huge pages, where the system hands out pages anew for every gradient."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad.torch  # noqa: E402
from convgrad.torch.results import FRESH_BYTES, allocator, empty_strided  # noqa: E402

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
    assert allocator((FRESH_BYTES // 4 - 1,), torch.float32) is empty_strided
    assert allocator((FRESH_BYTES // 2 - 1,), torch.bfloat16) is empty_strided
    assert allocator((FRESH_BYTES // 2,), torch.bfloat16) is not empty_strided
