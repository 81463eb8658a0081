"""PyTorch tensors, where PyTorch is installed."""

import numpy as np
import pytest

import convgrad
from convgrad.errors import ArrayError, AttributeRuleError, DtypeError

torch = pytest.importorskip("torch")

ATTRIBUTES = {
    "data_format": "NCX",
    "weights_format": "IOX",
    "strides": [2, 2],
    "pads_begin": [1, 1],
    "pads_end": [1, 1],
}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}


def integers(*shape, dtype=torch.float32):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_tensors_of_every_type_give_tensors(dtype):
    src, weights = integers(2, 4, 5, 6, dtype=TYPES[dtype]), integers(4, 3, 3, 3, dtype=TYPES[dtype])
    result = convgrad.conv_transpose(src, weights, **ATTRIBUTES)
    assert (type(result), result.dtype) == (torch.Tensor, TYPES[dtype])
    expected = torch.nn.functional.conv_transpose2d(src.double(), weights.double(), stride=2, padding=1)
    assert torch.equal(result.double(), expected.to(TYPES[dtype]).double())


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_16_bit_tensors_can_give_f32(dtype):
    src, weights = integers(2, 4, 5, 6, dtype=TYPES[dtype]), integers(4, 3, 3, 3, dtype=TYPES[dtype])
    expected = torch.nn.functional.conv_transpose2d(src.double(), weights.double(), stride=2, padding=1)
    for wide in ("f32", torch.float32, np.float32):
        result = convgrad.conv_transpose(src, weights, **ATTRIBUTES, out_dtype=wide)
        assert result.dtype == torch.float32
        assert torch.equal(result.double(), expected)


def test_strides_of_tensors_are_read_in_place_and_written_in_place():
    src = integers(2, 4, 5, 6).to(memory_format=torch.channels_last)
    weights = integers(3, 4, 3, 3).transpose(0, 1)
    expected = torch.nn.functional.conv_transpose2d(src, weights, stride=2, padding=1)
    out = torch.full(expected.shape, torch.nan).to(memory_format=torch.channels_last)
    for _ in range(2):
        assert convgrad.conv_transpose(src, weights, **ATTRIBUTES, out=out) is out
        assert torch.equal(out, expected)


def test_tensors_and_arrays_may_be_mixed():
    src, weights = integers(2, 4, 5, 6), integers(4, 3, 3, 3)
    expected = convgrad.conv_transpose(src, weights, **ATTRIBUTES)
    assert torch.equal(convgrad.conv_transpose(src, weights.numpy(), **ATTRIBUTES), expected)
    np.testing.assert_array_equal(convgrad.conv_transpose(src.numpy(), weights, **ATTRIBUTES), expected.numpy())


def test_sizes_and_integer_tensors_are_shapes():
    src, diff_dst = integers(1, 4, 2), integers(1, 5, 3)
    for shape in (torch.Size([2, 3, 2]), torch.tensor([2, 3, 2], dtype=torch.int32)):
        assert convgrad.conv_transpose_backward_weights(src, diff_dst, shape).shape == (2, 3, 2)


def test_bias_add_backward_of_tensors():
    diff_dst = integers(2, 3, 4, 5, dtype=torch.bfloat16)
    result = convgrad.bias_add_backward(diff_dst, data_format="NCX")
    assert torch.equal(result, diff_dst.float().sum(dim=(0, 2, 3)).bfloat16())


def test_a_tensor_that_requires_a_gradient_is_refused():
    src = integers(2, 4, 5, 6).requires_grad_()
    with pytest.raises(ArrayError, match=r"src requires a gradient, which this function does not record; .*detach\(\)"):
        convgrad.conv_transpose(src, integers(4, 3, 3, 3), **ATTRIBUTES)
    assert convgrad.conv_transpose(src.detach(), integers(4, 3, 3, 3), **ATTRIBUTES).shape == (2, 3, 9, 11)


def test_tensors_without_memory_or_of_integers_are_refused():
    with pytest.raises(ArrayError, match=r"^ConvTranspose: src "):
        convgrad.conv_transpose(torch.empty(2, 4, 5, 6, device="meta"), integers(4, 3, 3, 3), **ATTRIBUTES)
    with pytest.raises(DtypeError, match=r"src holds integers of 64 bits"):
        convgrad.conv_transpose(torch.ones(2, 4, 5, 6, dtype=torch.int64), integers(4, 3, 3, 3), **ATTRIBUTES)


def test_a_tensor_that_is_not_what_its_memory_holds_is_refused():
    src, weights = integers(2, 5, 3), integers(2, 3, 4)
    for strange, message in {
        torch.imag(torch.complex(src, src).conj()): r"negative of what its memory holds; give src.resolve_neg\(\)",
        torch._efficientzerotensor((2, 5, 3)): r"src has no memory, but \[2, 5, 3\] elements",
    }.items():
        with pytest.raises(ArrayError, match=message):
            convgrad.convolution(strange, weights)
    resolved = torch.imag(torch.complex(src, src).conj()).resolve_neg()
    assert torch.equal(convgrad.convolution(resolved, weights), -convgrad.convolution(src, weights))


def test_a_shape_without_numbers_is_refused():
    shape = torch.empty(3, dtype=torch.int32, device="meta")
    with pytest.raises(AttributeRuleError, match="dst_shape holds tensor"):
        convgrad.convolution_backward_data(integers(2, 3, 4), integers(2, 3, 4), shape)
