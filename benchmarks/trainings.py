"""Training as a whole: a network, its pictures, its loss and its optimizer, in sizes that a step of two cores can bear.

Pictures are random, since speed does not depend on them; the same seed gives the same training. Learning rates are
gentle, so that twenty steps do not amplify rounding beyond all measure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import models
import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCHES = 4  # that training goes round in
LAYOUTS = ("contiguous", "channels_last")
DTYPES = ("f32", "bf16")


class Training:
    """Networks and their optimizers; `step` is what is timed."""

    def __init__(self, layout: str, dtype: str) -> None:
        self._last = layout == "channels_last"
        self._autocast = dtype == "bf16"

    def autocast(self) -> torch.autocast:
        """Forward in bf16 where torch deems it fit, or not at all."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self._autocast)

    def laid(self, subject):
        """A network or a tensor in the memory format of this training; there is none for one spatial axis."""
        if not self._last:
            return subject
        if isinstance(subject, nn.Module):
            ranks = {weight.ndim for weight in subject.parameters()} & {4, 5}
            return subject.to(memory_format=_last(max(ranks))) if ranks else subject
        return subject.to(memory_format=_last(subject.ndim)) if subject.ndim in (4, 5) else subject

    def step(self, number: int) -> Tensor:
        """Forward, backward and optimizer; the loss before it."""
        raise NotImplementedError


def _last(rank: int) -> torch.memory_format:
    return {4: torch.channels_last, 5: torch.channels_last_3d}[rank]


class Supervised(Training):
    """One network, and one loss of what it makes of a batch."""

    def __init__(
        self,
        layout: str,
        dtype: str,
        network: Callable[[], nn.Module],
        inputs: Callable[[], Tensor],
        targets: Callable[[], Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: Callable[..., torch.optim.Optimizer],
    ) -> None:
        super().__init__(layout, dtype)
        self.network = self.laid(network())
        self._batches = [(self.laid(inputs()), targets()) for _ in range(BATCHES)]
        self._loss = loss
        self._optimizer = optimizer(self.network.parameters())

    def step(self, number: int) -> Tensor:
        """Forward, backward and optimizer; the loss before it."""
        inputs, targets = self._batches[number % BATCHES]
        self._optimizer.zero_grad()
        with self.autocast():
            made = self.network(inputs)
        loss = self._loss(made.float(), targets)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


class Adversarial(Training):
    """DCGAN: one step of the discriminator, on pictures and on generated ones, then one of the generator."""

    def __init__(self, layout: str, dtype: str, batch: int) -> None:
        super().__init__(layout, dtype)
        self.generator = self.laid(models.dcgan_generator())
        self.discriminator = self.laid(models.dcgan_discriminator())
        self._batches = [
            (self.laid(torch.rand(batch, 3, 64, 64) * 2 - 1), torch.randn(batch, 100, 1, 1)) for _ in range(BATCHES)
        ]
        self._optimizers = [_dcgan_adam(each.parameters()) for each in (self.discriminator, self.generator)]

    def step(self, number: int) -> Tensor:
        """The sum of the losses of both, before their steps."""
        pictures, noise = self._batches[number % BATCHES]
        of_discriminator, of_generator = self._optimizers
        of_discriminator.zero_grad()
        with self.autocast():
            made = self.generator(noise)
            real, fake = self.discriminator(pictures), self.discriminator(made.detach())
        loss = _is(real, 1.0) + _is(fake, 0.0)
        loss.backward()
        of_discriminator.step()

        of_generator.zero_grad()
        self.discriminator.requires_grad_(False)
        with self.autocast():
            judged = self.discriminator(made)
        deceit = _is(judged, 1.0)
        deceit.backward()
        self.discriminator.requires_grad_(True)
        of_generator.step()
        return (loss + deceit).detach()


def _dcgan_adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=2e-5, betas=(0.5, 0.999))  # the paper has 2e-4


def _is(logits: Tensor, truth: float) -> Tensor:
    logits = logits.float()
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


def spectral_distance(made: Tensor, wanted: Tensor) -> Tensor:
    """Mean difference of magnitudes of spectra at three resolutions, besides that of the waves."""
    made, wanted = made.flatten(0, 1), wanted.flatten(0, 1)
    distance = F.l1_loss(made, wanted)
    for size in (256, 512, 1024):
        window = torch.hann_window(size)
        spectra = [torch.stft(x, size, size // 4, window=window, return_complex=True) for x in (made, wanted)]
        one, other = ((spectrum.real.square() + spectrum.imag.square() + 1e-6).sqrt() for spectrum in spectra)
        distance = distance + F.l1_loss(one, other) / size**0.5
    return distance


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained, in words and as a training of a given layout and type."""

    about: str
    begin: Callable[[str, str], Training]
    layouts: tuple[str, ...] = LAYOUTS

    def train(self, layout: str, dtype: str, seed: int = 0) -> Training:
        """Begin training; equal arguments begin equal trainings."""
        torch.manual_seed(seed)
        return self.begin(layout, dtype)


def _pictures(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


def _labels(classes: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(classes, shape)


def _case(about: str, layouts: tuple[str, ...] = LAYOUTS, **parts) -> Case:
    return Case(about, lambda layout, dtype: Supervised(layout, dtype, **parts), layouts)


def _momentum(rate: float) -> Callable[..., torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9)


def _adamw(rate: float) -> Callable[..., torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=rate)


CASES = {
    "dcgan": Case(
        "generator and discriminator of DCGAN, 8 pictures of 64x64, Adam",
        lambda layout, dtype: Adversarial(layout, dtype, batch=8),
    ),
    "unet": _case(
        "U-Net, 1 picture of 160x160, momentum",
        network=models.UNet,
        inputs=_pictures(1, 1, 160, 160),
        targets=_labels(2, 1, 160, 160),
        loss=F.cross_entropy,
        optimizer=_momentum(1e-3),
    ),
    "resnet50": _case(
        "ResNet-50, 4 pictures of 224x224, momentum",
        network=models.resnet50,
        inputs=_pictures(4, 3, 224, 224),
        targets=_labels(1000, 4),
        loss=F.cross_entropy,
        optimizer=_momentum(1e-3),
    ),
    "hifigan": _case(
        "generator of HiFi-GAN V1, 2 waves of 8192 samples, AdamW",
        layouts=LAYOUTS[:1],
        network=models.HiFiGANGenerator,
        inputs=_pictures(2, 80, 32),
        targets=_pictures(2, 1, 8192),
        loss=spectral_distance,
        optimizer=_adamw(2e-4),
    ),
    "unet3d": _case(
        "3-D U-Net, 1 volume of 32x32x32, momentum",
        network=models.UNet3d,
        inputs=_pictures(1, 3, 32, 32, 32),
        targets=_labels(3, 1, 32, 32, 32),
        loss=F.cross_entropy,
        optimizer=_momentum(1e-2),
    ),
    "convnext": _case(
        "ConvNeXt-tiny, 4 pictures of 224x224, AdamW",
        network=models.convnext_tiny,
        inputs=_pictures(4, 3, 224, 224),
        targets=_labels(1000, 4),
        loss=F.cross_entropy,
        optimizer=_adamw(1e-3),
    ),
}
