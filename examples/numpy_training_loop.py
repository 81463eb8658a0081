"""Train an autoencoder of handwritten digits with NumPy and convgrad alone.

    python examples/numpy_training_loop.py --out digits.png

Two convolutions squeeze 8x8 pixels into 2x2x8 numbers, two transposed convolutions make a digit of them again. All the
mathematics between the arrays is here: forward and backward of every layer are the operations of convgrad, in its own
layouts (pixels before channels), and what is left is a few lines. The digits come with scikit-learn; a tenth of them is
kept aside.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
from sklearn.datasets import load_digits

import convgrad

HALVE = dict(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1])  # with kernels of 4x4, halves or doubles an extent


class Convolution:
    """Halves the extents. Weights are XIO, as convgrad has them by default."""

    def __init__(self, rng: np.random.Generator, before: int, after: int) -> None:
        self.weights = rng.normal(0, (2 / (16 * before)) ** 0.5, (4, 4, before, after)).astype(np.float32)
        self.bias = np.zeros(after, np.float32)

    def forward(self, src: np.ndarray) -> np.ndarray:
        """(N, H, W, before) to (N, H / 2, W / 2, after)."""
        self.src = src
        return convgrad.convolution(src, self.weights, self.bias, **HALVE)

    def backward(self, diff_dst: np.ndarray) -> np.ndarray:
        """The gradient in src; those of the weights and the bias stay here."""
        self.gradients = (
            convgrad.convolution_backward_weights(self.src, diff_dst, self.weights.shape, **HALVE),
            convgrad.bias_add_backward(diff_dst),
        )
        return convgrad.convolution_backward_data(diff_dst, self.weights, self.src.shape, **HALVE)


class Transposed:
    """Doubles the extents. Weights are XOI, as convgrad has them by default."""

    def __init__(self, rng: np.random.Generator, before: int, after: int) -> None:
        self.weights = rng.normal(0, (2 / (4 * before)) ** 0.5, (4, 4, after, before)).astype(np.float32)
        self.bias = np.zeros(after, np.float32)

    def forward(self, src: np.ndarray) -> np.ndarray:
        """(N, H, W, before) to (N, 2 * H, 2 * W, after)."""
        self.src = src
        return convgrad.conv_transpose(src, self.weights, self.bias, **HALVE)

    def backward(self, diff_dst: np.ndarray) -> np.ndarray:
        """The gradient in src; those of the weights and the bias stay here."""
        self.gradients = (
            convgrad.conv_transpose_backward_weights(self.src, diff_dst, self.weights.shape, **HALVE),
            convgrad.bias_add_backward(diff_dst),
        )
        return convgrad.conv_transpose_backward_data(diff_dst, self.weights, **HALVE)


class Adam:
    """Kingma & Ba, arXiv:1412.6980."""

    def __init__(self, layers: list, rate: float) -> None:
        self.layers, self.rate, self.steps = layers, rate, 0
        self.moments = [[[np.zeros_like(p), np.zeros_like(p)] for p in (layer.weights, layer.bias)] for layer in layers]

    def step(self) -> None:
        """Move weights and biases, in place."""
        self.steps += 1
        for layer, moments in zip(self.layers, self.moments, strict=True):
            for value, gradient, (first, second) in zip(
                (layer.weights, layer.bias), layer.gradients, moments, strict=True
            ):
                first += 0.1 * (gradient - first)
                second += 0.001 * (gradient * gradient - second)
                mean, square = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
                value -= self.rate * mean / (np.sqrt(square) + 1e-8)


def forward(layers: list, digits: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """What the autoencoder makes of digits, and where each ReLU let something through."""
    passed, values = [], digits
    for layer in layers:
        values = layer.forward(values)
        if layer is not layers[-1]:
            passed.append(values > 0)
            values = values * passed[-1]
    return values, passed


def step(layers: list, optimizer: Adam, digits: np.ndarray) -> float:
    """One step; the loss before it."""
    made, passed = forward(layers, digits)
    difference = made - digits
    gradient = difference * np.float32(2 / difference.size)
    for layer in reversed(layers):
        if layer is not layers[-1]:
            gradient = gradient * passed.pop()
        gradient = layer.backward(gradient)
    optimizer.step()
    return float(np.mean(difference**2))


def main() -> None:
    """Train, and say how the error on digits that were not trained with falls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", metavar="FILE", help="save digits and what the network makes of them as a picture")
    args = parser.parse_args()

    rng = np.random.default_rng(1)
    digits = (load_digits().images[..., None] / 16).astype(np.float32)
    rng.shuffle(digits)
    kept, digits = digits[:180], digits[180:]
    layers = [Convolution(rng, 1, 32), Convolution(rng, 32, 8), Transposed(rng, 8, 32), Transposed(rng, 32, 1)]
    optimizer = Adam(layers, rate=2e-3)

    before = float(np.mean((forward(layers, kept)[0] - kept) ** 2))
    start = perf_counter()
    for number in range(1, args.steps + 1):
        loss = step(layers, optimizer, digits[rng.choice(len(digits), args.batch, replace=False)])
        if number == 1 or number % max(1, args.steps // 10) == 0:
            print(f"step {number:5}  loss {loss:.4f}")
    seconds = perf_counter() - start
    made = forward(layers, kept)[0]
    after = float(np.mean((made - kept) ** 2))
    print(f"error on digits kept aside: {before:.4f} before, {after:.4f} after {args.steps} steps in {seconds:.1f} s")
    if args.out:
        save(args.out, kept[:16, ..., 0], made[:16, ..., 0])


def save(file: str, *rows: np.ndarray) -> None:
    """Rows of pictures between 0 and 1, enlarged."""
    from PIL import Image

    sheet = np.vstack([np.hstack(list(np.pad(row, ((0, 0), (1, 1), (1, 1))))) for row in rows])
    pixels = (np.clip(sheet, 0, 1) * 255).astype(np.uint8)
    Image.fromarray(np.kron(pixels, np.ones((6, 6), np.uint8))).save(file)
    print(f"saved {file}")


if __name__ == "__main__":
    main()
