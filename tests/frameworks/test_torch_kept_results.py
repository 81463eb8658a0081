"""Results in memory that is kept are tensors like any other; `enable` and programs say how much of it there is."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad.torch  # noqa: E402
from convgrad.errors import SettingError  # noqa: E402
from convgrad.torch.results import KEEP_BYTES, LARGE_BYTES, STORE  # noqa: E402
from frameworks.kept_results import NUMBERS, result  # noqa: E402


def test_nothing_is_kept_unless_asked_for():
    assert STORE.limit == 0
    kept = result()
    assert kept.untyped_storage().resizable()
    del kept
    assert STORE.idle_bytes == 0


@pytest.mark.parametrize(
    "hold",
    [
        lambda made: made[5:7],
        lambda made: made.view(torch.int32),
        lambda made: made.detach().reshape(2, -1).t(),
        lambda made: made.numpy()[3:4],
        lambda made: made.untyped_storage(),
        lambda made: torch.from_dlpack(made),
        lambda made: memoryview(made.numpy()),
    ],
    ids=["slice", "bits", "transpose", "numpy", "storage", "dlpack", "buffer"],
)
def test_whatever_looks_at_a_result_keeps_its_memory(keep, hold):
    keep(4 * LARGE_BYTES)
    made = result(fill=3)
    at, held = made.data_ptr(), hold(made)
    del made
    assert STORE.idle_bytes == 0
    assert result().data_ptr() != at
    del held
    assert at in [each.data_ptr() for each in (result(), result())]


def test_results_are_tensors_like_any_other(keep):
    keep(4 * LARGE_BYTES)
    for _ in range(2):  # new memory, and kept memory
        made = result(fill=1)
        assert made.is_leaf
        assert not made.requires_grad
        assert made._base is None
        assert not made.is_inference()
        at = made.data_ptr()
        assert made.mul_(3).add_(1).data_ptr() == at
        made.requires_grad_()
        (made * 2).sum().backward()
        assert made.grad is not None
        assert torch.equal(made.grad, torch.full((NUMBERS,), 2.0))
        assert torch.equal(made.detach(), torch.full((NUMBERS,), 4.0))
        del made
    with torch.inference_mode():
        assert result().is_inference()
    assert not result().is_inference()


def test_a_result_may_shrink_and_grow_again_but_not_beyond_its_memory(keep):
    keep(4 * LARGE_BYTES)
    made = result(fill=2)
    at = made.data_ptr()
    made.resize_(NUMBERS // 2)
    made.resize_(NUMBERS // 4, 4)
    assert made.data_ptr() == at
    with pytest.raises(RuntimeError, match="not resizable"):
        made.resize_(2 * NUMBERS)
    made.resize_(NUMBERS)
    assert torch.equal(made, torch.full((NUMBERS,), 2.0))


def test_results_that_move_to_shared_memory_leave_theirs_behind(keep):
    keep(4 * LARGE_BYTES)
    made = result(fill=5)
    at = made.data_ptr()
    made.share_memory_()
    assert made.data_ptr() != at
    other = result(fill=6)
    assert other.data_ptr() == at
    assert torch.equal(made, torch.full((NUMBERS,), 5.0))


def test_gradients_are_added_up_in_place_as_without_a_store():
    """Which PyTorch does where a storage has one owner; else two gradients of one input cost a third tensor."""
    source = torch.ones(1, 64, 256, 128, requires_grad=True)
    layers = [torch.nn.Conv2d(64, 64, 1, bias=False) for _ in range(2)]
    for layer in layers:
        torch.nn.init.ones_(layer.weight)
    with convgrad.torch.enabled(keep_bytes=8 * LARGE_BYTES):
        for _ in range(3):
            source.grad = None
            sum(layer(source).sum() for layer in layers).backward()
            storage = torch._C._storage_address(source.grad)
            assert torch._C._storage_Use_Count(storage) == 1
            assert torch.equal(source.grad, torch.full_like(source, 128.0))
        assert STORE.idle_bytes > 0


def test_enable_keeps_and_disable_gives_back():
    outputs, inputs = 512, NUMBERS // 512

    def gradient(like):
        src, diff_dst = torch.arange(inputs) % 5 - 2.0, torch.arange(outputs) % 3 - like
        how = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
        weights = torch.empty(outputs, inputs, 1, 1)
        src, diff_dst = src.reshape(1, -1, 1, 1), diff_dst.reshape(1, -1, 1, 1)
        found = torch.ops.aten.convolution_backward(diff_dst, src, weights, None, *how, [False, True, False])[1]
        assert torch.equal(found[:, :, 0, 0], torch.outer(diff_dst[0, :, 0, 0], src[0, :, 0, 0]))
        return found

    assert STORE.limit == 0
    with convgrad.torch.enabled():
        assert STORE.limit == KEEP_BYTES
        one, other = gradient(1.0), gradient(2.0)
        at = {one.data_ptr(), other.data_ptr()}
        assert len(at) == 2
        del one, other
        assert STORE.idle_bytes == 2 * LARGE_BYTES
        with convgrad.torch.enabled(keep_bytes=LARGE_BYTES):
            assert (STORE.limit, STORE.idle_bytes) == (LARGE_BYTES, LARGE_BYTES)
        assert STORE.limit == KEEP_BYTES
        convgrad.torch.enable()
        assert STORE.limit == KEEP_BYTES
        convgrad.torch.enable(keep_bytes=0)
        assert (STORE.limit, STORE.idle_bytes) == (0, 0)
        convgrad.torch.enable(keep_bytes=KEEP_BYTES)
        alive = gradient(1.0)
    assert (STORE.limit, STORE.idle_bytes) == (0, 0)
    assert alive[0, 0, 0, 0] == 2.0
    del alive
    assert STORE.idle_bytes == 0


def test_a_program_may_keep_more_than_enable_does(keep):
    keep(2 * LARGE_BYTES)
    with convgrad.torch.enabled(keep_bytes=LARGE_BYTES):
        assert STORE.limit == 2 * LARGE_BYTES
        made = result()
    del made
    assert (STORE.limit, STORE.idle_bytes) == (2 * LARGE_BYTES, LARGE_BYTES)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1 GB"])
def test_what_is_no_number_of_bytes_is_refused(wrong):
    with pytest.raises(SettingError, match=r"^keep_bytes is .*; it takes a whole number of bytes, 0 or more$"):
        convgrad.torch.enable(keep_bytes=wrong)
    assert not convgrad.torch.is_enabled()
    with pytest.raises(SettingError, match=r"^most_bytes is .*; it takes a whole number of bytes, 0 or more$"):
        convgrad.torch.keep_results(wrong)
    assert STORE.limit == 0
