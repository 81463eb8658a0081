"""PyTorch's convolutions while convgrad computes them: results, strides, derivatives, and the way back."""

import contextlib
import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad  # noqa: E402
import convgrad.torch as ct  # noqa: E402
from convgrad.torch import calls, convolutions  # noqa: E402
from frameworks.takeover_tensors import integers  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_stays")
F = torch.nn.functional
aten = torch.ops.aten
OPERATORS = ("convolution", "_convolution", "convolution_backward", "mm", "addmm")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def in_format(tensor, channels_last):
    """The same numbers with channels innermost in memory, or outermost."""
    if not channels_last:
        return tensor.contiguous()
    if tensor.dim() == 3:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    return tensor.contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)


def tables():
    return [
        torch._C._dispatch_dump_table(f"aten::{name}") + torch._C._dispatch_dump(f"aten::{name}") for name in OPERATORS
    ]


def test_disable_restores_the_dispatcher_exactly():
    before = tables()
    for _ in range(3):
        ct.enable()
        during = tables()
        ct.enable()
        assert tables() == during != before
        ct.disable()
        ct.disable()
        assert tables() == before


def test_the_context_leaves_things_as_they_were():
    with contextlib.suppress(KeyError), ct.enabled():
        assert ct.is_enabled()
        with ct.enabled():
            pass
        assert ct.is_enabled()
        raise KeyError
    assert not ct.is_enabled()


# PyTorch 2.6 shows the results of one spatial axis in another order than it computes them in
FAKES_OF_ROWS_DIFFER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)

GEOMETRIES = {  # in, out, groups, kernel, stride, dilation, padding, extent
    "plain": (4, 6, 1, 3, 1, 1, 1, 8),
    "strided groups": (4, 6, 2, 3, 2, 1, 1, 7),
    "dilated depthwise": (4, 4, 4, 3, 1, 2, 2, 8),
    "one element": (1, 1, 1, 1, 1, 1, 0, 1),
    "one pixel": (8, 8, 1, 1, 1, 1, 0, 1),
    "leftover": (3, 8, 1, 3, 2, 1, 0, 8),
}


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "transposed"])
@pytest.mark.parametrize(
    ("rank", "dtype"),
    [(1, torch.float32), (2, torch.float32), (3, torch.float32), (2, torch.float64), (2, torch.bfloat16)],
)
def test_results_and_strides_are_those_of_pytorch_real_and_fake(rank, dtype, transposed, geometry):
    channels, out, groups, kernel, stride, dilation, padding, extent = geometry
    weights_shape = (channels, out // groups) if transposed else (out, channels // groups)
    words = (
        [stride] * rank,
        [padding] * rank,
        [dilation] * rank,
        transposed,
        [int(transposed and stride > 1)] * rank,
        groups,
    )
    formats = list(itertools.product((False, True), repeat=2))
    if (rank, dtype) != (2, torch.float32):  # whose strides are those of two axes of f32
        formats = formats[(list(GEOMETRIES.values()).index(geometry) + transposed) % 2 :: 2]
    for src_last, weights_last in formats:
        src = in_format(integers(2, channels, *[extent] * rank, dtype=dtype), src_last)
        weights = in_format(integers(*weights_shape, *[kernel] * rank, dtype=dtype, seed=2), weights_last)
        bias = integers(out, dtype=dtype, seed=3)

        def compute(src, weights, bias):
            dst = aten.convolution(src, weights, bias, *words)
            diff_dst = torch.empty_like(dst).copy_(dst.to(dtype))
            return dst, *aten.convolution_backward(diff_dst, src, weights, [out], *words, [True, True, True])

        expected = compute(src, weights, bias)
        wide = torch.promote_types(dtype, torch.float32)  # PyTorch rounds bf16 in between on some processors
        exact = compute(*(tensor.to(wide) for tensor in (src, weights, bias)))
        with torch._subclasses.FakeTensorMode() as mode:
            fake = compute(*map(mode.from_tensor, (src, weights, bias)))
        with ct.enabled():
            results = compute(src, weights, bias)
            assert ct.taken().left == {}
        for result, value, other, shown in zip(results, exact, expected, fake, strict=True):
            assert torch.equal(result, value.to(dtype))
            assert steps(result) == steps(other)
            assert steps(shown) == steps(other) or (rank == 1 and FAKES_OF_ROWS_DIFFER)


def steps(tensor):
    """Strides, where they mean something."""
    return [step for step, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", list(itertools.product((True, False), repeat=3)), ids=str)
def test_only_gradients_that_are_asked_for_are_computed(mask, dtype):
    src, weights, diff_dst = (integers(*shape, dtype=dtype) for shape in ((1, 2, 5), (3, 2, 3), (1, 3, 3)))
    arguments = (diff_dst, src, weights, [3], [1], [0], [1], False, [0], 1, mask)
    expected = aten.convolution_backward(*arguments)
    with ct.enabled():
        results = aten.convolution_backward(*arguments)
        computed = sum(name.count("Backward") for name in ct.taken().operations)
    assert computed == sum(mask)
    for result, other, asked in zip(results, expected, mask, strict=True):
        assert (result is not None) == asked
        assert result is None or torch.equal(result, other)


def derivatives(dtype):
    """Up to the second order, of a convolution and a transposed one."""
    src, weights, up = (
        integers(*shape, dtype=dtype, seed=seed).requires_grad_()
        for seed, shape in enumerate(((2, 4, 6, 6), (6, 2, 3, 3), (6, 2, 3, 3)))
    )
    dst = F.conv_transpose2d(F.conv2d(src, weights, padding=1, groups=2), up, stride=2)
    first = torch.autograd.grad(dst, (src, weights, up), integers(*dst.shape, dtype=dtype), create_graph=True)
    second = torch.autograd.grad(first, (src, weights, up), [integers(*g.shape, dtype=dtype) for g in first])
    return dst, *first, *second


def test_second_derivatives_agree_to_the_bit():
    expected = derivatives(torch.float64)
    with ct.enabled():
        results = derivatives(torch.float64)
        assert ct.taken().left == {}
    for result, other in zip(results, expected, strict=True):
        assert torch.equal(result, other)


def test_functional_transforms_agree_to_the_bit():
    src, weights = integers(3, 2, 4, 5, 5, dtype=torch.float64), integers(6, 2, 3, 3, dtype=torch.float64, seed=2)

    def loss(weights, src):
        return F.conv2d(src, weights, padding=1, groups=2).square().sum()

    def compute():
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, src)
        tangent = torch.func.jvp(lambda w: F.conv2d(src[0], w, groups=2), (weights,), (weights,))[1]
        hessian = torch.func.hessian(loss)(weights[:, :, :1, :1], src[0, :, :, :2, :2])
        return each, tangent, hessian

    expected = compute()
    with ct.enabled():
        results = compute()
        assert ct.taken().left == {}
        assert ct.taken().operations["Convolution"] > 2
    for result, other in zip(results, expected, strict=True):
        assert torch.equal(result, other)


def test_inference_mode_and_no_grad():
    src, layer = integers(1, 3, 5, 5), torch.nn.Conv2d(3, 4, 3)
    expected = layer(src)
    for mode in (torch.inference_mode, torch.no_grad):
        with ct.enabled(), mode():
            dst = layer(src)
            torch.testing.assert_close(dst, expected, rtol=0, atol=27 * 2**-22)
            assert ct.taken().operations == {"Convolution": 1}
            assert not dst.requires_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traced_programs_are_taken_too():
    layer, src = torch.nn.Conv2d(3, 4, 3), integers(1, 3, 5, 5).requires_grad_()
    traced = torch.jit.trace(layer, src)
    with ct.enabled():
        traced(src).sum().backward()
        count = ct.taken()
    assert count.left == {}
    assert count.operations["Convolution"] == 1
    assert count.operations["ConvolutionBackwardData"] == 1


@pytest.mark.filterwarnings("error", "ignore::DeprecationWarning")
def test_programs_traced_meanwhile_hold_operators_of_pytorch():
    layers, src = (
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ConvTranspose2d(4, 2, 4, 2)),
        integers(1, 3, 5, 5),
    )
    with ct.enabled():
        expected = layers(src)
        traced = torch.jit.trace(layers, src)
        assert torch.equal(traced(src), expected)
        assert traced(integers(2, 3, 9, 7)).shape == (2, 2, 16, 12)  # extents are not fixed
        assert ct.taken().left == {}
    assert [node.kind() for node in traced.inlined_graph.nodes()].count("aten::_convolution") == 2
    torch.testing.assert_close(traced(src), expected, rtol=1e-5, atol=1e-5)


def test_complex_convolutions_are_those_of_their_parts():
    src, weights = integers(1, 2, 5, dtype=torch.complex64) * 1j, integers(3, 2, 3, dtype=torch.complex64)
    expected = F.conv1d(src, weights)
    with ct.enabled():
        assert torch.equal(F.conv1d(src, weights), expected)
        assert ct.taken() == calls.Taken({"Convolution": 3}, {})


def test_one_entry_stands_for_all_axes():
    src, weights = integers(1, 2, 6, 7), integers(3, 2, 3, 3)
    arguments = ([2], [1], [1], False, [0], 1)
    expected = torch.convolution(src, weights, None, *arguments)
    with ct.enabled():
        assert torch.equal(torch.convolution(src, weights, None, *arguments), expected)
        diff = aten.convolution_backward(expected, src, weights, None, *arguments, [True, True, False])
        assert ct.taken().left == {}
    assert all(
        map(torch.equal, diff[:2], aten.convolution_backward(expected, src, weights, None, *arguments, [True] * 3))
    )


def test_arguments_that_python_takes_for_equal_are_told_apart():
    """One entry for all axes, and True == 1: the words of these two calls are the same when strung together."""
    src, weights = integers(1, 4, 6, 6), integers(4, 4, 3, 3)
    calls = [([1], [0, 0], [1], True, [0, 0], 1), ([1], [0, 0], [1, 1], False, [0], 1)]
    expected = [torch.convolution(src, weights, None, *call) for call in calls]
    with ct.enabled():
        for call, other in zip(calls, expected, strict=True):
            assert torch.equal(torch.convolution(src, weights, None, *call), other)


def test_counts_outlive_what_is_forgotten(monkeypatch):
    monkeypatch.setattr(calls, "MOST_PLANS", 3)
    with ct.enabled():
        for extent in range(5, 13):
            F.conv1d(integers(1, 2, extent), integers(3, 2, 3))
        assert len(convolutions.PLANS[0]._found) <= 3
        assert ct.taken().operations == {"Convolution": 8}
    with ct.enabled():
        assert ct.taken().operations == {}
        assert str(ct.taken()) == "nothing taken"


@pytest.fixture
def modes(monkeypatch):
    """The fpmath_mode of every kernel that is made."""
    from convgrad.arrays import record

    seen, kernel_for = [], record.kernel_for
    monkeypatch.setattr(record, "kernel_for", lambda problem: seen.append(problem.fpmath_mode) or kernel_for(problem))
    monkeypatch.delenv("CONVGRAD_FPMATH_MODE", raising=False)
    return seen


def test_the_fpmath_mode_of_the_surroundings_reaches_the_kernels(modes):
    src, layer = integers(1, 3, 11, 5).requires_grad_(), torch.nn.Conv2d(3, 5, 3)
    with ct.enabled():
        for mode in ("strict", "bf16", "tf32", "bf16"):
            with convgrad.fpmath_mode(mode):
                layer(src).sum().backward()
    assert modes == ["strict"] * 3 + ["bf16"] * 3 + ["tf32"] * 3


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "conv"), reason="this PyTorch has no fp32_precision")
def test_what_pytorch_was_told_of_precision_holds(modes, monkeypatch):
    """For convolutions, or for all it does; unless the surroundings say otherwise."""
    src, layer = integers(1, 3, 12, 5).requires_grad_(), torch.nn.Conv2d(3, 5, 3)
    told = torch.backends.mkldnn.conv
    before = told.fp32_precision
    try:
        with ct.enabled():
            told.fp32_precision = "bf16"
            layer(src).sum().backward()
            with convgrad.fpmath_mode("tf32"):
                layer(src).sum().backward()
            monkeypatch.setenv("CONVGRAD_FPMATH_MODE", "any")
            told.fp32_precision = "ieee"
            layer(src).sum().backward()
            told.fp32_precision = "none"
            layer(src).sum().backward()
    finally:
        told.fp32_precision = before
    assert modes == ["bf16"] * 3 + ["tf32"] * 3 + ["strict"] * 3 + ["any"] * 3
