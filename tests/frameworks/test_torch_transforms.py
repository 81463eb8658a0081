"""The operators under torch.func, torch.compile, autocast, checkpointing and what else PyTorch does to an operator."""

import copy
import gc
import itertools
import shutil

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._dynamo import compiled_autograd  # noqa: E402

import convgrad.torch as functions  # noqa: E402
from convgrad.torch import operators  # noqa: E402
from frameworks.operator_pairs import BIAS, PAIRS, W, X, integers, ours, pairs, theirs  # noqa: E402

B = 3  # of vmap


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


@pairs
@pytest.mark.parametrize("dims", [(0, None, None), (None, 1, None), (None, None, 1), (2, 1, 0)])
def test_batches_of_none(pair, dims):
    one, _, given = pair
    given = [
        t if at is None else t.new_empty(*t.shape[:at], 0, *t.shape[at:]) for t, at in zip(given, dims, strict=True)
    ]
    expected = one(*pair[2])

    def summed(*tensors):
        return torch.func.vmap(one, dims)(*tensors).sum()

    assert torch.func.vmap(one, dims)(*given).shape == (0, *expected.shape)
    for gradient, tensor in zip(torch.func.grad(summed, (0, 1, 2))(*given), given, strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))
    of_bias = torch.func.vmap(operators.bias_add_backward)(expected.new_empty(0, *expected.shape))
    assert of_bias.shape == (0, expected.shape[1])


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


def test_compiled_autograd_keeps_calls_apart():
    x, w, bias = integers(2, 3, 6, 5), integers(4, 3, 3, 3, seed=2), integers(4, seed=3)

    def gradients(pads):
        given = [t.clone().requires_grad_() for t in (x, w, bias)]
        functions.convolution(*given, pads_begin=pads[0], pads_end=pads[1]).square().sum().backward()
        return [t.grad for t in given]

    for pads in ((1, 0), (0, 1)):
        expected = gradients(pads)
        with compiled_autograd._enable(lambda graph: graph):
            for result, plain in zip(gradients(pads), expected, strict=True):
                assert torch.equal(result, plain)


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
