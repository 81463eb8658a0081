"""Every example runs, a few steps of it, and prints what it learned; its pictures can be opened."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 3
NEEDS = {  # besides convgrad and NumPy
    "numpy_training_loop.py": ("sklearn", "PIL"),
    "dcgan_digits.py": ("torch", "sklearn", "PIL"),
    "unet_denoiser.py": ("torch", "skimage", "PIL"),
    "vocoder_decoder.py": ("torch", "matplotlib"),
    "unet3d_sharded.py": ("torch", "sklearn", "PIL"),
    "dcgan_digits_jax.py": ("jax", "sklearn", "PIL"),
}
NUMBER = r"(\d+\.\d+)"


def run(name, *words, launch=()):
    """What an example prints, in `STEPS` steps."""
    missing = [library for library in NEEDS[name] if not importlib.util.find_spec(library)]
    if missing:
        pytest.skip(f"{name} needs {', '.join(missing)}")
    command = [sys.executable, *launch, str(EXAMPLES / name), "--steps", str(STEPS), *map(str, words)]
    quiet = os.environ | {"OMP_NUM_THREADS": "1"}  # nothing here is worth a second thread
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern, text):
    """What the groups of a pattern find, line by line."""
    return [tuple(map(float, found.groups())) for found in re.finditer(f"^{pattern}$", text, re.M)]


def losses(name, text, pattern):
    """One for each step, numbered."""
    found = numbers(rf"step +(\d+)  {pattern}", text)
    assert [int(number) for number, *_ in found] == list(range(1, STEPS + 1)), f"{name} printed:\n{text}"
    return [loss for _, *loss in found]


def assert_picture(file, *, width, height):
    from PIL import Image

    with Image.open(file) as picture:
        assert picture.size == (width, height)
        low, high = picture.convert("L").getextrema()
        assert low < high  # something is to be seen


def test_numpy_training_loop(tmp_path):
    text = run("numpy_training_loop.py", "--out", tmp_path / "made.png")
    first, *_, last = losses("numpy_training_loop.py", text, f"loss {NUMBER}")
    assert last < first
    ((before, after, steps, _),) = numbers(
        rf"error on digits kept aside: {NUMBER} before, {NUMBER} after (\d+) steps in {NUMBER} s", text
    )
    assert after < before
    assert steps == STEPS
    assert_picture(tmp_path / "made.png", width=16 * 10 * 6, height=2 * 10 * 6)


def test_the_gradients_of_the_numpy_loop_are_differences_of_its_loss(rng):
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("numpy_training_loop", EXAMPLES / "numpy_training_loop.py")
    loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    layers = [loop.Convolution(rng, 1, 4), loop.Convolution(rng, 4, 4)]
    layers += [loop.Transposed(rng, 4, 4), loop.Transposed(rng, 4, 1)]
    digits = rng.random((16, 8, 8, 1), np.float32)
    still = loop.Adam(layers, rate=np.float32(0))
    loop.step(layers, still, digits)
    gradients = [layer.gradients[0].copy() for layer in layers]
    for layer, gradient in zip(layers, gradients, strict=True):
        largest = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        middle, losses = layer.weights[largest], []
        for moved in (middle - 1e-2, middle + 1e-2):
            layer.weights[largest] = moved
            losses.append(loop.step(layers, still, digits))
        layer.weights[largest] = middle
        # 1e-2: an f32 mean of squares near 0.4 is rounded by 3e-8, which a step of 1e-2 makes 3e-6; kinks of ReLU more
        assert (losses[1] - losses[0]) / 2e-2 == pytest.approx(gradient[largest], rel=0.1)


def test_dcgan_digits(tmp_path):
    stock, text = run("dcgan_digits.py", "--stock"), run("dcgan_digits.py", "--out", tmp_path / "made.png")
    pattern = f"losses of discriminator {NUMBER}, of generator {NUMBER}"
    for one, other in zip(*(losses("dcgan_digits.py", each, pattern) for each in (stock, text)), strict=True):
        assert one == pytest.approx(other, abs=0.003)  # three digits are printed
    assert " x Conv" not in stock
    ((before,),) = numbers(f"distance to the nearest digit before: {NUMBER}", text)
    ((steps, after, _),) = numbers(rf"distance to the nearest digit after (\d+) steps: {NUMBER}, in {NUMBER} s", text)
    assert steps == STEPS
    assert after < before
    # three layers each: a step makes pictures once and judges three times; noise and pictures need no gradient
    taken = {
        "ConvTranspose": 3 * STEPS + 2 * 3,  # and pictures are made before and after
        "ConvTransposeBackwardData": 2 * STEPS,
        "ConvTransposeBackwardWeights": 3 * STEPS,
        "Convolution": 9 * STEPS,
        "ConvolutionBackwardData": 7 * STEPS,
        "ConvolutionBackwardWeights": 9 * STEPS,
    }
    assert {name: int(count) for count, name in re.findall(r"^(\d+) x (\w+)$", text, re.M)} == taken
    assert "left to PyTorch" not in text
    assert_picture(tmp_path / "made.png", width=8 * 10 * 6, height=8 * 10 * 6)


def test_unet_denoiser(tmp_path):
    text = run("unet_denoiser.py", "--out", tmp_path / "made.png")
    (first,), *_, (last,) = losses("unet_denoiser.py", text, f"part of the noise that is left {NUMBER}")
    assert last < first
    ((noisy, denoised, steps, _),) = numbers(
        rf"camera: {NUMBER} dB with noise, {NUMBER} dB without, after (\d+) steps in {NUMBER} s", text
    )
    assert noisy == pytest.approx(20.0, abs=0.05)  # by the definition of the noise
    assert denoised > 15
    assert steps == STEPS
    assert re.search(rf"^{10 * STEPS} x ConvolutionBackwardData$", text, re.M)
    assert_picture(tmp_path / "made.png", width=3 * 512, height=512)


def test_vocoder_decoder(tmp_path):
    text = run("vocoder_decoder.py", "--out", tmp_path / "made.png")
    losses("vocoder_decoder.py", text, f"loss {NUMBER}")
    ((before, after, steps, _),) = numbers(
        rf"error on what was kept aside: {NUMBER} before, {NUMBER} after (\d+) steps in {NUMBER} s", text
    )
    assert after < before
    assert steps == STEPS
    assert_picture(tmp_path / "made.png", width=1000, height=400)


def test_unet3d_sharded(tmp_path):
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = run("unet3d_sharded.py", "--out", tmp_path / "weights.pt", launch=launch)
    one = run("unet3d_sharded.py")
    for rank in (0, 1):
        assert f"process {rank} holds [1, 1, 8, 32, 32] of [1, 1, 16, 32, 32]" in two
    assert "process 0 holds [1, 1, 16, 32, 32] of [1, 1, 16, 32, 32]" in one
    pattern = f"part of the noise that is left {NUMBER}"
    for (split,), (whole,) in zip(*(losses("unet3d_sharded.py", text, pattern) for text in (two, one)), strict=True):
        assert split == pytest.approx(whole, rel=1e-3, abs=1e-3)  # three digits are printed
    for processes, text in ((2, two), (1, one)):
        assert len(numbers(rf"{STEPS} steps on {processes} processes in {NUMBER} s", text)) == 1

    import torch

    weights = torch.load(tmp_path / "weights.pt")
    assert weights["head.weight"].shape == (1, 17, 3, 3, 3)


def test_dcgan_digits_jax(tmp_path):
    text = run("dcgan_digits_jax.py", "--out", tmp_path / "made.png")
    losses("dcgan_digits_jax.py", text, f"losses of discriminator {NUMBER}, of generator {NUMBER}")
    ((before,),) = numbers(f"distance to the nearest digit before: {NUMBER}", text)
    ((steps, after, _),) = numbers(rf"distance to the nearest digit after (\d+) steps: {NUMBER}, in {NUMBER} s", text)
    assert steps == STEPS
    assert after < before
    ((calls,),) = numbers(r"the compiled step calls kernels of convgrad (\d+) times", text)
    # error: 3 to make, 2 x 3 to judge, and of these 2 x 2 gradients in data and 2 x 3 in weights;
    # deceit: 3 to make and 3 to judge, 3 + 2 gradients in data and 3 in weights
    assert calls == 3 + 6 + 4 + 6 + 3 + 3 + 5 + 3
    assert_picture(tmp_path / "made.png", width=8 * 10 * 6, height=8 * 10 * 6)


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} - {"write_examples.py"} == NEEDS.keys()
