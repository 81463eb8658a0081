"""What a call costs beyond its kernel: a layer so small that little else is left, by every way there is to it.

    python benchmarks/overhead.py

Ways take turns, and the fastest of many rounds counts; times are of one thread. The layer is a convolution of one image
of 8 channels and 8 x 8 elements with 8 kernels of 3 x 3, and a bias.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter

import torch

import convgrad
import convgrad.torch as ct
from convgrad.torch import kernels

CALLS = 200  # of one way in a row
KERNEL = "the kernel, by its addresses"
TAKEN = "torch.conv2d, taken over"
STOCK = "torch.conv2d of PyTorch itself"
WITH_GRADIENT = ", with a gradient"

Way = Callable[[], torch.Tensor]


def ways(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> dict[str, Way]:
    """Every way to the layer, by name."""
    trained = w.clone().requires_grad_()
    words = ([1, 1], [1, 1], [1, 1], [1, 1], 1)
    op = torch.ops.convgrad.convolution
    layer, frozen = (ct.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
    for each in (layer, frozen):
        each.load_state_dict({"weight": w, "bias": b})
    frozen.requires_grad_(False)
    plain: dict[str, tuple[Way, Way]] = {
        "torch.ops.convgrad.convolution": (lambda: op(x, w, b, *words), lambda: op(x, trained, b, *words)),
        "convgrad.torch.convolution": (
            lambda: ct.convolution(x, w, b, pads_begin=1, pads_end=1),
            lambda: ct.convolution(x, trained, b, pads_begin=1, pads_end=1),
        ),
        "convgrad.torch.nn.Conv2d": (lambda: frozen(x), lambda: layer(x)),
        TAKEN: (lambda: torch.conv2d(x, w, b, 1, 1), lambda: torch.conv2d(x, trained, b, 1, 1)),
    }
    found: dict[str, Way] = {KERNEL: _kernel(x, w, b, words)}
    for name, (without, trains) in plain.items():
        found |= {name: without, name + WITH_GRADIENT: trains}
    return found | {STOCK: plain[TAKEN][0]}


def _kernel(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, words: tuple) -> Way:
    dst = torch.ops.convgrad.convolution(x, w, b, *words)
    known = kernels.CONVOLUTION.known_for(x, w, b, words)
    assert known is not None, "a call has just been made"
    kernel, at = known.kernel, (x.data_ptr(), w.data_ptr(), dst.data_ptr(), b.data_ptr())
    return lambda: (kernel(*at), dst)[1]


def measure(rounds: int) -> dict[str, float]:
    """Microseconds of a call, the fastest of so many rounds."""
    convgrad.set_num_threads(1)
    torch.set_num_threads(1)
    best: dict[str, float] = {}
    known = ways(torch.randn(1, 8, 8, 8), torch.randn(8, 8, 3, 3), torch.randn(8))
    for _ in range(rounds):
        for name, call in known.items():
            with ct.enabled() if TAKEN in name else nullcontext():
                call()
                start = perf_counter()
                for _ in range(CALLS):
                    call()
                seconds = (perf_counter() - start) / CALLS
            best[name] = min(best.get(name, seconds), seconds)
    return {name: seconds * 1e6 for name, seconds in best.items()}


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    found = measure(parser.parse_args().rounds)
    kernel = found[KERNEL]
    print(f"{'us a call':>10} {'above the kernel':>17}")
    for name, each in found.items():
        print(f"{each:10.1f} {each - kernel:17.1f}  {name}")


if __name__ == "__main__":
    main()
