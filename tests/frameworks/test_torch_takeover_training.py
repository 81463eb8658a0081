"""Training while convgrad computes PyTorch's convolutions: the same losses, compiled, in threads and in processes."""

import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad.torch as ct  # noqa: E402
from frameworks.takeover_tensors import integers  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_stays")
F = torch.nn.functional


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
        assert "Conv2d" in ct.converted(ct.convert(model)).taken.values()
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


def test_checkpointed_layers_are_computed_twice_and_agree():
    from torch.utils.checkpoint import checkpoint

    model = network()
    expected = losses(model, 3)
    with ct.enabled():
        again = network()
        history = losses(again, 3, run=lambda x: checkpoint(again, x, use_reentrant=False))
        assert ct.taken().operations["Convolution"] == 3 * (4 + 3)  # nobody needs the last one again
    assert history == pytest.approx(expected, rel=1e-3)


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
