"""Train a 3-D U-Net whose volumes are split among processes, for volumes that fit no single machine.

    torchrun --standalone --nproc-per-node 2 examples/unet3d_sharded.py
    python examples/unet3d_sharded.py                   one process, the same losses

Each process holds a slab of every tensor and computes its slab of every layer. Where kernels reach across the border,
`convgrad.torch.distributed` fetches a halo from the neighbour, and sends its gradient back; the sums over all
processes that weights gradients need are part of backward. The model is plain PyTorch, and so is the loop.

The volumes are little films, (time, height, width), of a camera that pans over a photograph that comes with
scikit-learn; the network learns to take out noise.
"""

from __future__ import annotations

import argparse
import os
from time import perf_counter

import torch
import torch.distributed as dist
from sklearn.datasets import load_sample_image
from torch import Tensor, nn
from torch.nn import functional as F

import convgrad.torch
from convgrad.torch.distributed import SpatialParallel, split

TIME = 2  # the axis that is split
NOISE = 0.2
FRAMES, EXTENT = 16, 32


class UNet3d(nn.Module):
    """(N, 1, D, H, W) to the same, extents divisible by 4. Çiçek et al., arXiv:1606.06650, made small."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = self.pair(1, width // 2, width), self.pair(width, width, 2 * width)
        self.third = self.pair(2 * width, 2 * width, 4 * width)
        self.up2 = nn.ConvTranspose3d(4 * width, 4 * width, 2, 2)
        self.up1 = nn.ConvTranspose3d(2 * width, 2 * width, 2, 2)
        self.join2 = self.pair(6 * width, 2 * width, 2 * width)
        self.join1 = nn.Conv3d(3 * width, width, 3, padding=1)
        self.head = nn.Conv3d(width + 1, 1, 3, padding=1)

    @staticmethod
    def pair(before: int, middle: int, after: int) -> nn.Sequential:
        """Two convolutions that keep the extents."""
        return nn.Sequential(
            *(nn.Conv3d(before, middle, 3, padding=1), nn.GroupNorm(4, middle), nn.ReLU(True)),
            *(nn.Conv3d(middle, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(True)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The noise of volumes."""
        one = self.first(x)
        two = self.second(F.max_pool3d(one, 2))
        three = self.third(F.max_pool3d(two, 2))
        two = self.join2(torch.cat([two, self.up2(three)], 1))
        made = F.relu(self.join1(torch.cat([one, self.up1(two)], 1)))
        return self.head(torch.cat([x, made], 1))


def film(photograph: Tensor, generator: torch.Generator) -> Tensor:
    """A camera that pans, one pixel for each frame: (1, 1, FRAMES, EXTENT, EXTENT)."""
    reach = EXTENT + FRAMES
    top, left = (int(torch.randint(size - reach, (), generator=generator)) for size in photograph.shape)
    frames = [photograph[top + t : top + t + EXTENT, left + t : left + t + EXTENT] for t in range(FRAMES)]
    return torch.stack(frames)[None, None]


def main() -> None:
    """Train, and say what each process holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", metavar="FILE", help="save the weights; any process or none may load them")
    args = parser.parse_args()

    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)  # where torchrun did not start this
    dist.init_process_group("gloo")
    convgrad.torch.enable()
    torch.manual_seed(0)
    model = UNet3d()
    parallel = SpatialParallel(model, TIME)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    photograph = torch.tensor(load_sample_image("china.jpg").mean(-1) / 255, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)  # the same volumes everywhere, of which each process keeps its slab

    start = perf_counter()
    for number in range(1, args.steps + 1):
        clean = film(photograph, generator)
        noise = split(NOISE * torch.randn(clean.shape, generator=generator), TIME)
        noisy = split(clean, TIME) + noise
        loss = F.mse_loss(parallel(noisy), noise) / NOISE**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number == 1:
            held = f"process {dist.get_rank()} holds {list(noisy.local.shape)} of {list(noisy.shape)}"
            print(f"{held}\n", end="", flush=True)  # at once, or another process prints before the line has ended
        if dist.get_rank() == 0 and (number == 1 or number % max(1, args.steps // 10) == 0):
            print(f"step {number:5}  part of the noise that is left {loss.item():.3f}\n", end="", flush=True)
    if dist.get_rank() == 0:
        print(f"{args.steps} steps on {dist.get_world_size()} processes in {perf_counter() - start:.1f} s")
        if args.out:
            torch.save(model.state_dict(), args.out)
            print(f"saved {args.out}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
