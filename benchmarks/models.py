"""Networks that people train, as their papers have them, in plain PyTorch: nothing here knows convgrad."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


def dcgan_generator(noise: int = 100, width: int = 128, colours: int = 3) -> nn.Sequential:
    """Noise (N, noise, 1, 1) to pictures (N, colours, 64, 64). Radford et al., arXiv:1511.06434, figure 1."""
    channels = [noise, 8 * width, 4 * width, 2 * width, width]
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        stride, pad = (1, 0) if before == noise else (2, 1)
        layers += [nn.ConvTranspose2d(before, after, 4, stride, pad, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]
    return _narrow(nn.Sequential(*layers, nn.ConvTranspose2d(width, colours, 4, 2, 1, bias=False), nn.Tanh()))


def dcgan_discriminator(width: int = 128, colours: int = 3) -> nn.Sequential:
    """Pictures (N, colours, 64, 64) to logits (N, 1, 1, 1). arXiv:1511.06434, section 3."""
    layers: list[nn.Module] = [nn.Conv2d(colours, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
    for before, after in ((width, 2 * width), (2 * width, 4 * width), (4 * width, 8 * width)):
        layers += [nn.Conv2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.2, True)]
    return _narrow(nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, bias=False)))


def _narrow(network: nn.Sequential) -> nn.Sequential:
    """Weights as DCGAN begins: normal, of deviation 0.02, around 0, or 1 where they scale."""
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1.0, 0.02)
    return network


class UNet(nn.Module):
    """Pictures to one map for each class. Ronneberger et al., arXiv:1505.04597, with pads that keep the extents.

    Extents must be divisible by 2 ** levels.
    """

    def __init__(self, colours: int = 1, classes: int = 2, width: int = 64, levels: int = 4) -> None:
        super().__init__()
        channels = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(
            self._pair(before, after) for before, after in zip([colours, *channels], channels, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(after, before, 2, 2) for before, after in pairwise(channels))
        self.join = nn.ModuleList(self._pair(2 * each, each) for each in channels[:-1])
        self.head = nn.Conv2d(width, classes, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # section 3 of the paper

    @staticmethod
    def _pair(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.ReLU(True), nn.Conv2d(after, after, 3, padding=1), nn.ReLU(True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Down, and up again beside what was kept."""
        kept: list[Tensor] = []
        for pair in self.down:
            x = pair(F.max_pool2d(kept[-1], 2) if kept else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


class UNet3d(nn.Module):
    """Volumes to one map for each class. Çiçek et al., arXiv:1606.06650, figure 2, with pads that keep the extents.

    Channels double before each pooling; extents must be divisible by 2 ** levels.
    """

    def __init__(self, colours: int = 3, classes: int = 3, width: int = 32, levels: int = 3) -> None:
        super().__init__()
        wide = [2 * width << level for level in range(levels + 1)]  # channels that a level hands on
        self.down = nn.ModuleList(
            self._pair(before, after // 2, after) for before, after in zip([colours, *wide], wide, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose3d(each, each, 2, 2, bias=False) for each in wide[1:])
        self.join = nn.ModuleList(self._pair(before + after, before, before) for before, after in pairwise(wide))
        self.head = nn.Conv3d(wide[0], classes, 1)

    @staticmethod
    def _pair(before: int, middle: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv3d(before, middle, 3, padding=1), nn.BatchNorm3d(middle), nn.ReLU(True)),
            *(nn.Conv3d(middle, after, 3, padding=1), nn.BatchNorm3d(after), nn.ReLU(True)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Down, and up again beside what was kept."""
        kept: list[Tensor] = []
        for pair in self.down:
            x = pair(F.max_pool3d(kept[-1], 2) if kept else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the stride is in the 3x3, as everybody has it since 2015."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.residual = nn.Sequential(
            *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        same = stride == 1 and before == after
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, before, H, W) to (N, 4 * width, H / stride, W / stride)."""
        return F.relu(self.residual(x) + self.shortcut(x))


def resnet50(classes: int = 1000, blocks: Sequence[int] = (3, 4, 6, 3)) -> nn.Sequential:
    """Pictures (N, 3, H, W) to logits (N, classes). He et al., arXiv:1512.03385, table 1."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    channels, stages = 64, []
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stages.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    network = nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, Bottleneck):
            nn.init.zeros_(layer.residual[-1].weight)  # begin with shortcuts alone: Goyal et al., arXiv:1706.02677
    return network


class ResidualBranch(nn.Module):
    """Pairs of a dilated and a dense convolution, each pair beside a shortcut."""

    def __init__(self, channels: int, kernel: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.dilated = nn.ModuleList(
            _wave(nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) * each // 2, dilation=each))
            for each in dilations
        )
        self.dense = nn.ModuleList(
            _wave(nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2)) for _ in dilations
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        for dilated, dense in zip(self.dilated, self.dense, strict=True):
            x = x + dense(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class HiFiGANGenerator(nn.Module):
    """Mel spectra (N, mels, T) to waves (N, 1, T * prod(rates)). Kong et al., arXiv:2010.05646, variant V1.

    The weights of every layer are normalized, as in the paper.
    """

    def __init__(
        self,
        mels: int = 80,
        width: int = 512,
        rates: Sequence[int] = (8, 8, 2, 2),
        kernels: Sequence[int] = (3, 7, 11),
        dilations: Sequence[int] = (1, 3, 5),
    ) -> None:
        super().__init__()
        channels = [width >> stage for stage in range(len(rates) + 1)]
        self.begin = _wave(nn.Conv1d(mels, width, 7, padding=3), deviation=None)
        self.up = nn.ModuleList(
            _wave(nn.ConvTranspose1d(before, after, 2 * rate, rate, rate // 2))
            for before, after, rate in zip(channels, channels[1:], rates, strict=False)
        )
        self.fields = nn.ModuleList(
            nn.ModuleList(ResidualBranch(each, kernel, dilations) for kernel in kernels) for each in channels[1:]
        )
        self.end = _wave(nn.Conv1d(channels[-1], 1, 7, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        """Each stage makes the signal longer and half as wide, and sums its branches."""
        x = self.begin(x)
        for up, branches in zip(self.up, self.fields, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(branch(x) for branch in branches) / len(branches)
        return torch.tanh(self.end(F.leaky_relu(x)))


def _wave(layer: nn.Module, deviation: float | None = 0.01) -> nn.Module:
    if deviation is not None:
        nn.init.normal_(layer.weight, 0.0, deviation)
    return weight_norm(layer)


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of (N, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7, and two pointwise layers that are linear maps of the channels, as the authors have them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.widen = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape (N, C, H, W)."""
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.scale * self.narrow(F.gelu(self.widen(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


def convnext_tiny(
    classes: int = 1000, channels: Sequence[int] = (96, 192, 384, 768), blocks: Sequence[int] = (3, 3, 9, 3)
) -> nn.Sequential:
    """Pictures (N, 3, H, W) to logits (N, classes). Liu et al., arXiv:2201.03545; no stochastic depth."""
    layers: list[nn.Module] = [nn.Conv2d(3, channels[0], 4, 4), LayerNorm2d(channels[0], eps=1e-6)]
    for stage, (width, count) in enumerate(zip(channels, blocks, strict=True)):
        if stage:
            layers += [LayerNorm2d(channels[stage - 1], eps=1e-6), nn.Conv2d(channels[stage - 1], width, 2, 2)]
        layers += [ConvNeXtBlock(width) for _ in range(count)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(channels[-1], eps=1e-6)]
    network = nn.Sequential(*layers, *head, nn.Linear(channels[-1], classes))
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
    return network
