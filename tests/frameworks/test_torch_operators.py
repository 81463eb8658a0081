"""The operators in PyTorch against PyTorch's own, and under everything that PyTorch does to an operator."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cases import assert_within_bound, error_bound  # noqa: E402
from convgrad.torch import operators  # noqa: E402
from frameworks.geometries import TABLE, Geometry, random_geometries  # noqa: E402

F = torch.nn.functional
NAMES = tuple(operators.SCHEMAS)
CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}
table = pytest.mark.parametrize("geometry", TABLE.values(), ids=TABLE)
PARTS = 8
RANDOM = random_geometries(80)
parts = pytest.mark.parametrize("part", range(PARTS))


def integers(*shape, dtype=torch.float32, seed=1):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normal(*shape, dtype=torch.float32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def arguments(geometry, dtype=torch.float32, make=integers):
    """Of all operators, with a bias: the same x, w and y in all of them."""
    shapes = (geometry.x_shape, geometry.w_shape, geometry.y_shape, geometry.y_shape[1:2], geometry.x_shape[1:2])
    x, w, y, of_y, of_x = (make(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))
    image, kernel = list(geometry.image), list(geometry.kernel)
    return {
        "convolution": (x, w, of_y, *geometry.words),
        "convolution_backward_data": (y, w, image, *geometry.words),
        "convolution_backward_weights": (x, y, kernel, *geometry.words),
        "conv_transpose": (y, w, of_x, *geometry.transposed_words),
        "conv_transpose_backward_data": (x, w, *geometry.transposed_words),
        "conv_transpose_backward_weights": (y, x, kernel, *geometry.transposed_words),
        "bias_add_backward": (y,),
    }


def results(geometry, tensors):
    """Of all operators."""
    return {name: getattr(operators, name)(*given) for name, given in tensors.items()}


def results_of_torch(geometry, tensors):
    """The same from PyTorch's forward operators and its autograd."""
    x, w, of_y, *_ = tensors["convolution"]
    y, _, of_x, *_ = tensors["conv_transpose"]
    x, w, y, of_x, of_y = (None if t is None else t.detach().requires_grad_() for t in (x, w, y, of_x, of_y))
    common = {"dilation": geometry.dilations, "groups": geometry.groups, "stride": geometry.strides}
    dst = CONVOLUTIONS[geometry.rank](x, w, of_y, padding=geometry.pads_begin, **common)
    extra = {"output_padding": geometry.output_padding}
    image = TRANSPOSED[geometry.rank](y, w, of_x, padding=geometry.pads_begin, **extra, **common)
    of_x_side, of_w = torch.autograd.grad(dst, (x, w), y.detach())
    of_y_side, of_w_too = torch.autograd.grad(image, (y, w), x.detach())
    return {
        "convolution": dst,
        "convolution_backward_data": of_x_side,
        "convolution_backward_weights": of_w,
        "conv_transpose": image,
        "conv_transpose_backward_data": of_y_side,
        "conv_transpose_backward_weights": of_w_too,
        "bias_add_backward": y.detach().sum((0, *range(2, y.dim()))),
    }


def some_biases(geometry, tensors):
    """Every fifth geometry keeps its biases: each of the three is a kernel more to compile."""
    if RANDOM.index(geometry) % 5:
        del tensors["bias_add_backward"]
        for name in ("convolution", "conv_transpose"):
            tensors[name] = (*tensors[name][:2], None, *tensors[name][3:])
    return tensors


@parts
def test_results_are_those_of_pytorch_to_the_bit_on_whole_numbers(part):
    for geometry in RANDOM[part::PARTS]:
        tensors = some_biases(geometry, arguments(geometry))
        expected = results_of_torch(geometry, tensors)
        for name, result in results(geometry, tensors).items():
            assert torch.equal(result, expected[name]), f"{name}: {geometry}"


@parts
def test_results_are_those_of_pytorch_within_the_bound(part):
    role = dict(zip(NAMES, "yxwxyww", strict=True))
    for geometry in RANDOM[part::PARTS]:
        tensors = some_biases(geometry, arguments(geometry, make=normal))
        wide, sizes = (
            {
                name: tuple(change(t) if isinstance(t, torch.Tensor) else t for t in given)
                for name, given in tensors.items()
            }
            for change in (torch.Tensor.double, lambda t: t.double().abs())
        )
        exact, magnitudes, theirs = (results_of_torch(geometry, given) for given in (wide, sizes, tensors))
        for name, result in results(geometry, tensors).items():
            truth = exact[name].detach().numpy()
            terms = geometry.products[role[name]] + 1  # and a bias
            bound = error_bound(terms, magnitudes[name].detach().numpy(), truth, "f32", "f32")
            assert_within_bound(result.numpy(), truth, bound, f"{name}: {geometry}")
            assert_within_bound(
                result.numpy(), theirs[name].detach().double().numpy(), 2 * bound, f"{name}: {geometry}"
            )


@table
@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_first_and_second_order_are_right(geometry, name):
    given = [
        t.requires_grad_() if isinstance(t, torch.Tensor) else t
        for t in arguments(geometry, torch.float64, normal)[name]
    ]
    tensors = [t for t in given if isinstance(t, torch.Tensor)]

    def call(*tensors):
        return getattr(operators, name)(*tensors, *given[len(tensors) :])

    assert torch.autograd.gradcheck(call, tensors, check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tensors, check_fwd_over_rev=True, fast_mode=True)


def thrice_derived(function, first, second):
    """Third derivatives in both tensors, of squares of squares: every operator of the family has its part in them."""
    first, second = first.clone().requires_grad_(), second.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(first, second).square().sum(), first, create_graph=True)
    (curve,) = torch.autograd.grad(slope.square().sum(), second, create_graph=True)
    return torch.autograd.grad(curve.square().sum(), (first, second))


@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
def test_third_derivatives_are_those_of_pytorch_to_the_bit(name):
    geometry = TABLE["groups"]  # without output_padding, with which PyTorch's own third derivative fails
    first, second, _, *words = arguments(geometry, torch.float64)[name]
    theirs = F.conv2d if name == "convolution" else F.conv_transpose2d
    found = thrice_derived(lambda x, w: getattr(operators, name)(x, w, None, *words), first, second)
    expected = thrice_derived(lambda x, w: theirs(x, w, groups=geometry.groups), first, second)
    for one, other in zip(found, expected, strict=True):
        assert one.any()
        assert torch.equal(one, other)


def test_derivatives_are_right_number_by_number():
    for name in ("groups", "strided with a rest"):
        for op, given in arguments(TABLE[name], torch.float64, normal).items():
            given = [t.requires_grad_() if isinstance(t, torch.Tensor) else t for t in given]
            assert torch.autograd.gradcheck(getattr(operators, op), given), op


TRACED = ("strided with a rest", "asymmetric pads", "groups")  # a compiler is tried on these alone: it takes seconds


@pytest.mark.parametrize(  # every other case of each, in turn
    ("name", "case"),
    [(name, case) for n, name in enumerate(NAMES) for m, case in enumerate(TABLE) if (n + m) % 2 == 0],
)
def test_the_registration_is_what_pytorch_expects(case, name):
    given = [t.requires_grad_() if isinstance(t, torch.Tensor) else t for t in arguments(TABLE[case])[name]]
    utils = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    utils = utils if case in TRACED else utils[:-1]
    told = torch.library.opcheck(getattr(torch.ops.convgrad, name).default, tuple(given), test_utils=utils)
    assert told == dict.fromkeys(utils, "SUCCESS")


GROUPED = {
    rank: Geometry(
        image=(5, 4, 3)[:rank],
        kernel=(3, 2, 1)[:rank],
        strides=(2, 1, 1)[:rank],
        pads_begin=(1, 0, 1)[:rank],
        pads_end=(1, 1, 0)[:rank],
        dilations=(1, 2, 1)[:rank],
        groups=2,
    )
    for rank in (1, 2, 3)
}


def formats(rank):
    """Ways to lie in memory: a name, and what makes a tensor (N, C, spatial...) lie so."""
    last = (0, *range(2, rank + 2), 1)
    back = (0, rank + 1, *range(1, rank + 1))
    return {
        "contiguous": lambda t: t.contiguous(),
        "channels last": lambda t: t.permute(last).contiguous().permute(back),
        "expanded": lambda t: t[:1, :, ...].expand(t.shape),
        "every second": lambda t: t.repeat_interleave(2, -1)[..., ::2],
        "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        "offset": lambda t: torch.cat([t, t], 1)[:, t.shape[1] :],
    }


@pytest.mark.parametrize(
    ("rank", "kind"), [*((2, kind) for kind in formats(2)), (1, "channels last"), (3, "channels last"), (3, "offset")]
)
def test_strides_are_read_and_fake_results_lie_as_real_ones(rank, kind):
    from torch._subclasses import FakeTensorMode

    geometry = GROUPED[rank]
    tensors = arguments(geometry)
    expected = results(geometry, tensors)
    for name, given in tensors.items():
        given = [formats(rank)[kind](t) if isinstance(t, torch.Tensor) and t.dim() > 2 else t for t in given]
        if kind == "expanded":
            plain = [t.contiguous() if isinstance(t, torch.Tensor) else t for t in given]
            expected[name] = getattr(operators, name)(*plain)
        result = getattr(operators, name)(*given)
        assert torch.equal(result, expected[name]), name
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:
            fakes = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in given]
            fake = getattr(operators, name)(*fakes)
        assert (fake.shape, fake.stride(), fake.dtype) == (result.shape, result.stride(), result.dtype), name


def is_channels_last(tensor):
    return tensor.permute(0, *range(2, tensor.dim()), 1).is_contiguous()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_channels_last_gives_channels_last(rank):
    geometry = GROUPED[rank]
    last = formats(rank)["channels last"]
    for name, given in arguments(geometry).items():
        if name.endswith("weights") or name == "bias_add_backward":
            continue
        assert is_channels_last(getattr(operators, name)(last(given[0]), *given[1:])), name
        assert getattr(operators, name)(*given).is_contiguous(), name


def test_where_activations_tell_no_format_the_weights_do():
    last = formats(2)["channels last"]
    latent, weights = integers(2, 8, 1, 1), integers(8, 4, 3, 3)
    words = ([1, 1], [0, 0], [0, 0], [0, 0], [1, 1], 1)
    assert is_channels_last(operators.conv_transpose(latent, last(weights), None, *words))
    assert operators.conv_transpose(latent, weights, None, *words).is_contiguous()
    assert operators.conv_transpose(last(integers(2, 8, 2, 2)), weights, None, *words).stride()[1] == 1
    of_a_sum = integers(1).expand(2, 4, 3, 3)  # the gradient that sum() gives
    assert is_channels_last(operators.convolution_backward_data(of_a_sum, last(integers(4, 8, 3, 3)), [5, 5], *WORDS))


WORDS = ([1, 1], [0, 0], [0, 0], [1, 1], 1)


@pytest.mark.parametrize("shape", [(6, 5, 3, 2), (6, 5, 1, 1), (6, 1, 3, 2), (1, 5, 3, 1)], ids=str)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)])
def test_gradients_of_parameters_lie_as_the_parameters(order, shape):
    """Strides of axes with one element, too: DistributedDataParallel compares all of them."""
    inverse = tuple(np.argsort(order))
    for name, words in (("convolution", WORDS), ("conv_transpose", (*WORDS[:3], [0, 0], *WORDS[3:]))):
        w = torch.nn.Parameter(integers(*(shape[axis] for axis in order)).permute(inverse))
        src = integers(2, shape[1 if name == "convolution" else 0], 7, 6)
        dst = getattr(operators, name)(src, w, None, *words)
        (gradient,) = torch.autograd.grad(dst, w, integers(*dst.shape, seed=2), create_graph=True)
        assert gradient.stride() == w.stride()
        plain = w.detach().contiguous().requires_grad_()
        dst = getattr(operators, name)(src, plain, None, *words)
        assert torch.equal(gradient, torch.autograd.grad(dst, plain, integers(*dst.shape, seed=2))[0])
