"""PyTorch's convolutions while convgrad computes them: results, strides, all that leads to them, and the way back."""

import contextlib
import itertools
import re
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad  # noqa: E402
import convgrad.torch as ct  # noqa: E402
from convgrad.torch import takeover  # noqa: E402

F = torch.nn.functional
aten = torch.ops.aten
OPERATORS = ("convolution", "_convolution", "convolution_backward")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    assert not ct.is_enabled()


def integers(*shape, dtype=torch.float32, seed=1):
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def in_format(tensor, channels_last):
    """The same numbers with channels innermost in memory, or outermost."""
    if not channels_last:
        return tensor.contiguous()
    if tensor.dim() == 3:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    return tensor.contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)


def tables():
    return [
        torch._C._dispatch_dump_table(f"aten::{name}") + torch._C._dispatch_dump(f"aten::{name}") for name in OPERATORS
    ]


def test_disable_restores_the_dispatcher_exactly():
    before = tables()
    for _ in range(3):
        ct.enable()
        during = tables()
        ct.enable()
        assert tables() == during != before
        ct.disable()
        ct.disable()
        assert tables() == before


def test_the_context_leaves_things_as_they_were():
    with contextlib.suppress(KeyError), ct.enabled():
        assert ct.is_enabled()
        with ct.enabled():
            pass
        assert ct.is_enabled()
        raise KeyError
    assert not ct.is_enabled()


# PyTorch 2.6 shows the results of one spatial axis in another order than it computes them in
FAKES_OF_ROWS_DIFFER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)

GEOMETRIES = {  # in, out, groups, kernel, stride, dilation, padding, extent
    "plain": (4, 6, 1, 3, 1, 1, 1, 8),
    "strided groups": (4, 6, 2, 3, 2, 1, 1, 7),
    "dilated depthwise": (4, 4, 4, 3, 1, 2, 2, 8),
    "one element": (1, 1, 1, 1, 1, 1, 0, 1),
    "one pixel": (8, 8, 1, 1, 1, 1, 0, 1),
    "leftover": (3, 8, 1, 3, 2, 1, 0, 8),
}


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "transposed"])
@pytest.mark.parametrize(
    ("rank", "dtype"),
    [(1, torch.float32), (2, torch.float32), (3, torch.float32), (2, torch.float64), (2, torch.bfloat16)],
)
def test_results_and_strides_are_those_of_pytorch_real_and_fake(rank, dtype, transposed, geometry):
    channels, out, groups, kernel, stride, dilation, padding, extent = geometry
    weights_shape = (channels, out // groups) if transposed else (out, channels // groups)
    words = (
        [stride] * rank,
        [padding] * rank,
        [dilation] * rank,
        transposed,
        [int(transposed and stride > 1)] * rank,
        groups,
    )
    for src_last, weights_last in itertools.product((False, True), repeat=2):
        src = in_format(integers(2, channels, *[extent] * rank, dtype=dtype), src_last)
        weights = in_format(integers(*weights_shape, *[kernel] * rank, dtype=dtype, seed=2), weights_last)
        bias = integers(out, dtype=dtype, seed=3)

        def compute(src, weights, bias):
            dst = aten.convolution(src, weights, bias, *words)
            diff_dst = torch.empty_like(dst).copy_(dst)
            return dst, *aten.convolution_backward(diff_dst, src, weights, [out], *words, [True, True, True])

        expected = compute(src, weights, bias)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = compute(*map(mode.from_tensor, (src, weights, bias)))
        with ct.enabled():
            results = compute(src, weights, bias)
            assert ct.taken().left == {}
        for result, other, shown in zip(results, expected, fake, strict=True):
            assert torch.equal(result, other)
            assert steps(result) == steps(other)
            assert steps(shown) == steps(other) or (rank == 1 and FAKES_OF_ROWS_DIFFER)


def steps(tensor):
    """Strides, where they mean something."""
    return [step for step, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", list(itertools.product((True, False), repeat=3)), ids=str)
def test_only_gradients_that_are_asked_for_are_computed(mask, dtype):
    src, weights, diff_dst = (integers(*shape, dtype=dtype) for shape in ((1, 2, 5), (3, 2, 3), (1, 3, 3)))
    arguments = (diff_dst, src, weights, [3], [1], [0], [1], False, [0], 1, mask)
    expected = aten.convolution_backward(*arguments)
    with ct.enabled():
        results = aten.convolution_backward(*arguments)
        computed = sum(name.count("Backward") for name in ct.taken().operations)
    assert computed == sum(mask)
    for result, other, asked in zip(results, expected, mask, strict=True):
        assert (result is not None) == asked
        assert result is None or torch.equal(result, other)


class Network(torch.nn.Module):
    """A small autoencoder, with several ways to call a convolution."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 8, 3, padding="same", padding_mode="circular")
        self.norm = torch.nn.BatchNorm2d(8)
        self.down = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.deep = torch.nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.up = torch.nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.head = torch.nn.Parameter(torch.randn(1, 8, 1, 1) / 3)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = self.up(F.relu(self.deep(F.relu(self.down(x)))))
        return F.conv2d(x, self.head)


def network():
    torch.manual_seed(7)
    return Network()


IMAGES = torch.randn(4, 1, 12, 12, generator=torch.Generator().manual_seed(8))


def losses(model, steps, *, run=None):
    """Of steps of training an autoencoder."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run, history = model if run is None else run, []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(run(IMAGES).float(), IMAGES)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return history


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_model_that_knows_nothing_of_it_trains_to_the_same_losses(memory_format):
    expected = losses(network().to(memory_format=memory_format), 20)
    with ct.enabled():
        history = losses(network().to(memory_format=memory_format), 20)
        count = ct.taken()
    assert history == pytest.approx(expected, rel=1e-3)
    assert history[-1] < 0.5 * history[0]
    assert count.left == {}
    assert count.operations == {
        "Convolution": 80,
        "ConvTranspose": 20,
        "ConvolutionBackwardData": 60,  # the image needs no gradient
        "ConvolutionBackwardWeights": 40,
        "ConvolutionBackwardWeights with BiasAddBackward": 40,
        "ConvTransposeBackwardData": 20,
        "ConvTransposeBackwardWeights with BiasAddBackward": 20,
    }
    assert str(count).splitlines()[0] == "20 x ConvTranspose"


def test_gradients_have_the_strides_of_parameters():
    with ct.enabled():
        model = network()
        losses(model.to(memory_format=torch.channels_last), 1)
        losses(mixed := network(), 1, run=lambda x: mixed(x.to(memory_format=torch.channels_last)))
    for parameter in (*model.parameters(), *mixed.parameters()):
        assert parameter.grad.stride() == parameter.stride()


def derivatives(dtype):
    """Up to the second order, of a convolution and a transposed one."""
    src, weights, up = (
        integers(*shape, dtype=dtype, seed=seed).requires_grad_()
        for seed, shape in enumerate(((2, 4, 6, 6), (6, 2, 3, 3), (6, 2, 3, 3)))
    )
    dst = F.conv_transpose2d(F.conv2d(src, weights, padding=1, groups=2), up, stride=2)
    first = torch.autograd.grad(dst, (src, weights, up), integers(*dst.shape, dtype=dtype), create_graph=True)
    second = torch.autograd.grad(first, (src, weights, up), [integers(*g.shape, dtype=dtype) for g in first])
    return dst, *first, *second


def test_second_derivatives_agree_to_the_bit():
    expected = derivatives(torch.float64)
    with ct.enabled():
        results = derivatives(torch.float64)
        assert ct.taken().left == {}
    for result, other in zip(results, expected, strict=True):
        assert torch.equal(result, other)


def test_autocast_trains_in_16_bits():
    def run(model):
        with torch.autocast("cpu", torch.bfloat16):
            return model(IMAGES)

    reference = losses(model := network(), 10, run=lambda _: run(model))
    with ct.enabled():
        history = losses(model := network(), 10, run=lambda _: run(model))
        with torch.autocast("cpu", torch.bfloat16):
            assert model.down(model.stem(IMAGES)).dtype is torch.bfloat16
        assert ct.taken().left == {}
    assert history == pytest.approx(reference, rel=0.05)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("way", ["enabled", "converted"])
def test_compiled_models_train_to_the_same_losses(backend, way):
    def small():
        torch.manual_seed(4)  # nothing but convolutions: C++ takes long to compile
        return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, stride=2), torch.nn.ConvTranspose2d(4, 1, 4, stride=2))

    make = network if backend == "aot_eager" else small
    expected = losses(make(), 5)
    model = make()
    if way == "converted":
        assert "Conv2d" in ct.convert(model).taken.values()
        history = losses(model, 5, run=compiled(model, backend))
    else:
        with ct.enabled():
            history = losses(model, 5, run=compiled(model, backend))
            assert ct.taken().operations["ConvTransposeBackwardWeights with BiasAddBackward"] == 5
            assert ct.taken().left == {}
    assert history == pytest.approx(expected, rel=1e-3)


def compiled(model, backend):
    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, backend=backend)


def test_functional_transforms_agree_to_the_bit():
    src, weights = integers(3, 2, 4, 5, 5, dtype=torch.float64), integers(6, 2, 3, 3, dtype=torch.float64, seed=2)

    def loss(weights, src):
        return F.conv2d(src, weights, padding=1, groups=2).square().sum()

    def compute():
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, src)
        tangent = torch.func.jvp(lambda w: F.conv2d(src[0], w, groups=2), (weights,), (weights,))[1]
        hessian = torch.func.hessian(loss)(weights[:, :, :1, :1], src[0, :, :, :2, :2])
        return each, tangent, hessian

    expected = compute()
    with ct.enabled():
        results = compute()
        assert ct.taken().left == {}
        assert ct.taken().operations["Convolution"] > 2
    for result, other in zip(results, expected, strict=True):
        assert torch.equal(result, other)


def test_checkpointed_layers_are_computed_twice_and_agree():
    from torch.utils.checkpoint import checkpoint

    model = network()
    expected = losses(model, 3)
    with ct.enabled():
        again = network()
        history = losses(again, 3, run=lambda x: checkpoint(again, x, use_reentrant=False))
        assert ct.taken().operations["Convolution"] == 3 * (4 + 3)  # nobody needs the last one again
    assert history == pytest.approx(expected, rel=1e-3)


def test_inference_mode_and_no_grad():
    src, layer = integers(1, 3, 5, 5), torch.nn.Conv2d(3, 4, 3)
    expected = layer(src)
    for mode in (torch.inference_mode, torch.no_grad):
        with ct.enabled(), mode():
            dst = layer(src)
            torch.testing.assert_close(dst, expected, rtol=0, atol=27 * 2**-22)
            assert ct.taken().operations == {"Convolution": 1}
            assert not dst.requires_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traced_programs_are_taken_too():
    layer, src = torch.nn.Conv2d(3, 4, 3), integers(1, 3, 5, 5).requires_grad_()
    traced = torch.jit.trace(layer, src)
    with ct.enabled():
        traced(src).sum().backward()
        count = ct.taken()
    assert count.left == {}
    assert count.operations["Convolution"] == 1
    assert count.operations["ConvolutionBackwardData"] == 1


LEFT = {  # what PyTorch computes itself: arguments of torch.convolution before the stride, and how the reason begins
    "integers": (
        (integers(1, 2, 5, dtype=torch.int64), integers(3, 2, 3, dtype=torch.int64), None),
        "type torch.int64",
    ),
    "no batch": ((integers(0, 2, 5), integers(3, 2, 3), None), "a tensor without elements"),
}
ONE_AXIS = ([1], [0], [1], False, [0], 1)


@pytest.mark.parametrize(("tensors", "why"), LEFT.values(), ids=LEFT)
def test_what_is_not_taken_is_computed_by_pytorch(tensors, why):
    expected = torch.convolution(*tensors, *ONE_AXIS)
    with ct.enabled():
        assert torch.equal(torch.convolution(*tensors, *ONE_AXIS), expected)
        torch.convolution(*tensors, *ONE_AXIS)
        assert ct.taken().left["convolution", why] == 2
        assert f"2 x convolution left to PyTorch: {why}" in str(ct.taken())


def test_complex_convolutions_are_those_of_their_parts():
    src, weights = integers(1, 2, 5, dtype=torch.complex64) * 1j, integers(3, 2, 3, dtype=torch.complex64)
    expected = F.conv1d(src, weights)
    with ct.enabled():
        assert torch.equal(F.conv1d(src, weights), expected)
        assert ct.taken() == takeover.Taken({"Convolution": 3}, {})


def test_gradients_that_are_not_taken_are_computed_by_pytorch():
    src = integers(0, 2, 5).requires_grad_()
    weights = integers(3, 2, 3).requires_grad_()
    with ct.enabled():
        F.conv1d(src, weights).sum().backward()
        assert ct.taken().left == {
            ("convolution", "a tensor without elements"): 1,
            ("convolution_backward", "a tensor without elements"): 1,
        }
    assert torch.equal(weights.grad, torch.zeros(3, 2, 3))


MISTAKES = {
    "channels": ((integers(1, 3, 5), integers(3, 2, 3), None, *ONE_AXIS), "Convolution: "),
    "types": (
        (integers(1, 2, 5), integers(3, 2, 3).double(), None, *ONE_AXIS),
        "types torch.float32, torch.float64 tog",
    ),
    "axes": ((integers(1, 2, 5), integers(3, 2, 3, 3), None, *ONE_AXIS), "tensors of 3 and 4 axes"),
    "kernel": ((integers(1, 2, 2), integers(3, 2, 3), None, *ONE_AXIS), "Convolution: dst [1, 3, 0] has no elements"),
    "groups of the specification": (
        (integers(1, 4, 5), integers(2, 6, 3), None, [1], [0], [1], True, [0], 2),
        "ConvTranspose: src has 4 channels, but weights",
    ),
    "output_padding": (
        (integers(1, 2, 5), integers(2, 3, 3), None, [1], [0], [1], True, [1], 1),
        "an output_padding that is not smaller than stride or dilation",
    ),
}


@pytest.mark.parametrize(("arguments", "why"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_in_the_words_of_pytorch(arguments, why):
    with pytest.raises(RuntimeError) as error:
        torch.convolution(*arguments)
    with ct.enabled():
        with pytest.raises(RuntimeError, match=re.escape(str(error.value))):
            torch.convolution(*arguments)
        (left,) = ct.taken().left
    assert left[1].startswith(why)


def test_numbers_across_their_addresses_are_left_but_not_their_geometry():
    memory = bytearray(4 * 40 + 1)
    straight, across = torch.frombuffer(memory, dtype=torch.float32, count=40), None
    across = torch.frombuffer(memory, dtype=torch.float32, count=40, offset=1)
    weights = integers(3, 2, 3)
    with ct.enabled():
        for src in (across, straight, across):
            src.copy_(integers(40))
            dst = F.conv1d(src.view(1, 2, 20), weights)
            assert torch.equal(dst, F.conv1d(integers(40).view(1, 2, 20), weights))
            diff = aten.convolution_backward(dst, src.view(1, 2, 20), weights, None, *ONE_AXIS, [True, True, False])
            assert diff[0].shape == (1, 2, 20)
        count = ct.taken()
    why = "not aligned to its elements"
    assert count.left == {("convolution", why): 2, ("convolution_backward", why): 2}
    assert count.operations["Convolution"] == 4


def test_one_entry_stands_for_all_axes():
    src, weights = integers(1, 2, 6, 7), integers(3, 2, 3, 3)
    arguments = ([2], [1], [1], False, [0], 1)
    expected = torch.convolution(src, weights, None, *arguments)
    with ct.enabled():
        assert torch.equal(torch.convolution(src, weights, None, *arguments), expected)
        diff = aten.convolution_backward(expected, src, weights, None, *arguments, [True, True, False])
        assert ct.taken().left == {}
    assert all(
        map(torch.equal, diff[:2], aten.convolution_backward(expected, src, weights, None, *arguments, [True] * 3))
    )


def test_arguments_that_python_takes_for_equal_are_told_apart():
    """One entry for all axes, and True == 1: the words of these two calls are the same when strung together."""
    src, weights = integers(1, 4, 6, 6), integers(4, 4, 3, 3)
    calls = [([1], [0, 0], [1], True, [0, 0], 1), ([1], [0, 0], [1, 1], False, [0], 1)]
    expected = [torch.convolution(src, weights, None, *call) for call in calls]
    with ct.enabled():
        for call, other in zip(calls, expected, strict=True):
            assert torch.equal(torch.convolution(src, weights, None, *call), other)


def test_counts_outlive_what_is_forgotten(monkeypatch):
    monkeypatch.setattr(takeover, "MOST_PLANS", 3)
    with ct.enabled():
        for extent in range(5, 13):
            F.conv1d(integers(1, 2, extent), integers(3, 2, 3))
        assert len(takeover._forward) <= 3
        assert ct.taken().operations == {"Convolution": 8}
    with ct.enabled():
        assert ct.taken().operations == {}
        assert str(ct.taken()) == "nothing taken"


def test_many_threads_train_at_once():
    expected = losses(network(), 5)
    results, failures = {}, []

    def work(number):
        try:
            torch.set_num_threads(1)
            results[number] = losses(models[number], 5)
        except BaseException as error:
            failures.append(error)

    models = [network() for _ in range(4)]
    with ct.enabled():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ct.taken().operations["Convolution"] == 4 * 5 * 4
    assert not failures
    assert len(results) == 4
    for history in results.values():
        assert history == pytest.approx(expected, rel=1e-3)


class Blurred(torch.utils.data.Dataset):
    """Pictures whose transform is a convolution, and what computed it."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        picture = integers(1, 1, 9, 9, seed=index)
        before = ct.taken().operations.get("Convolution", 0)
        blurred = F.conv2d(picture, torch.ones(1, 1, 3, 3), padding=1)
        return blurred[0], ct.taken().operations.get("Convolution", 0) - before


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
def test_workers_of_a_data_loader_are_taken_over_with_the_process():
    expected = torch.stack([Blurred()[index][0] for index in range(8)])
    model = torch.nn.Conv2d(1, 4, 3)
    with ct.enabled():
        model(expected).sum().backward()  # threads of this process exist by now, and workers do not have them
        loader = torch.utils.data.DataLoader(Blurred(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        batches = list(loader)
        model(expected).sum().backward()
    assert torch.equal(torch.cat([pictures for pictures, _ in batches]), expected)
    assert all(torch.all(taken == 1) for _, taken in batches)


PROCESS = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import convgrad.torch as ct

rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
torch.set_num_threads(1)
ct.enable()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Conv2d(2, 8, 3), torch.nn.ReLU(), torch.nn.ConvTranspose2d(8, 2, 4, 2)).double()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_((parameter * 8).round())
src = torch.randint(-3, 4, (4, 2, 9, 9), generator=torch.Generator().manual_seed(2)).double()
parallel = DistributedDataParallel(model)
parallel(src[2 * rank : 2 * rank + 2]).square().sum().backward()
shared = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
model(src).square().sum().backward()
for mean, parameter in zip(shared, model.parameters(), strict=True):
    assert torch.equal(2 * mean, parameter.grad), (rank, parameter.shape)
assert ct.taken().operations["ConvTransposeBackwardWeights with BiasAddBackward"] == 2, ct.taken()
print("the same on process", rank)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without torch.distributed")
def test_two_processes_give_the_gradients_of_one(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROCESS)
    processes = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    assert [output.splitlines()[-1] for output in outputs] == [f"the same on process {rank}" for rank in range(2)]


def test_the_fpmath_mode_of_the_surroundings_reaches_the_kernels(monkeypatch):
    from convgrad.arrays import record

    seen, kernel_for = [], record.kernel_for
    monkeypatch.setattr(record, "kernel_for", lambda problem: seen.append(problem.fpmath_mode) or kernel_for(problem))
    monkeypatch.delenv("CONVGRAD_FPMATH_MODE", raising=False)
    src, layer = integers(1, 3, 11, 5).requires_grad_(), torch.nn.Conv2d(3, 5, 3)
    with ct.enabled():
        for mode in ("strict", "bf16", "tf32", "bf16"):
            with convgrad.fpmath_mode(mode):
                layer(src).sum().backward()
    assert seen == ["strict"] * 3 + ["bf16"] * 3 + ["tf32"] * 3
