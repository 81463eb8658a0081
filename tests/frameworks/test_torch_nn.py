"""Layers against those of torch.nn of the same name, with numbers whose sums are exact."""

import copy
import inspect
import io
import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad  # noqa: E402
from convgrad.errors import AttributeRuleError, ShapeError  # noqa: E402
from convgrad.torch import nn  # noqa: E402

F = torch.nn.functional
KINDS = [f"{kind}{rank}d" for kind in ("Conv", "ConvTranspose") for rank in (1, 2, 3)]
kinds = pytest.mark.parametrize("kind", KINDS)


def rank_of(kind):
    return int(kind[-2])


def integers(*shape, dtype=torch.float32, seed=1):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def pair(kind, *args, **keywords):
    """Our layer and PyTorch's, with the same whole numbers as parameters."""
    ours, theirs = getattr(nn, kind)(*args, **keywords), getattr(torch.nn, kind)(*args, **keywords)
    with torch.no_grad():
        for seed, parameter in enumerate(theirs.parameters()):
            parameter.copy_(integers(*parameter.shape, seed=seed))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def assert_same(ours, theirs, src, *args):
    """Results and all gradients agree to the bit."""
    results = []
    for layer in (ours, theirs):
        layer.zero_grad()
        given = src.clone().requires_grad_()
        dst = layer(given, *args)
        dst.backward(integers(*dst.shape, dtype=dst.dtype, seed=9))
        results.append([dst, given.grad, *(parameter.grad for parameter in layer.parameters())])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
        assert one.stride() == two.stride()


@kinds
def test_the_constructor_is_that_of_pytorch_and_auto_pad(kind):
    ours, theirs = (inspect.signature(getattr(module, kind)).parameters for module in (nn, torch.nn))
    assert list(ours) == [*theirs, "auto_pad"]
    assert [ours[name].default for name in theirs] == [parameter.default for parameter in theirs.values()]


@kinds
def test_initialisation_names_and_class_are_those_of_pytorch(kind):
    layers = []
    for module in (nn, torch.nn):
        torch.manual_seed(3)
        layers.append(getattr(module, kind)(4, 6, 3, groups=2))
    ours, theirs = layers
    assert isinstance(ours, getattr(torch.nn, kind))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(ours.state_dict()[name], value) for name, value in theirs.state_dict().items())
    assert repr(ours) == f"convgrad.{theirs!r}"
    theirs.load_state_dict(ours.state_dict())


@kinds
@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((4, 6, 3), {}),
        ((4, 6, 3, 2, 1), {"groups": 2, "bias": False}),
        ((4, 4, 2, 1, 2), {"groups": 4, "dilation": 2}),
        ((3, 5, 1), {"padding": "valid"}),
    ],
    ids=["plain", "strided and grouped", "depthwise and dilated", "pointwise"],
)
def test_layers_agree_with_pytorch(kind, args, keywords):
    if "Transpose" in kind and keywords.get("padding") == "valid":
        keywords = {}
    ours, theirs = pair(kind, *args, **keywords)
    extents = (7, 6, 5)[: rank_of(kind)]
    assert_same(ours, theirs, integers(2, args[0], *extents))
    assert_same(ours, theirs, integers(args[0], *extents))  # without a batch


@pytest.mark.parametrize("kind", KINDS)
def test_one_entry_stands_for_all_axes(kind):
    words = dict(stride=(2,), padding=(1,), dilation=(2,)) | ({"output_padding": (1,)} if "Transpose" in kind else {})
    ours, theirs = pair(kind, 3, 4, 3, **words)
    src = integers(2, 3, *(7, 8, 9)[: rank_of(kind)])
    assert_same(ours, theirs, src)
    for layer in (ours, theirs):  # as programs do that change the layers of a model
        layer.stride, layer.padding, layer.dilation = 1, 2, 3
    if "Transpose" not in kind:  # where PyTorch asks for tuples
        assert_same(ours, theirs, src)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_padding_modes_agree_with_pytorch(kind, mode):
    extents = (7, 6, 5)[: rank_of(kind)]
    for padding in (1, "same"):
        ours, theirs = pair(kind, 3, 4, 4, padding=padding, padding_mode=mode)
        assert_same(ours, theirs, integers(2, 3, *extents))
        assert_same(ours, theirs, integers(3, *extents))


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("kernel", [3, 4])
@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch copies for even kernels
def test_same_agrees_with_pytorch(kind, kernel):
    ours, theirs = pair(kind, 3, 4, kernel, padding="same", dilation=2)
    assert_same(ours, theirs, integers(2, 3, *(7, 8, 9)[: rank_of(kind)]))


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_pairs_pad_each_end_of_an_axis(mode):
    layer = nn.Conv2d(3, 4, 3, stride=2, padding=((0, 3), (2, 1)), padding_mode=mode)
    plain = torch.nn.Conv2d(3, 4, 3, stride=2)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(integers(*parameter.shape))
    layer.load_state_dict(plain.state_dict())
    src = integers(2, 3, 6, 7)
    padded = F.pad(src, (2, 1, 0, 3), mode="constant" if mode == "zeros" else mode)
    assert torch.equal(layer(src), plain(padded))
    assert "padding=((0, 3), (2, 1))" in repr(layer)


def test_pairs_crop_a_transposed_convolution():
    layer, plain = nn.ConvTranspose1d(3, 4, 5, stride=2, padding=((1, 3),)), torch.nn.ConvTranspose1d(3, 4, 5, stride=2)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(integers(*parameter.shape))
    layer.load_state_dict(plain.state_dict())
    src = integers(2, 3, 6)
    whole = plain(src)
    assert torch.equal(layer(src), whole[..., 1:-3])
    assert torch.equal(
        layer(src, [12]), F.conv_transpose1d(src, plain.weight, plain.bias, 2, 0, 1)[..., 1:-3][..., :12]
    )


def test_equal_pairs_are_the_padding_of_pytorch():
    assert nn.Conv2d(3, 4, 3, padding=((1, 1), (2, 2))).padding == (1, 2)


@kinds
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "same_lower", "valid", "None"])
def test_auto_pad_is_that_of_the_specification(kind, auto_pad):
    rank, transposed = rank_of(kind), "Transpose" in kind
    layer = getattr(nn, kind)(2, 3, 4, stride=3, dilation=2, padding=1, auto_pad=auto_pad)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(integers(*parameter.shape))
    pads = {} if auto_pad != "None" else {"pads_begin": [1] * rank, "pads_end": [1] * rank}
    solve = convgrad.conv_transpose if transposed else convgrad.convolution
    for extents in ((9, 10, 11)[:rank], (10, 11, 9)[:rank]):
        src = integers(1, 2, *extents)
        expected = solve(
            src,
            layer.weight.detach(),
            layer.bias.detach(),
            strides=[3] * rank,
            dilations=[2] * rank,
            auto_pad=auto_pad,
            data_format="NCX",
            weights_format="IOX" if transposed else "OIX",
            **pads,
        )
        assert torch.equal(layer(src), expected)
        if auto_pad.lower().startswith("same"):
            assert layer(src).shape[2:] == tuple(3 * x if transposed else -(-x // 3) for x in extents)


def test_padding_takes_the_words_of_auto_pad_too():
    src = integers(1, 2, 7)
    by_padding = nn.Conv1d(2, 3, 4, stride=2, padding="same_lower")
    by_auto_pad = nn.Conv1d(2, 3, 4, stride=2, padding=5, auto_pad="same_lower")
    by_auto_pad.load_state_dict(by_padding.state_dict())
    assert torch.equal(by_padding(src), by_auto_pad(src))
    assert nn.ConvTranspose1d(2, 3, 4, auto_pad="valid").padding == (0,)


@pytest.mark.parametrize("kind", KINDS[3:])
def test_output_size_chooses_the_output_padding(kind):
    rank = rank_of(kind)
    ours, theirs = pair(kind, 4, 6, 3, stride=3, padding=1, groups=2)
    src = integers(2, 4, *(4, 5, 3)[:rank])
    least = theirs(src).shape
    for size in (least[2:], [x + 2 for x in least[2:]], [9, 9, *(x + 1 for x in least[2:])]):
        assert_same(ours, theirs, src, list(size))
    assert_same(ours, theirs, src[0], [9, *(x + 1 for x in least[2:])])


@kinds
def test_layers_pickle_and_copy(kind):
    layer = getattr(nn, kind)(2, 3, 3, padding=[(1, 2)] * rank_of(kind))
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    src = integers(1, 2, *(6, 7, 8)[: rank_of(kind)])
    for other in (copy.deepcopy(layer), torch.load(buffer, weights_only=False)):
        assert type(other) is type(layer)
        assert torch.equal(other(src), layer(src))
        assert other.weight is not layer.weight


@kinds
def test_lazy_layers_become_layers_of_ours(kind):
    lazy = getattr(nn, f"Lazy{kind}")(4, 3, padding=1, dtype=torch.float64)
    src = integers(2, 6, *(6, 7, 8)[: rank_of(kind)], dtype=torch.float64)
    first = lazy(src)
    assert type(lazy) is getattr(nn, kind)
    assert lazy.in_channels == 6
    assert torch.equal(first, lazy(src))
    theirs = getattr(torch.nn, kind)(6, 4, 3, padding=1, dtype=torch.float64)
    theirs.load_state_dict(lazy.state_dict())
    torch.testing.assert_close(first, theirs(src), rtol=0, atol=1e-12)


def test_device_and_dtype_reach_the_parameters():
    layer = nn.Conv2d(3, 4, 3, device="meta", dtype=torch.bfloat16)
    assert (layer.weight.device.type, layer.weight.dtype) == ("meta", torch.bfloat16)
    assert layer(torch.empty(2, 3, 5, 5, device="meta", dtype=torch.bfloat16)).shape == (2, 4, 3, 3)


def test_autocast_computes_in_its_type():
    layer = nn.Conv2d(3, 4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        dst = layer(integers(2, 3, 5, 5))
    assert dst.dtype is torch.bfloat16
    dst.sum().backward()
    assert layer.weight.grad.dtype is torch.float32


MISTAKES = {
    "axes": (
        lambda: nn.Conv2d(3, 4, 3)(integers(3, 4)),
        ShapeError,
        r"Conv2d: input \[3, 4\] has 2 axes, but 2 spatial axes make 4, or 3 without a batch; add or remove axes",
    ),
    "auto_pad": (
        lambda: nn.Conv2d(3, 4, 3, auto_pad="same"),
        AttributeRuleError,
        r"Conv2d: auto_pad is 'same'; must be one of none, same_upper, same_lower, valid",
    ),
    "same": (
        lambda: nn.ConvTranspose2d(3, 4, 3, padding="same"),
        AttributeRuleError,
        r"ConvTranspose2d: padding is 'same', which has a meaning for convolutions alone; give auto_pad = same_upper",
    ),
    "pairs": (
        lambda: nn.Conv2d(3, 4, 3, padding=((1, 2), 1)),
        ShapeError,
        r"Conv2d: padding is \(\(1, 2\), 1\), which is not 2 pairs; give \(begin, end\) for each of the 2 spatial axes",
    ),
    "number of pairs": (
        lambda: nn.Conv3d(3, 4, 3, padding=((1, 2), (1, 2))),
        ShapeError,
        r"Conv3d: padding is .* not 3 pairs",
    ),
    "entries of output_size": (
        lambda: nn.ConvTranspose2d(3, 4, 3)(integers(1, 3, 4, 4), [1, 2, 3]),
        ShapeError,
        r"output_size \[1, 2, 3\] has 3 entries, but the result has 2 spatial axes, 4 axes in all; give 2 or 4 entries",
    ),
    "output_size": (
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2)(integers(1, 3, 4, 5), [9, 13]),
        ShapeError,
        r"output_size is \[9, 13\], but an input of \[4, 5\] with stride \[2, 2\] gives \[9, 11\] to \[10, 12\]; ",
    ),
}


@pytest.mark.parametrize(("mistake", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_explained(mistake, error, message):
    with pytest.raises(error, match=message):
        mistake()


def test_mistakes_that_pytorch_knows_are_left_to_its_constructor():
    with pytest.raises(ValueError, match="padding='same' is not supported for strided convolutions"):
        nn.Conv2d(3, 4, 3, stride=2, padding="same")
    with pytest.raises(ValueError, match=re.escape('Only "zeros" padding mode is supported for ConvTranspose1d')):
        nn.ConvTranspose1d(3, 4, 3, padding_mode="reflect")
