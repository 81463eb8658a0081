"""Train a U-Net that takes the noise out of photographs, its convolutions computed by convgrad.

    python examples/unet_denoiser.py --out denoised.png
    python examples/unet_denoiser.py --stock            the same without convgrad, to compare

The model is plain PyTorch; `convgrad.torch.enabled()` is the block in which it trains. It sees crops of eight pictures
that come with scikit-image, with noise added, and learns to tell the noise. What is told is how well it does on a
ninth, the cameraman, as the signal-to-noise ratio of the whole picture.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from time import perf_counter

import numpy as np
import skimage.color
import skimage.data
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import convgrad.torch

PICTURES = ("astronaut", "coffee", "chelsea", "rocket", "moon", "brick", "gravel", "coins")
KEPT = "camera"
NOISE = 0.1  # standard deviation; black is 0 and white is 1
CROP = 64


class UNet(nn.Module):
    """(N, 1, H, W) to (N, 1, H, W), H and W divisible by 4. Ronneberger et al., arXiv:1505.04597, made small."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first, self.second, self.third = self.pair(1, width), self.pair(width, 2 * width), self.pair(2 * width, 96)
        self.up2, self.up1 = nn.ConvTranspose2d(96, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join2, self.join1 = self.pair(4 * width, 2 * width), self.pair(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def pair(before: int, after: int) -> nn.Sequential:
        """Two convolutions that keep the extents."""
        return nn.Sequential(
            *(nn.Conv2d(before, after, 3, padding=1), nn.ReLU(True)),
            *(nn.Conv2d(after, after, 3, padding=1), nn.ReLU(True)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The noise of pictures."""
        one = self.first(x)
        two = self.second(F.max_pool2d(one, 2))
        three = self.third(F.max_pool2d(two, 2))
        two = self.join2(torch.cat([two, self.up2(three)], 1))
        return self.head(self.join1(torch.cat([one, self.up1(two)], 1)))


def picture(name: str) -> Tensor:
    """Grey values between 0 and 1, (H, W)."""
    pixels = getattr(skimage.data, name)()
    grey = skimage.color.rgb2gray(pixels) if pixels.ndim == 3 else pixels / 255
    return torch.tensor(grey, dtype=torch.float32)


def crops(pictures: list[Tensor], count: int) -> Tensor:
    """Squares of random pictures, (count, 1, CROP, CROP)."""
    made = torch.empty(count, 1, CROP, CROP)
    for crop in made:
        whole = pictures[int(torch.randint(len(pictures), ()))]
        top, left = (int(torch.randint(extent - CROP + 1, ())) for extent in whole.shape)
        crop[0] = whole[top : top + CROP, left : left + CROP]
    return made


def decibels(one: Tensor, other: Tensor) -> float:
    """Peak signal-to-noise ratio."""
    return -10 * torch.log10(F.mse_loss(one, other)).item()


def main() -> None:
    """Train, and say how well noise is taken out of a picture that was not trained with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--stock", action="store_true", help="leave convolutions to PyTorch")
    parser.add_argument("--out", metavar="FILE", help="save the picture with noise, without it, and as it is")
    args = parser.parse_args()

    torch.manual_seed(0)
    pictures, clean = [picture(name) for name in PICTURES], picture(KEPT)[None, None]
    noisy = clean + NOISE * torch.randn_like(clean)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with nullcontext() if args.stock else convgrad.torch.enabled():
        start = perf_counter()
        for number in range(1, args.steps + 1):
            noise = NOISE * torch.randn(args.batch, 1, CROP, CROP)
            loss = F.mse_loss(model(crops(pictures, args.batch) + noise), noise) / NOISE**2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number == 1 or number % max(1, args.steps // 10) == 0:
                print(f"step {number:5}  part of the noise that is left {loss.item():.3f}")
        seconds = perf_counter() - start
        with torch.no_grad():
            denoised = noisy - model(noisy)
    print(
        f"{KEPT}: {decibels(noisy, clean):.2f} dB with noise, {decibels(denoised, clean):.2f} dB without, "
        f"after {args.steps} steps in {seconds:.1f} s"
    )
    if not args.stock:
        print(convgrad.torch.taken())
    if args.out:
        from PIL import Image

        sheet = torch.cat([noisy, denoised, clean], 3)[0, 0].clamp(0, 1)
        Image.fromarray((sheet * 255).numpy().astype(np.uint8)).save(args.out)
        print(f"saved {args.out}")


if __name__ == "__main__":
    main()
