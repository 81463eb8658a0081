"""The operators under torch.func, torch.compile, autocast, checkpointing and what else PyTorch does to an operator."""

import copy
import gc
import itertools
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad  # noqa: E402
import convgrad.torch as functions  # noqa: E402
from convgrad.errors import ArrayError, AttributeRuleError, DtypeError, ShapeError  # noqa: E402
from convgrad.torch import kernels, operators  # noqa: E402

F = torch.nn.functional
B = 3  # of vmap


def integers(*shape, dtype=torch.float64, seed=1):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, W, BIAS = integers(2, 4, 7, 6), integers(6, 2, 3, 2, seed=2), integers(6, seed=3)
Y, OF_X = integers(2, 6, 4, 7, seed=4), integers(4, seed=5)


def ours(x, w, b):
    return operators.convolution(x, w, b, [2, 1], [1, 0], [1, 2], [1, 2], 2)


def theirs(x, w, b):
    return torch.conv2d(F.pad(x, (0, 2, 1, 1)), w, b, (2, 1), 0, (1, 2), 2)


def ours_transposed(y, w, b):
    return operators.conv_transpose(y, w, b, [2, 1], [1, 0], [1, 2], [1, 0], [1, 1], 2)


def theirs_transposed(y, w, b):
    return torch.conv_transpose2d(y, w, b, (2, 1), (1, 0), (1, 0), 2)[..., :-2]


PAIRS = {
    "convolution": (ours, theirs, (X, W, BIAS)),
    "conv_transpose": (ours_transposed, theirs_transposed, (Y, W, OF_X)),
}
pairs = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def square_sum(function):
    return lambda *given: function(*given).square().sum()


def test_the_pairs_are_the_same_operation():
    for one, other, given in PAIRS.values():
        assert torch.equal(one(*given), other(*given))


@pairs
@pytest.mark.parametrize(
    "dims",
    [d for d in itertools.product([None, 0, 1], [None, 0, 2], [None, 0, 1]) if any(entry is not None for entry in d)],
)
def test_batches_over_any_argument(pair, dims):
    """Of the operator and of its gradients; three given tensors, two batched gradients: every rule is met."""
    one, other, given = pair
    batched = [
        t if at is None else integers(*t.shape[:at], B, *t.shape[at:], seed=seed)
        for seed, (t, at) in enumerate(zip(given, dims, strict=True))
    ]
    result, expected = (torch.func.vmap(function, dims)(*batched) for function in (one, other))
    assert torch.equal(result, expected)
    diff = integers(*expected.shape, seed=7)

    def gradients(function, diff_dim):
        def pull(diff, *given):
            return torch.func.vjp(function, *given)[1](diff)

        return torch.func.vmap(pull, (diff_dim, *dims))(diff if diff_dim == 0 else diff[0], *batched)

    for diff_dim in (0, None):
        for result, expected in zip(gradients(one, diff_dim), gradients(other, diff_dim), strict=True):
            assert torch.equal(result, expected)


@pairs
@pytest.mark.parametrize("argument", range(3))
def test_gradients_and_jacobians(pair, argument):
    one, other, given = pair
    given = [given[0][:, :, :4, :3], *given[1:]]
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        assert torch.equal(transform(one, argument)(*given), transform(other, argument)(*given))
    grad = torch.func.grad
    assert torch.equal(grad(square_sum(one), argument)(*given), grad(square_sum(other), argument)(*given))


@pairs
def test_transforms_of_transforms(pair):
    one, other, given = pair
    given = (given[0][:1, :, :3, :3], *given[1:])
    hessians = (torch.func.hessian(square_sum(function), (0, 1))(*given) for function in (one, other))
    for result, expected in zip(*(itertools.chain(*hessian) for hessian in hessians), strict=True):
        assert torch.equal(result, expected)

    def of_gradient(function):
        def norm(w, x):
            return torch.func.grad(square_sum(function), 0)(x, w, given[2]).square().sum()

        return torch.func.vmap(torch.func.grad(norm), (None, 0))(given[1], torch.stack([given[0]] * 2))

    assert torch.equal(of_gradient(one), of_gradient(other))


@pairs
def test_gradients_of_gradients_after_their_transform_has_ended(pair):
    one, other, given = pair

    def pulled(function):
        gradients = torch.func.grad(lambda *tensors: function(*tensors).pow(3).sum(), (0, 1, 2))
        return torch.func.vjp(gradients, *given)[1](given)  # what `vjp` gives is called with nothing around it

    for result, expected in zip(pulled(one), pulled(other), strict=True):
        assert torch.equal(result, expected)


@pairs
def test_forward_mode_is_compiled(pair):
    one, other, given = pair
    torch._dynamo.reset()

    def pushed(function):
        return lambda *tensors: torch.func.jvp(function, tensors, tensors)

    compiled = torch.compile(pushed(one), fullgraph=True, backend="eager")
    for result, expected in zip(compiled(*given), pushed(other)(*given), strict=True):
        assert torch.equal(result, expected)


def test_batches_of_bias_gradients():
    diff = integers(2, B, 4, 3, 5)
    for dim in range(2):
        result = torch.func.vmap(operators.bias_add_backward, dim)(diff)
        assert torch.equal(result, diff.movedim(dim, 0).sum((1, 3, 4)))


def test_forward_mode_of_a_bias_gradient():
    diff, tangent = integers(2, 4, 3, 5), integers(2, 4, 3, 5, seed=2)
    value, derivative = torch.func.jvp(operators.bias_add_backward, (diff,), (tangent,))
    assert torch.equal(value, diff.sum((0, 2, 3)))
    assert torch.equal(derivative, tangent.sum((0, 2, 3)))


def assert_compiled(backend):
    torch._dynamo.reset()

    def model(function):
        return lambda x, w, b: function(x.relu(), w, b).relu()

    compiled = torch.compile(model(ours), fullgraph=True, backend=backend)
    for more in range(3):  # from the second size on, batch and height are symbols
        for memory_format in (torch.contiguous_format, torch.channels_last):
            x, w, b = integers(2 + more, 4, 7 + more, 6), W.clone(), BIAS.clone()
            given = [x.to(memory_format=memory_format), w.to(memory_format=memory_format), b]
            given = [t.requires_grad_() for t in given]
            result, expected = compiled(*given), model(theirs)(*given)
            assert torch.equal(result, expected)
            assert result.stride() == model(ours)(*given).stride()
            diff = integers(*expected.shape, seed=5)
            gradients = (torch.autograd.grad(dst, given, diff) for dst in (result, expected))
            for one, other in zip(*gradients, strict=True):
                assert torch.equal(one, other)


def test_compiled_without_breaks_and_for_symbolic_sizes():
    assert_compiled("aot_eager")


def test_compiled_by_inductor():
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler, which inductor needs")
    assert_compiled("inductor")


def test_functions_with_automatic_pads_are_compiled():
    def call(x, w):
        return functions.convolution(x, w, strides=2, auto_pad="same_upper", groups=2)

    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(X, W), call(X, W))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pairs
def test_autocast(pair, dtype):
    function, _, given = pair
    given = [t.float().requires_grad_() for t in given]
    with torch.amp.autocast("cpu", dtype):
        dst = function(*given)
        assert function(given[0].double(), given[1].double(), None).dtype == torch.float64  # as PyTorch's own
    assert dst.dtype == dtype
    assert torch.equal(dst, function(*(t.to(dtype) for t in given)))
    gradients = torch.autograd.grad(dst, given, integers(*dst.shape, dtype=dtype))
    expected = torch.autograd.grad(function(*given), given, integers(*dst.shape, dtype=torch.float32))
    for one, other in zip(gradients, expected, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other.to(dtype).float())  # whole numbers: one rounding at the end


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_types(dtype):
    for function, other, given in PAIRS.values():
        given = [t.clone().to(dtype).requires_grad_() for t in given]
        wide = [t.detach().double().requires_grad_() for t in given]
        dst, expected = function(*given), other(*wide)
        assert torch.equal(dst, expected.to(dtype))
        diff = integers(*dst.shape, dtype=dtype)
        gradients = zip(
            torch.autograd.grad(dst, given, diff), torch.autograd.grad(expected, wide, diff.double()), strict=True
        )
        for one, exact in gradients:
            assert torch.equal(one, exact.to(dtype))


def names_of(work):
    """The operators of ours that are run by `work`."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    return {event.key.removeprefix("convgrad::") for event in profile.key_averages() if "convgrad::" in event.key}


@pytest.mark.parametrize("wanted", range(3))
def test_gradients_that_nobody_asked_for_are_not_computed(wanted):
    of = {0: "backward_data", 1: "backward_weights"}
    for name, (function, _, given) in PAIRS.items():
        given = [t.clone().requires_grad_(place == wanted) for place, t in enumerate(given)]
        dst = function(*given)
        expected = "bias_add_backward" if wanted == 2 else f"{name}_{of[wanted]}"
        kept = [t for t in dst.grad_fn.saved_tensors if t is not None]
        assert [t.data_ptr() for t in kept] == [given[1 - wanted].data_ptr()] * (wanted < 2)
        assert names_of(lambda dst=dst: dst.backward(torch.ones_like(dst))) == {expected}


def test_checkpointing():
    given = [t.clone().requires_grad_() for t in (X, W, BIAS)]
    dst = torch.utils.checkpoint.checkpoint(ours, *given, use_reentrant=False)
    expected = theirs(*given)
    gradients = (torch.autograd.grad(y, given, integers(*y.shape)) for y in (dst, expected))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_modules_that_call_the_operators_are_copied():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.Parameter(W.clone())

        def forward(self, x):
            return ours(x, self.weights, None)

    model = Model()
    model(X).sum().backward()
    other = copy.deepcopy(model)
    other.zero_grad()
    other(X).sum().backward()
    assert torch.equal(model.weights.grad, other.weights.grad)
    assert model.weights.grad.any()


def test_calls_leave_no_tensors_behind():
    def live():
        gc.collect()
        return sum(type(thing) in (torch.Tensor, torch.nn.Parameter) for thing in gc.get_objects())

    def step():
        given = [t.clone().requires_grad_() for t in (X, W, BIAS)]
        ours(*given).sum().backward()

    step()
    before = live()
    for _ in range(20):
        step()
    assert live() == before


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
