"""Models converted in place and back: what changes, what does not, and what is left alone."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from convgrad.torch import convert, converted, nn, restore  # noqa: E402

KINDS = [
    f"{lazy}Conv{transposed}{rank}d" for lazy in ("", "Lazy") for transposed in ("", "Transpose") for rank in (1, 2, 3)
]


class Block(torch.nn.Module):
    """Layers in containers, one layer in two places, and one that only a list holds."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding="same")
        self.body = torch.nn.Sequential(torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 8, 3, padding=1, groups=8))
        self.again = self.body[1]
        self.up = torch.nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1)
        self.listed = [self.up]

    def forward(self, x):
        return self.listed[0](self.again(self.body(self.stem(x))))


def model():
    torch.manual_seed(5)
    block = Block()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_((parameter * 4).round())
    return block.eval()


def test_converted_models_compute_the_same_and_come_back():
    block, src = model(), torch.randint(-2, 3, (2, 3, 6, 7)).float()
    block.body[0] = torch.nn.Identity()  # normalisation would round
    expected, text = block(src), repr(block)
    assert convert(block) is block
    done = converted(block)
    assert done.taken == {"stem": "Conv2d", "body.1": "Conv2d", "up": "ConvTranspose2d"}
    assert done.left == {}
    assert str(done) == "layers on convgrad: 2 Conv2d, 1 ConvTranspose2d"
    assert type(block.stem) is type(block.again) is nn.Conv2d
    assert type(block.listed[0]) is nn.ConvTranspose2d
    assert torch.equal(block(src), expected)
    assert converted(convert(block)) == done
    assert restore(block) is block
    assert repr(block) == text
    assert converted(block).left == dict.fromkeys(done.taken, "not converted")
    assert torch.equal(block(src), expected)
    assert converted(convert(block)) == done
    assert converted(convert(block, back=True)).taken == {}


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_has_its_own_class(kind):
    channels = (4,) if kind.startswith("Lazy") else (3, 4)
    layer = getattr(torch.nn, kind)(*channels, 3)
    assert converted(convert(layer)).taken == {"": kind}
    assert type(layer) is getattr(nn, kind)
    restore(layer)
    assert type(layer) is getattr(torch.nn, kind)


def test_a_lazy_layer_that_was_converted_becomes_one_of_ours():
    layer = torch.nn.LazyConvTranspose1d(4, 3)
    convert(layer)
    layer(torch.ones(1, 2, 5))
    assert type(layer) is nn.ConvTranspose1d


def test_parameters_hooks_flags_and_optimizers_are_kept():
    block = model()
    parameters, seen = list(block.parameters()), []
    block.stem.register_forward_hook(lambda *_: seen.append("forward"))
    block.stem.register_full_backward_hook(lambda *_: seen.append("backward"))
    block.stem.weight.requires_grad_(False)
    block.up.mark = 7
    optimizer = torch.optim.SGD(block.parameters(), lr=1.0)
    convert(block)
    assert all(one is two for one, two in zip(parameters, block.parameters(), strict=True))
    assert not any(layer.training for layer in block.modules())
    before = block.up.weight.clone()
    block(torch.ones(1, 3, 4, 4)).sum().backward()
    optimizer.step()
    assert seen == ["forward", "backward"]
    assert block.stem.weight.grad is None
    assert block.up.mark == 7
    assert not torch.equal(block.up.weight, before)


def test_copies_and_state_of_a_converted_model_are_those_of_any():
    block, plain = model(), model()
    convert(block)
    plain.load_state_dict(copy.deepcopy(block).state_dict())
    src = torch.randint(-2, 3, (1, 3, 4, 4)).float()
    torch.testing.assert_close(plain(src), block(src), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("wrap", ["weight_norm", "spectral_norm", "old weight_norm"])
def test_layers_with_parametrizations_are_converted(wrap):
    torch.manual_seed(2)
    layer, src = torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)
    if wrap == "old weight_norm":
        with pytest.warns(FutureWarning, match="weight_norm"):
            torch.nn.utils.weight_norm(layer)
    else:
        getattr(torch.nn.utils.parametrizations, wrap)(layer)
    model = torch.nn.Sequential(layer).eval()
    expected = model(src)
    power = copy.deepcopy(model.state_dict())
    assert converted(convert(model)).taken == {"0": "Conv2d"}
    assert isinstance(layer, nn.Conv2d)
    assert all(torch.equal(value, power[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(model(src), expected, rtol=0, atol=27 * 2**-22)  # 27 products, each below 4 in size
    restore(model)
    assert not isinstance(layer, nn.Conv2d)
    assert torch.equal(model(src), expected)


def test_a_parametrization_can_be_removed_after_conversion():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(2, 3, 3))
    convert(layer)
    torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Conv1d


class Scaled(torch.nn.Conv2d):
    """Somebody's own convolution."""

    def forward(self, x):
        return 2 * super().forward(x)


class Careful(nn.Conv2d):
    """Somebody's own, on ours."""


def test_what_cannot_be_vouched_for_is_left_and_said():
    replaced = torch.nn.Conv2d(3, 4, 3)
    replaced.forward = lambda x: x
    network = torch.nn.ModuleDict(
        {
            "own": Scaled(3, 4, 3),
            "replaced": replaced,
            "complex": torch.nn.Conv1d(3, 4, 3, dtype=torch.complex64),
            "ours": Careful(3, 4, 3),
            "linear": torch.nn.Linear(3, 4),
        }
    )
    done = converted(convert(network))
    assert done.taken == {"ours": "Careful"}
    assert str(done).splitlines() == [
        "layers on convgrad: 1 Careful",
        "left to PyTorch: own, Scaled is a subclass of Conv2d and may do anything; change its base",
        "left to PyTorch: replaced, its forward was replaced",
        "left to PyTorch: complex, it holds complex64, for which there are no kernels",
    ]
    assert type(network["own"]) is Scaled
    alone = converted(convert(Scaled(3, 4, 3)))
    assert str(alone).splitlines()[0] == "layers on convgrad: none"
    assert str(alone).splitlines()[1].startswith("left to PyTorch: the model itself, Scaled is a ")


def test_layers_on_other_devices_are_left_but_meta_has_shapes():
    layer = torch.nn.Conv2d(3, 4, 3, device="meta")
    assert converted(convert(layer)).taken == {"": "Conv2d"}
    assert layer(torch.empty(1, 3, 5, 5, device="meta")).shape == (1, 4, 3, 3)
    elsewhere = torch.nn.Conv2d(3, 4, 3)
    elsewhere.register_parameter("weight", torch.nn.Parameter(_Elsewhere(elsewhere.weight.data)))
    assert converted(convert(elsewhere)).left == {"": "it lies on cuda:0, and kernels run on the CPU"}


class _Elsewhere(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def device(self):
        return torch.device("cuda:0")


def test_padding_that_pytorch_has_no_word_for_is_not_restored():
    network = torch.nn.Sequential(
        nn.Conv1d(2, 3, 3, padding=((1, 2),)),
        nn.ConvTranspose1d(3, 3, 3, auto_pad="same_lower"),
        nn.Conv1d(3, 3, 3, padding=((1, 1),)),
        nn.Conv1d(3, 3, 3, padding="same"),
    )
    assert converted(restore(network)).taken == {"0": "Conv1d", "1": "ConvTranspose1d"}
    assert type(network[2]) is type(network[3]) is torch.nn.Conv1d
    src = torch.randint(-2, 3, (1, 2, 6)).float()
    assert network(src).shape == (1, 3, 7)
