"""Train a DCGAN on handwritten digits with PyTorch, its convolutions computed by convgrad.

    python examples/dcgan_digits.py --out made.png
    python examples/dcgan_digits.py --stock             the same without convgrad, to compare

One line, `convgrad.torch.enable()`, is all that convgrad asks of a program; the rest is plain PyTorch. The networks are
those of Radford et al., arXiv:1511.06434, for the 8x8 digits that come with scikit-learn. A generator that learns makes
pictures ever closer to digits: what is told is the distance from a generated picture to the nearest real one.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import convgrad.torch

NOISE = 32


def generator() -> nn.Sequential:
    """(N, NOISE, 1, 1) to (N, 1, 8, 8), between -1 and 1."""
    return nn.Sequential(
        *(nn.ConvTranspose2d(NOISE, 256, 2, bias=False), nn.BatchNorm2d(256), nn.ReLU(True)),
        *(nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(True)),
        *(nn.ConvTranspose2d(128, 1, 4, 2, 1, bias=False), nn.Tanh()),
    )


def discriminator() -> nn.Sequential:
    """(N, 1, 8, 8) to one logit each: real or not."""
    return nn.Sequential(
        *(nn.Conv2d(1, 128, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)),
        *(nn.Conv2d(128, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.LeakyReLU(0.2, True)),
        *(nn.Conv2d(256, 1, 2, bias=False), nn.Flatten(0)),
    )


def narrow(network: nn.Module) -> nn.Module:
    """Weights as the paper begins."""
    for weights in network.parameters():
        if weights.ndim == 4:
            nn.init.normal_(weights, 0.0, 0.02)
    return network


def loss_of(logits: Tensor, truth: float) -> Tensor:
    """How wrong the discriminator is about pictures that are all real, or all made."""
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


class Gan:
    """Both networks and their optimizers."""

    def __init__(self) -> None:
        self.generator, self.discriminator = narrow(generator()), narrow(discriminator())
        self.optimizers = [
            torch.optim.Adam(network.parameters(), lr=2e-4, betas=(0.5, 0.999))
            for network in (self.generator, self.discriminator)
        ]

    def step(self, digits: Tensor) -> tuple[float, float]:
        """One step of each; the losses of discriminator and generator before it."""
        of_generator, of_discriminator = self.optimizers
        made = self.generator(torch.randn(len(digits), NOISE, 1, 1))
        of_discriminator.zero_grad()
        error = loss_of(self.discriminator(digits), 0.9) + loss_of(self.discriminator(made.detach()), 0.0)
        error.backward()
        of_discriminator.step()

        of_generator.zero_grad()
        deceit = loss_of(self.discriminator(made), 1.0)
        deceit.backward()
        of_generator.step()
        return error.item(), deceit.item()

    @torch.no_grad()
    def pictures(self, count: int) -> Tensor:
        """As the generator makes them now, from the same noise each time."""
        return self.generator(torch.randn(count, NOISE, 1, 1, generator=torch.Generator().manual_seed(7)))


def distance(made: Tensor, digits: Tensor) -> float:
    """Mean distance of a generated picture to the nearest digit; that of a real digit to the nearest other is 2.1."""
    return torch.cdist(made.flatten(1), digits.flatten(1)).min(1).values.mean().item()


def main() -> None:
    """Train, and say how pictures come closer to digits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--stock", action="store_true", help="leave convolutions to PyTorch")
    parser.add_argument("--out", metavar="FILE", help="save generated digits as a picture")
    args = parser.parse_args()
    if not args.stock:
        convgrad.torch.enable()

    torch.manual_seed(0)
    digits = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    gan = Gan()
    print(f"distance to the nearest digit before: {distance(gan.pictures(256), digits):.2f}")
    start = perf_counter()
    for number in range(1, args.steps + 1):
        losses = gan.step(digits[torch.randint(len(digits), (args.batch,))])
        if number == 1 or number % max(1, args.steps // 10) == 0:
            print(f"step {number:5}  losses of discriminator {losses[0]:.3f}, of generator {losses[1]:.3f}")
    seconds = perf_counter() - start
    print(
        f"distance to the nearest digit after {args.steps} steps: {distance(gan.pictures(256), digits):.2f}, "
        f"in {seconds:.1f} s"
    )
    if not args.stock:
        print(convgrad.torch.taken())
    if args.out:
        save(args.out, gan.pictures(64).squeeze(1).numpy())


def save(file: str, pictures: np.ndarray) -> None:
    """A sheet of 8 rows of 8, enlarged."""
    from PIL import Image

    framed = np.pad(pictures, ((0, 0), (1, 1), (1, 1)), constant_values=-1)
    sheet = np.vstack([np.hstack(list(row)) for row in framed.reshape(8, 8, 10, 10)])
    Image.fromarray(np.kron(((sheet + 1) * 127.5).astype(np.uint8), np.ones((6, 6), np.uint8))).save(file)
    print(f"saved {file}")


if __name__ == "__main__":
    main()
