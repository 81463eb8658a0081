"""The functions for tensors: what they take, which pads they find, and how they explain mistakes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import convgrad  # noqa: E402
import convgrad.torch as functions  # noqa: E402
from convgrad.errors import ArrayError, AttributeRuleError, DtypeError, ShapeError  # noqa: E402
from convgrad.torch import kernels, operators  # noqa: E402
from frameworks.operator_pairs import BIAS, OF_X, W, X, Y, integers  # noqa: E402


def test_the_functions_take_numbers_or_one_for_each_axis():
    words = dict(strides=2, pads_begin=1, pads_end=(1, 2), dilations=[1, 2], groups=2)
    listed = ([2, 2], [1, 1], [1, 2], [1, 2], 2)
    dst = functions.convolution(X, W, BIAS, **words)
    assert torch.equal(dst, operators.convolution(X, W, BIAS, *listed))
    for shape in (X.shape, X.shape[2:]):
        result = functions.convolution_backward_data(dst, W, shape, **words)
        assert torch.equal(result, operators.convolution_backward_data(dst, W, [7, 6], *listed))
    for shape in (W.shape, list(W.shape[2:])):
        result = functions.convolution_backward_weights(X, dst, shape, **words)
        assert torch.equal(result, operators.convolution_backward_weights(X, dst, [3, 2], *listed))
    words = dict(strides=(2, 1), pads_begin=1, output_padding=(1, 0), groups=2)
    listed = ([2, 1], [1, 1], [0, 0], [1, 0], [1, 1], 2)
    image = functions.conv_transpose(Y, W, OF_X, **words)
    assert torch.equal(image, operators.conv_transpose(Y, W, OF_X, *listed))
    result = functions.conv_transpose_backward_data(image, W, **words)
    assert torch.equal(result, operators.conv_transpose_backward_data(image, W, *listed))
    result = functions.conv_transpose_backward_weights(Y, image, W.shape, **words)
    assert torch.equal(result, operators.conv_transpose_backward_weights(Y, image, [3, 2], *listed))
    assert torch.equal(functions.bias_add_backward(image), image.sum((0, 2, 3)))


def test_whole_numbers_need_not_be_those_of_python():
    expected = functions.convolution(X, W, strides=2, pads_begin=(1, 0), groups=2)
    two, one = np.int64(2), np.uint8(1)
    assert torch.equal(functions.convolution(X, W, strides=two, pads_begin=[one, 0], groups=two), expected)

    def halved(x, w):
        return functions.convolution(x, w, strides=x.shape[0], pads_begin=(1, 0), groups=x.shape[0])

    assert torch.equal(make_fx(halved, tracing_mode="symbolic")(X, W)(X, W), expected)


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower", "valid"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_automatic_pads_are_those_of_the_specification(auto_pad, strides):
    common = dict(strides=strides, auto_pad=auto_pad, groups=2)
    lists = common | {"strides": list(strides), "data_format": "NCX"}
    dst = functions.convolution(X, W, BIAS, **common)
    assert torch.equal(dst, convgrad.convolution(X, W, BIAS, weights_format="OIX", **lists))
    result = functions.convolution_backward_data(dst, W, X.shape, **common)
    expected = convgrad.convolution_backward_data(dst, W, list(X.shape), weights_format="OIX", **lists)
    assert torch.equal(result, expected)
    result = functions.convolution_backward_weights(X, dst, W.shape, **common)
    expected = convgrad.convolution_backward_weights(X, dst, list(W.shape), weights_format="OIX", **lists)
    assert torch.equal(result, expected)
    image = functions.conv_transpose(Y, W, OF_X, **common)
    assert torch.equal(image, convgrad.conv_transpose(Y, W, OF_X, weights_format="IOX", **lists))


WORDS = ([1, 1], [0, 0], [0, 0], [1, 1], 2)
T_WORDS = (*WORDS[:3], [0, 0], *WORDS[3:])
negative = torch._neg_view(X)
NESTED = torch.nested.nested_tensor(list(X))
FAULTS = {
    "not a tensor": (lambda: functions.convolution(X, W.numpy()), ArrayError, "weights is of type ndarray; give a t"),
    "nor the bias": (
        lambda: functions.convolution(X, W, BIAS.numpy()),
        ArrayError,
        "bias is of type ndarray; give a t",
    ),
    "nor what is summed": (lambda: functions.bias_add_backward(None), ArrayError, "diff_dst is of type NoneType; give"),
    "nested": (
        lambda: functions.convolution(NESTED, W, groups=2),
        ArrayError,
        r"src is nested; give .*to_padded_tensor",
    ),
    "another device": (lambda: kernels.convolution(X.to("meta"), W, None, *WORDS), ArrayError, r"device meta; move it"),
    "sparse": (
        lambda: operators.convolution(X.to_sparse(), W, None, *WORDS),
        ArrayError,
        r"src has the layout torch.sp",
    ),
    "quantized": (
        lambda: operators.bias_add_backward(torch.quantize_per_tensor(X.float(), 0.1, 0, torch.qint8)),
        ArrayError,
        r"diff_dst is quantized \(torch.qint8\); give diff_dst.dequantize\(\)",
    ),
    "integers": (
        lambda: operators.convolution(X.int(), W.int(), None, *WORDS),
        DtypeError,
        r"src holds torch.int32, b",
    ),
    "two types": (
        lambda: operators.convolution(X, W.float(), None, *WORDS),
        DtypeError,
        "src holds f64, but weights h",
    ),
    "negative view": (lambda: kernels.convolution(negative, W, None, *WORDS), ArrayError, r"src.resolve_neg\(\)"),
    "not aligned": (
        lambda: operators.bias_add_backward(misaligned()),
        ArrayError,
        "diff_dst is not aligned to its elements of 8 bytes",
    ),
    "few channels": (
        lambda: operators.convolution(X[:, :2], W, None, *WORDS),
        ShapeError,
        "src has 2 channels in groups",
    ),
    "weights as the pages have them": (
        lambda: operators.conv_transpose(integers(2, 4, 3, 3), integers(2, 6, 3, 3), None, *T_WORDS),
        ShapeError,
        r"src has 4 channels, but weights \[2, 6, 3, 3\], that is .* with groups = 2, make IC = 2",
    ),
    "and their gradient": (
        lambda: operators.conv_transpose_backward_data(integers(2, 6, 3, 3), integers(2, 6, 3, 3), *T_WORDS),
        ShapeError,
        r"diff_dst has 6 channels, .* make OC = 12",
    ),
    "no axes": (lambda: functions.convolution(X[0, 0], W), ShapeError, "src .* has 2 axes, but needs"),
    "fractional strides": (
        lambda: functions.convolution(X, W, strides=1.5),
        AttributeRuleError,
        "strides is 1.5; give",
    ),
    "a bool": (
        lambda: functions.convolution(X, W, dilations=(1, True)),
        AttributeRuleError,
        r"dilations is \(1, True\)",
    ),
    "groups": (
        lambda: functions.convolution(X, W, groups=2.0),
        AttributeRuleError,
        "groups is 2.0; give a whole number",
    ),
    "auto_pad": (
        lambda: functions.convolution(X, W, auto_pad="same"),
        AttributeRuleError,
        "auto_pad is 'same', but must",
    ),
    "three strides": (
        lambda: functions.convolution(X, W, strides=(1, 1, 1), groups=2),
        ShapeError,
        "strides has 3 entr",
    ),
    "a shape too short": (
        lambda: functions.convolution_backward_weights(X, Y, (3,)),
        ShapeError,
        r"weights_shape \[3\] has 1 entries, but with 2 spatial axes it takes 4",
    ),
    "no shape": (
        lambda: functions.convolution_backward_weights(X, Y, None, auto_pad="same_upper"),
        ShapeError,
        "weights_shape is None; give a list",
    ),
    "a shape of others": (
        lambda: functions.convolution_backward_data(Y, W, (2, 9, 7, 7), groups=2),
        ShapeError,
        r"dst_shape \[2, 9, 7, 7\] begins with \[2, 9\], but the tensors and groups make that \[2, 4\]",
    ),
    "a result too large": (
        lambda: kernels.convolution(X, W, None, [1, 1], [2**40, 2**40], [0, 0], [1, 1], 2),
        ShapeError,
        "does not fit into memory|more than 2",
    ),
}


def misaligned():
    raw = np.zeros(8 * 8 + 1, np.uint8)[1:].view(np.float64)
    return torch.from_numpy(raw).reshape(1, 8, 1)


@pytest.mark.parametrize(("call", "error", "words"), FAULTS.values(), ids=FAULTS)
def test_mistakes_are_explained(call, error, words):
    functions.convolution(X, W, groups=2)  # what is known is compared with each that comes
    for _ in range(2):  # a second time, too
        with pytest.raises(error, match=words):
            call()


def test_a_fault_raised_for_a_fake_tensor_is_the_same():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), pytest.raises(ShapeError, match="src has 2 channels"):
        operators.convolution(torch.empty(2, 2, 5, 5), torch.empty(6, 2, 3, 3), None, *WORDS)


def test_a_tensor_elsewhere_does_not_take_the_way_of_one_that_was_here():
    """Same shape, strides and type: only the device tells them apart."""
    kernels.convolution(X, W, None, *WORDS)
    for given in ((X.to("meta"), W), (X, W.to("meta"))):
        with pytest.raises(ArrayError, match="device meta"):
            kernels.convolution(*given, None, *WORDS)


def test_views_of_negative_tensors_are_resolved_by_the_dispatcher():
    assert torch.equal(operators.convolution(negative, W, BIAS, *WORDS), operators.convolution(-X, W, BIAS, *WORDS))
