"""What is left to PyTorch while convgrad computes convolutions, and mistakes, which are told in PyTorch's words."""

import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad.torch as ct  # noqa: E402
from frameworks.takeover_tensors import integers  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_stays")
F = torch.nn.functional
aten = torch.ops.aten

LEFT = {  # what PyTorch computes itself: arguments of torch.convolution before the stride, and how the reason begins
    "integers": (
        (integers(1, 2, 5, dtype=torch.int64), integers(3, 2, 3, dtype=torch.int64), None),
        "type torch.int64",
    ),
    "no batch": ((integers(0, 2, 5), integers(3, 2, 3), None), "a tensor without elements"),
}
ONE_AXIS = ([1], [0], [1], False, [0], 1)


@pytest.mark.parametrize(("tensors", "why"), LEFT.values(), ids=LEFT)
def test_what_is_not_taken_is_computed_by_pytorch(tensors, why):
    expected = torch.convolution(*tensors, *ONE_AXIS)
    with ct.enabled():
        assert torch.equal(torch.convolution(*tensors, *ONE_AXIS), expected)
        torch.convolution(*tensors, *ONE_AXIS)
        assert ct.taken().left["convolution", why] == 2
        assert f"2 x convolution left to PyTorch: {why}" in str(ct.taken())


def test_gradients_that_are_not_taken_are_computed_by_pytorch():
    src = integers(0, 2, 5).requires_grad_()
    weights = integers(3, 2, 3).requires_grad_()
    with ct.enabled():
        F.conv1d(src, weights).sum().backward()
        assert ct.taken().left == {
            ("convolution", "a tensor without elements"): 1,
            ("convolution_backward", "a tensor without elements"): 1,
        }
    assert torch.equal(weights.grad, torch.zeros(3, 2, 3))


MISTAKES = {
    "channels": ((integers(1, 3, 5), integers(3, 2, 3), None, *ONE_AXIS), "Convolution: "),
    "types": (
        (integers(1, 2, 5), integers(3, 2, 3).double(), None, *ONE_AXIS),
        "types torch.float32, torch.float64 tog",
    ),
    "axes": ((integers(1, 2, 5), integers(3, 2, 3, 3), None, *ONE_AXIS), "tensors of 3 and 4 axes"),
    "kernel": ((integers(1, 2, 2), integers(3, 2, 3), None, *ONE_AXIS), "Convolution: dst [1, 3, 0] has no elements"),
    "groups of the specification": (
        (integers(1, 4, 5), integers(2, 6, 3), None, [1], [0], [1], True, [0], 2),
        "ConvTranspose: src has 4 channels, but weights",
    ),
    "output_padding": (
        (integers(1, 2, 5), integers(2, 3, 3), None, [1], [0], [1], True, [1], 1),
        "an output_padding that is not smaller than stride or dilation",
    ),
}


@pytest.mark.parametrize(("arguments", "why"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_in_the_words_of_pytorch(arguments, why):
    with pytest.raises(RuntimeError) as error:
        torch.convolution(*arguments)
    with ct.enabled():
        with pytest.raises(RuntimeError, match=re.escape(str(error.value))):
            torch.convolution(*arguments)
        (left,) = ct.taken().left
    assert left[1].startswith(why)


def test_numbers_across_their_addresses_are_left_but_not_their_geometry():
    memory = bytearray(4 * 40 + 1)
    straight, across = torch.frombuffer(memory, dtype=torch.float32, count=40), None
    across = torch.frombuffer(memory, dtype=torch.float32, count=40, offset=1)
    weights = integers(3, 2, 3)
    with ct.enabled():
        for src in (across, straight, across):
            src.copy_(integers(40))
            dst = F.conv1d(src.view(1, 2, 20), weights)
            assert torch.equal(dst, F.conv1d(integers(40).view(1, 2, 20), weights))
            diff = aten.convolution_backward(dst, src.view(1, 2, 20), weights, None, *ONE_AXIS, [True, True, False])
            assert diff[0].shape == (1, 2, 20)
        count = ct.taken()
    why = "not aligned to its elements"
    assert count.left == {("convolution", why): 2, ("convolution_backward", why): 2}
    assert count.operations["Convolution"] == 4
