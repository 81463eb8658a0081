"""vmap, several devices, several threads, and what else programs in JAX do with a function."""

import gc
import itertools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import jax_cases as cases

jax, jnp, cj = cases.jax, cases.jnp, cases.cj

MAPPED = [
    "convolution with bias",
    "convolution NCX, groups, bias",
    "convolution of one pixel",
    "backward data NCX, groups",
    "backward weights",
    "transpose NCX, groups, bias",
    "bias gradient",
]


def mapped(name, size, places, rng):
    """Inputs, with an axis of that size at the places that are not None, and the function."""
    op, attributes, shapes, told = cases.CASES[name]
    inputs = [
        cases.integers(rng, shape if place is None else np.insert(shape, place, size))
        for shape, place in zip(shapes, places, strict=True)
    ]
    return inputs, lambda *given: cases.call(op, attributes, given, told)


@pytest.mark.parametrize("name", MAPPED)
def test_vmap_over_any_of_the_inputs(name, rng):
    count = len(cases.CASES[name][2])
    for places in itertools.product((None, 0, 1), repeat=count):
        if set(places) == {None}:
            continue
        inputs, function = mapped(name, 3, places, rng)
        one_by_one = [
            function(*(i if place is None else i.take(n, place) for i, place in zip(inputs, places, strict=True)))
            for n in range(3)
        ]
        result = jax.vmap(function, in_axes=places)(*inputs)
        np.testing.assert_array_equal(result, jnp.stack(one_by_one), err_msg=str(places))


def test_vmap_within_vmap(rng):
    """The outer axis is that of the images, the inner one that of the weights."""
    x, w = cases.integers(rng, (2, 1, 6, 2)), cases.integers(rng, (3, 3, 2, 4))
    result = jax.vmap(lambda x: jax.vmap(lambda w: cj.convolution(x, w))(w))(x)
    for i, j in itertools.product(range(2), range(3)):
        np.testing.assert_array_equal(result[i, j], cj.convolution(x[i], w[j]))


@pytest.mark.parametrize("size", [0, 1])
def test_vmap_over_few(size, rng):
    inputs, function = mapped("convolution with bias", size, (0, None, 0), rng)
    result = jax.vmap(function, in_axes=(0, None, 0))(*inputs)
    assert result.shape == (size, 2, 3, 6, 6)
    if size:
        np.testing.assert_array_equal(result[0], function(inputs[0][0], inputs[1], inputs[2][0]))


def test_gradients_of_each_example(rng):
    """vmap of grad: one kernel computes the weights gradients of all examples."""
    x, w = cases.integers(rng, (4, 1, 6, 2)), cases.integers(rng, (3, 2, 3))

    def gradient(x):
        return jax.grad(lambda w: (cj.convolution(x, w, pads_begin=[1]) ** 2).sum())(w)

    program = jax.jit(jax.vmap(gradient))
    np.testing.assert_array_equal(program(x), jnp.stack([gradient(one) for one in x]))
    assert program.lower(x).as_text().count("custom_call @convgrad_w_") == 1


@pytest.mark.parametrize("name", ["convolution with bias", "transpose NCX, groups, bias"])
def test_all_gradients_of_each_example(name, rng):
    inputs, function = mapped(name, 3, (0, None, None), rng)

    def gradients(*given):
        return jax.grad(lambda *a: (function(*a) ** 2).sum(), (0, 1, 2))(*given)

    together = jax.vmap(gradients, in_axes=(0, None, None))(*inputs)
    for n in range(3):
        for one, other in zip(together, gradients(inputs[0][n], *inputs[1:]), strict=True):
            np.testing.assert_array_equal(one[n], other)


def test_forward_jacobian_is_that_of_reverse(rng):
    x, w = cases.integers(rng, (1, 5, 2)), cases.integers(rng, (3, 2, 2))
    forward, reverse = (jac(lambda w: cj.convolution(x, w))(w) for jac in (jax.jacfwd, jax.jacrev))
    assert np.any(forward)
    np.testing.assert_array_equal(forward, reverse)


def run(program, **environment):
    """Another interpreter, with the devices of its own."""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | environment, timeout=200
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


DEVICES = """
import jax, jax.numpy as jnp, numpy as np
import convgrad.jax as cj
from jax.sharding import NamedSharding, PartitionSpec as P

rng = np.random.default_rng(3)
x, w, b = (jnp.asarray(rng.integers(-3, 4, s), jnp.float32) for s in ((8, 9, 8, 4), (3, 3, 4, 6), (6,)))

def loss(x, w, b):
    return (cj.convolution(x, w, b, strides=[2, 1], pads_begin=[1, 1], pads_end=[1, 1]) ** 2).sum()

def same(these, those):
    for one, two in zip(jax.tree.leaves(these), jax.tree.leaves(those), strict=True):
        np.testing.assert_array_equal(one, two)

wanted = jax.value_and_grad(loss, (0, 1, 2))(x, w, b)
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

def sharded(*arrays):
    return jax.lax.psum(loss(*arrays), "d")

for checked in (True, False):
    parts = jax.shard_map(sharded, mesh=mesh, in_specs=(P("d"), P(), P()), out_specs=P(), check_vma=checked)
    same(jax.jit(jax.value_and_grad(parts, (0, 1, 2)))(x, w, b), wanted)

    def penalty(loss):
        return jax.jit(jax.grad(lambda *a: (jax.grad(loss, (1, 2))(*a)[1] ** 2).sum(), (0, 1, 2)))

    same(penalty(parts)(x, w, b), penalty(loss)(x, w, b))
    print("shard_map", checked)

same(jax.pmap(lambda x: loss(x, w, b))(x.reshape(4, 2, *x.shape[1:])).sum(), wanted[0])
print("pmap")

spread = jax.device_put(x, NamedSharding(mesh, P("d")))
same(jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(spread, w, b), wanted)
print("arrays that lie on several devices")
"""


def test_several_devices():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    printed = run(DEVICES, **flags).splitlines()
    assert printed == ["shard_map True", "shard_map False", "pmap", "arrays that lie on several devices"]


def test_many_threads_run_many_programs(rng):
    """Each with its own sizes, so that workspace is handed on between kernels that need different amounts."""
    jobs = []
    for channels, extent in ((1, 5), (8, 33), (32, 40), (64, 9)):
        x, w = cases.integers(rng, (2, extent, extent, channels)), cases.integers(rng, (3, 3, channels, 16))
        program = jax.jit(jax.grad(lambda w, x: (cj.convolution(x, w) ** 2).sum()))
        jobs.append((program, w, x, np.asarray(program(w, x))))
    wrong = []

    def work(first):
        for step in range(40):
            program, w, x, wanted = jobs[(first + step) % len(jobs)]
            if not np.array_equal(program(w, x), wanted):
                wrong.append((first, step))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_independent_calls_within_one_program(rng):
    """XLA may run them side by side."""
    x, w = cases.integers(rng, (8, 2, 20, 20, 8)), cases.integers(rng, (8, 3, 3, 8, 8))
    program = jax.jit(lambda x, w: [cj.convolution(x[n], w[n]) for n in range(8)])
    wanted = [np.asarray(cj.convolution(x[n], w[n])) for n in range(8)]
    for _ in range(20):
        for one, other in zip(program(x, w), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_donated_arrays(rng):
    """The result has the shape of src, whose memory XLA may use again, but never while the kernel reads it."""
    x, w = cases.integers(rng, (2, 30, 8)), cases.integers(rng, (3, 8, 8))
    layer = lambda x: cj.convolution(x, w, auto_pad="same_upper")  # noqa: E731
    wanted = layer(layer(layer(x)))
    donating = jax.jit(lambda x: layer(layer(layer(x))), donate_argnums=0)
    np.testing.assert_array_equal(donating(x), wanted)
    assert x.is_deleted()


def test_programs_outlive_what_made_them(rng):
    """A compiled program keeps no Python object alive that its kernels need."""
    from convgrad.runtime import kernel

    x, w = cases.integers(rng, (1, 7, 5)), cases.integers(rng, (3, 5, 6))
    wanted = np.asarray(cj.convolution(x, w))
    compiled = jax.jit(lambda x, w: cj.convolution(x, w)).lower(x, w).compile()
    kernel.forget()
    jax.clear_caches()
    gc.collect()
    for _ in range(50):
        np.testing.assert_array_equal(compiled(x, w), wanted)


def test_programs_run_with_jit_switched_off(rng):
    x, w, bias = cases.integers(rng, (2, 7, 5)), cases.integers(rng, (3, 5, 6)), cases.integers(rng, (6,))

    def loss(*given):
        return (cj.convolution(*given) ** 2).sum()

    wanted = jax.grad(loss, (0, 1, 2))(x, w, bias)
    with jax.disable_jit():
        for one, other in zip(jax.grad(loss, (0, 1, 2))(x, w, bias), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(jax.vmap(cj.convolution, (None, 0))(x, w[None])[0], cj.convolution(x, w))
