"""Train a DCGAN on handwritten digits with JAX, its convolutions computed by convgrad.

    python examples/dcgan_digits_jax.py --out made.png

`convgrad.jax` has the operations as functions that `jit` and `grad` know; compiled programs call the kernels without
Python in between. The networks are those of examples/dcgan_digits.py, in convgrad's own layouts: pixels before
channels. A generator that learns makes pictures ever closer to digits: what is told is the distance from a generated
picture to the nearest real one.
"""

from __future__ import annotations

import argparse
from functools import partial
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from convgrad.jax import conv_transpose, convolution

NOISE = 32
DOUBLE = dict(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1])  # with kernels of 4x4; a convolution halves

Tree = Any  # of arrays


def begin(key: jax.Array) -> tuple[Tree, Tree]:
    """Weights of generator, XOI, and discriminator, XIO; and of the normalizations after each but the last."""
    shapes = ((2, 2, 256, NOISE), (4, 4, 128, 256), (4, 4, 1, 128)), ((4, 4, 1, 128), (4, 4, 128, 256), (2, 2, 256, 1))
    keys = iter(jax.random.split(key, 6))
    generator, discriminator = (
        [{"weights": 0.02 * jax.random.normal(next(keys), shape)} for shape in network] for network in shapes
    )
    for layer, channels in ((generator[0], 256), (generator[1], 128), (discriminator[1], 256)):
        layer |= {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}
    return generator, discriminator


def normalized(x: jax.Array, layer: Tree) -> jax.Array:
    """Over the batch and all pixels."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * layer["scale"] + layer["shift"]


def generate(generator: Tree, noise: jax.Array) -> jax.Array:
    """(N, 1, 1, NOISE) to pictures (N, 8, 8, 1) between -1 and 1."""
    one, two, three = generator
    x = jax.nn.relu(normalized(conv_transpose(noise, one["weights"]), one))
    x = jax.nn.relu(normalized(conv_transpose(x, two["weights"], **DOUBLE), two))
    return jnp.tanh(conv_transpose(x, three["weights"], **DOUBLE))


def judge(discriminator: Tree, pictures: jax.Array) -> jax.Array:
    """Logits: real or not."""
    one, two, three = discriminator
    x = jax.nn.leaky_relu(convolution(pictures, one["weights"], **DOUBLE), 0.2)
    x = jax.nn.leaky_relu(normalized(convolution(x, two["weights"], **DOUBLE), two), 0.2)
    return convolution(x, three["weights"]).ravel()


def loss_of(logits: jax.Array, truth: float) -> jax.Array:
    """How wrong the discriminator is about pictures that are all real, or all made."""
    return jnp.mean(jax.nn.softplus(logits) - truth * logits)


def adam(values: Tree, gradients: Tree, state: Tree, number: jax.Array) -> tuple[Tree, Tree]:
    """Kingma & Ba, arXiv:1412.6980, with the numbers of DCGAN."""
    first = jax.tree.map(lambda m, g: 0.5 * m + 0.5 * g, state[0], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state[1], gradients)
    one, two = 1 - 0.5**number, 1 - 0.999**number
    moved = jax.tree.map(
        lambda value, m, v: value - 2e-4 * (m / one) / (jnp.sqrt(v / two) + 1e-8), values, first, second
    )
    return moved, (first, second)


@partial(jax.jit, donate_argnums=0)
def step(state: Tree, digits: jax.Array, key: jax.Array, number: jax.Array) -> tuple[Tree, tuple[jax.Array, jax.Array]]:
    """One step of each network; the losses of discriminator and generator before it."""
    generator, discriminator, of_generator, of_discriminator = state
    noise = jax.random.normal(key, (len(digits), 1, 1, NOISE))

    def error(discriminator: Tree) -> jax.Array:
        made = generate(generator, noise)
        return loss_of(judge(discriminator, digits), 0.9) + loss_of(judge(discriminator, made), 0.0)

    found, gradients = jax.value_and_grad(error)(discriminator)
    discriminator, of_discriminator = adam(discriminator, gradients, of_discriminator, number)

    def deceit(generator: Tree) -> jax.Array:
        return loss_of(judge(discriminator, generate(generator, noise)), 1.0)

    deceived, gradients = jax.value_and_grad(deceit)(generator)
    generator, of_generator = adam(generator, gradients, of_generator, number)
    return (generator, discriminator, of_generator, of_discriminator), (found, deceived)


def distance(made: np.ndarray, digits: np.ndarray) -> float:
    """Mean distance of a generated picture to the nearest digit; that of a real digit to the nearest other is 2.1."""
    made, digits = made.reshape(len(made), -1), digits.reshape(len(digits), -1)
    return float(np.mean([np.linalg.norm(digits - one, axis=1).min() for one in made]))


def main() -> None:
    """Train, and say how pictures come closer to digits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", metavar="FILE", help="save generated digits as a picture")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    digits = (load_digits().images[..., None] / 8 - 1).astype(np.float32)
    networks = begin(jax.random.key(0))
    state = (*networks, *(tuple(jax.tree.map(jnp.zeros_like, network) for _ in "12") for network in networks))
    fixed = jax.random.normal(jax.random.key(7), (256, 1, 1, NOISE))

    def pictures() -> np.ndarray:
        return np.asarray(jax.jit(generate)(state[0], fixed))

    print(f"distance to the nearest digit before: {distance(pictures(), digits):.2f}")
    start = perf_counter()
    for number in range(1, args.steps + 1):
        batch = digits[rng.integers(len(digits), size=args.batch)]
        state, losses = step(state, batch, jax.random.key(number), jnp.float32(number))
        if number == 1 or number % max(1, args.steps // 10) == 0:
            print(f"step {number:5}  losses of discriminator {losses[0]:.3f}, of generator {losses[1]:.3f}")
    jax.block_until_ready(state)
    seconds = perf_counter() - start
    print(
        f"distance to the nearest digit after {args.steps} steps: {distance(pictures(), digits):.2f}, "
        f"in {seconds:.1f} s"
    )
    calls = step.lower(state, batch, jax.random.key(0), jnp.float32(1)).as_text().count("@convgrad")
    print(f"the compiled step calls kernels of convgrad {calls} times")
    if args.out:
        save(args.out, pictures()[:64, ..., 0])


def save(file: str, pictures: np.ndarray) -> None:
    """A sheet of 8 rows of 8, enlarged."""
    from PIL import Image

    framed = np.pad(pictures, ((0, 0), (1, 1), (1, 1)), constant_values=-1)
    sheet = np.vstack([np.hstack(list(row)) for row in framed.reshape(8, 8, 10, 10)])
    Image.fromarray(np.kron(((sheet + 1) * 127.5).astype(np.uint8), np.ones((6, 6), np.uint8))).save(file)
    print(f"saved {file}")


if __name__ == "__main__":
    main()
