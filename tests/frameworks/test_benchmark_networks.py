"""The networks of the training benchmark, made small: taken over, they compute what PyTorch computes, all of it."""

from copy import deepcopy

import pytest

from frameworks.benchmark_modules import benchmark_modules

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
models, trainings = benchmark_modules("models", "trainings")

from torch import nn  # noqa: E402
from torch.nn.modules.conv import _ConvNd  # noqa: E402

import convgrad.torch as ct  # noqa: E402

# In f64 sums of some thousand terms, through some dozen layers with normalizations between them, lose a few of the 16
# digits; a wrong tap, pad or channel changes the first.
CLOSE = 1e-9


def dcgan():
    """Both networks of the pair, one behind the other."""
    return nn.Sequential(models.dcgan_generator(noise=5, width=2), models.dcgan_discriminator(width=2))


NETWORKS = {  # of trainings.CASES, and the shape of what they are given
    "dcgan": (dcgan, (2, 5, 1, 1)),
    "unet": (lambda: models.UNet(width=4, levels=2), (1, 1, 12, 8)),
    "resnet50": (lambda: models.resnet50(classes=3, blocks=(1, 1)), (2, 3, 32, 32)),
    "hifigan": (
        lambda: models.HiFiGANGenerator(mels=6, width=16, rates=(4, 2), kernels=(3,), dilations=(1, 3)),
        (2, 6, 5),
    ),
    "unet3d": (lambda: models.UNet3d(width=2, levels=2), (1, 3, 8, 4, 4)),
    "convnext": (lambda: models.convnext_tiny(3, (4, 6, 8, 10), (1, 1, 1, 1)), (1, 3, 64, 64)),
}


def test_all_networks_are_here():
    assert NETWORKS.keys() == trainings.CASES.keys()


def step(network, given):
    """What the network makes, and all gradients."""
    made = network(given)
    made.square().sum().backward()
    return {"result": made.detach()} | {name: weights.grad for name, weights in network.named_parameters()}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_that_of_pytorch_and_every_convolution_is_taken(name):
    make, shape = NETWORKS[name]
    torch.manual_seed(1)
    network, given = make().double(), torch.randn(shape, dtype=torch.float64)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)  # of ResNet some begin as 0, and nothing before them would have a gradient
    if name != "hifigan":  # which has one spatial axis
        last = {4: torch.channels_last, 5: torch.channels_last_3d}[len(shape)]
        network, given = network.to(memory_format=last), given.to(memory_format=last)
    copy = deepcopy(network)
    expected = step(network, given)
    with ct.enabled():
        found = step(copy, given)
        taken = ct.taken()
    assert not taken.left
    layers = sum(isinstance(layer, _ConvNd) for layer in network.modules())
    kinds = {"forward": 0, "Data": 0, "Weights": 0}
    for operation, count in taken.operations.items():
        kinds[next((kind for kind in kinds if kind in operation), "forward")] += count
    assert kinds == {"forward": layers, "Data": layers - 1, "Weights": layers}  # pictures need no gradient
    largest = max(wanted.abs().max() for wanted in expected.values())
    for what, wanted in expected.items():
        assert wanted.any(), what
        # a bias before a normalization has a gradient of 0, which rounding makes a small number of its own
        off = (found[what] - wanted).abs().max() / max(wanted.abs().max(), 1e-3 * largest)
        assert off < CLOSE, f"{what} is off by {off:.1e} of its largest number"
        assert found[what].stride() == wanted.stride(), what
