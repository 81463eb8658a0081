"""Train a decoder from spectra to a signal, as vocoders have it, with convgrad's layers.

    python examples/vocoder_decoder.py --out signal.png

The signal is a recording that comes with matplotlib: 12000 samples of the potential of a cell membrane, two for each
millisecond. From its spectra, one for every 16 samples, with the phase thrown away, the decoder makes the samples
again: 1-D transposed convolutions make it longer, and residual branches with dilated kernels of several sizes fill it
in (the generator of HiFi-GAN, Kong et al., arXiv:2010.05646, made small). One second of the signal is kept aside.

Here the layers are `convgrad.torch.nn`: the same arguments, the same state_dict as `torch.nn`, and nothing is switched
on for the whole process.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from torch import Tensor, nn
from torch.nn import functional as F

from convgrad.torch.nn import Conv1d, ConvTranspose1d

HOP, WINDOW = 16, 64  # samples
SEGMENT = 1024  # samples that are trained with at a time
KEPT = slice(6144, 8192)  # of the 12000 samples


class Branch(nn.Module):
    """Dilated kernels of one size, each beside a shortcut."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Conv1d(channels, channels, kernel, padding=(kernel - 1) * each // 2, dilation=each) for each in (1, 3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        for layer in self.layers:
            x = x + layer(F.leaky_relu(x, 0.1))
        return x


class Decoder(nn.Module):
    """Spectra (N, WINDOW // 2 + 1, T) to signals (N, 1, T * HOP)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.begin = Conv1d(WINDOW // 2 + 1, width, 7, padding=3)
        self.up = nn.ModuleList(
            [ConvTranspose1d(width, width // 2, 8, 4, 2), ConvTranspose1d(width // 2, width // 4, 8, 4, 2)]
        )
        self.branches = nn.ModuleList(
            nn.ModuleList(Branch(channels, kernel) for kernel in (3, 7, 11)) for channels in (width // 2, width // 4)
        )
        self.end = Conv1d(width // 4, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        """Longer by 4, twice."""
        x = self.begin(x)
        for up, branches in zip(self.up, self.branches, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(branch(x) for branch in branches) / len(branches)
        return self.end(F.leaky_relu(x, 0.1))


def spectra(signals: Tensor) -> Tensor:
    """Logarithms of magnitudes, (N, samples) to (N, WINDOW // 2 + 1, samples / HOP)."""
    padded = F.pad(signals, ((WINDOW - HOP) // 2,) * 2, mode="reflect")
    window = torch.hann_window(WINDOW)
    found = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True)
    return (found.abs() + 1e-2).log()


def loss_of(made: Tensor, wanted: Tensor) -> Tensor:
    """Mean difference of samples, and of spectra."""
    return F.l1_loss(made, wanted) + F.l1_loss(spectra(made), spectra(wanted))


def recording() -> Tensor:
    """Of mean 0 and deviation 1."""
    with get_sample_data("membrane.dat") as file:
        samples = torch.from_numpy(np.frombuffer(file.read(), np.float32).copy())
    return (samples - samples.mean()) / samples.std()


def main() -> None:
    """Train, and say how well the decoder does on what it was not trained with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", metavar="FILE", help="plot what was kept aside, and what is made of its spectra")
    args = parser.parse_args()

    torch.manual_seed(0)
    signal = recording()
    kept, trained = signal[None, KEPT], torch.cat([signal[: KEPT.start], signal[KEPT.stop :]])
    decoder = Decoder()
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-3, betas=(0.8, 0.99))

    def error() -> float:
        with torch.no_grad():
            return loss_of(decoder(spectra(kept))[:, 0], kept).item()

    before, start = error(), perf_counter()
    for number in range(1, args.steps + 1):
        begins = torch.randint(len(trained) - SEGMENT, (args.batch,)).tolist()
        batch = torch.stack([trained[begin : begin + SEGMENT] for begin in begins])
        loss = loss_of(decoder(spectra(batch))[:, 0], batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number == 1 or number % max(1, args.steps // 10) == 0:
            print(f"step {number:5}  loss {loss.item():.3f}")
    seconds = perf_counter() - start
    print(
        f"error on what was kept aside: {before:.3f} before, {error():.3f} after {args.steps} steps in {seconds:.1f} s"
    )
    if args.out:
        with torch.no_grad():
            plot(args.out, kept[0], decoder(spectra(kept))[0, 0])


def plot(file: str, signal: Tensor, made: Tensor) -> None:
    """One above the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 1, sharex=True, sharey=True, figsize=(10, 4), layout="constrained")
    for axis, values, title in zip(axes, (signal, made), ("recorded", "made of spectra"), strict=True):
        axis.plot(np.arange(len(values)) / 2, values.numpy(), linewidth=0.8)
        axis.set_title(title)
    axes[1].set_xlabel("ms")
    figure.savefig(file)
    print(f"saved {file}")


if __name__ == "__main__":
    main()
