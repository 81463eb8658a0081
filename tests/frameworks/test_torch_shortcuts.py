"""A call that is like an earlier one goes straight to the kernel; one that is not, though it looks so, must not."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._subclasses import FakeTensor, FakeTensorMode  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import convgrad  # noqa: E402
from convgrad.torch import derivatives, operators  # noqa: E402

WORDS = ([1, 1], [1, 1], [1, 1], [1, 1], 1)


def integers(*shape, seed=1):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


X, W, BIAS = integers(2, 3, 6, 5), integers(4, 3, 3, 3, seed=2), integers(4, seed=3)
DST = torch.nn.functional.conv2d(X, W, BIAS, padding=1)


def call(x=X, w=W, bias=BIAS):
    return operators.convolution(x, w, bias, *WORDS)


@pytest.fixture(autouse=True)
def known():
    """The plain call has been made, and so has the one that wants a gradient."""
    for w in (W, W.clone().requires_grad_()):
        call(w=w)
        call(w=w)


@pytest.fixture
def learned(monkeypatch):
    """Convolutions that did not go straight to a kernel."""
    found = []
    learn = derivatives.Shortcuts.learn

    def learning(self, *given, **how):
        if self.operation.op == "Convolution":
            found.append(given)
        learn(self, *given, **how)

    monkeypatch.setattr(derivatives.Shortcuts, "learn", learning)
    return found


def test_calls_that_are_alike_go_straight_to_the_kernel(learned):
    assert torch.equal(call(X + 1), torch.nn.functional.conv2d(X + 1, W, BIAS, padding=1))
    w = W.clone().requires_grad_()
    call(w=w).sum().backward()
    assert torch.equal(w.grad, torch.nn.grad.conv2d_weight(X, W.shape, torch.ones_like(DST), padding=1))
    assert torch.equal(torch.ops.convgrad.convolution(X, W, BIAS, *WORDS), DST)
    assert torch.ops.convgrad.convolution(X, w, BIAS, *WORDS).requires_grad
    assert not learned
    call(X[:, :, :4])
    assert len(learned) == 1  # one that is not


CHANGES = {
    "shape": lambda: (X[:1], W, BIAS),
    "strides": lambda: (X.mT.contiguous().mT, W, BIAS),
    "strides of the weights": lambda: (X, W.to(memory_format=torch.channels_last), BIAS),
    "no bias": lambda: (X, W, None),
    "strides of the bias": lambda: (X, W, torch.stack([BIAS, BIAS], 1)[:, 0]),
    "type": lambda: (X.double(), W.double(), BIAS.double()),
    "parameters": lambda: (X, torch.nn.Parameter(W), BIAS),
    "a gradient of the image": lambda: (X.clone().requires_grad_(), W, BIAS),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_differs_is_computed_as_it_is(change):
    x, w, bias = change()
    for _ in range(2):
        dst = call(x, w, bias)
        expected = torch.nn.functional.conv2d(x, w, bias, padding=1)
        assert torch.equal(dst, expected)
        assert (dst.dtype, dst.requires_grad) == (expected.dtype, expected.requires_grad)


def test_no_gradient_is_kept_where_none_is_wanted():
    w = W.clone().requires_grad_()
    with torch.no_grad():
        assert not call(w=w).requires_grad
    assert call(w=w).requires_grad
    with torch.inference_mode():
        assert torch.equal(call(), DST)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_first_call_without_gradients_does_not_keep_later_ones_from_theirs(off):
    x, w = integers(1, 3, 4, 4 if off is torch.no_grad else 5), W.clone().requires_grad_()  # shapes of no other test
    for _ in range(2):
        with off():
            assert not call(x, w).requires_grad
    call(x, w).sum().backward()
    assert torch.equal(w.grad, torch.nn.grad.conv2d_weight(x, W.shape, torch.ones_like(call(x)), padding=1))
    with off():
        assert not call(x, w).requires_grad


def test_a_view_that_stands_for_other_numbers_is_not_read():
    assert torch.equal(call(torch._neg_view(X)), torch.nn.functional.conv2d(-X, W, BIAS, padding=1))
    assert call(X.to("meta"), W.to("meta"), BIAS.to("meta")).is_meta


def test_misaligned_numbers_are_refused():
    shifted = torch.frombuffer(bytearray(X.numel() * 4 + 1), dtype=torch.float32, offset=1).view(X.shape)
    with pytest.raises(convgrad.errors.ArrayError, match="not aligned"):
        call(shifted)


def test_transforms_autocast_and_modes_see_the_call():
    assert torch.func.vmap(call)(X[None])[0].equal(DST)
    dst, tangent = torch.func.jvp(call, (X,), (torch.ones_like(X),))
    assert dst.equal(DST)
    assert tangent.equal(torch.nn.functional.conv2d(torch.ones_like(X), W, None, padding=1))
    with torch.amp.autocast("cpu", torch.bfloat16):
        assert call().dtype is torch.bfloat16

    class Seen(TorchDispatchMode):
        names = []  # noqa: RUF012

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            self.names.append(str(op))
            return op(*args, **(kwargs or {}))

    class Called(TorchFunctionMode):
        names = []  # noqa: RUF012

        def __torch_function__(self, op, types, args=(), kwargs=None):
            self.names.append(str(op))
            return op(*args, **(kwargs or {}))

    for mode in (Seen, Called):
        with mode():
            call()
        assert any("convgrad.convolution" in name for name in mode.names)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(call(), FakeTensor)
    with torch.profiler.profile() as profiler:
        call()
    assert "convgrad::convolution" in {event.key for event in profiler.key_averages()}


def test_the_mode_of_products_is_part_of_what_is_known(learned):
    with convgrad.fpmath_mode("bf16"):
        call()
        assert len(learned) == 1
        call()
    call()
    assert len(learned) == 1


def test_calls_through_the_dispatcher_that_take_turns_are_told_apart(learned):
    op, plain = torch.ops.convgrad.convolution, torch.nn.functional.conv2d
    strided = ([2, 2], [1, 1], [1, 1], [1, 1], 1)
    ways = {
        "words": (BIAS, strided, lambda: plain(X, W, BIAS, 2, 1)),
        "no bias": (None, WORDS, lambda: plain(X, W, None, 1, 1)),
        "plain": (BIAS, WORDS, lambda: plain(X, W, BIAS, 1, 1)),
    }
    for bias, words, _ in ways.values():
        op(X, W, bias, *words)
    learned.clear()
    for name in ("words", "words", "plain", "no bias", "no bias", "plain", "words"):
        bias, words, expected = ways[name]
        assert torch.equal(op(X, W, bias, *words), expected()), name
        with convgrad.fpmath_mode("strict"):
            assert torch.equal(op(X, W, bias, *words), expected()), name
    assert len(learned) == 3  # under a mode that was not set before


def test_numbers_that_are_equal_but_no_whole_numbers_are_refused():
    torch.ops.convgrad.convolution(X, W, BIAS, *WORDS)
    with pytest.raises((TypeError, RuntimeError, convgrad.errors.ConvError)):
        operators.convolution(X, W, BIAS, [1.0, 1.0], *WORDS[1:])
