"""Checks of split tensors in training: networks, losses, the ways in and out, and what is refused."""

import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from split_checks import check, integers, same, uneven
from torch import nn

import convgrad.torch
from convgrad.errors import ConvError
from convgrad.torch.distributed import SpatialParallel, SplitTensor, scatter, split


class UNet(nn.Module):
    """Two levels down and up, with a skip at each."""

    def __init__(self, kind, width=4):
        super().__init__()
        self.first = kind.Conv3d(1, width, 3, padding=1)
        self.down = kind.Conv3d(width, 2 * width, 3, stride=2, padding=1)
        self.bottom = kind.Conv3d(2 * width, 2 * width, 3, padding=2, dilation=2)
        self.up = kind.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.again = kind.ConvTranspose3d(2 * width, width, 4, stride=2, padding=1)
        self.last = kind.Conv3d(2 * width, 1, 1)

    def forward(self, x):
        a = F.relu(self.first(x))
        b = F.max_pool3d(a, 2)
        c = F.relu(self.bottom(self.down(b)))
        d = torch.cat([self.up(c), b], dim=1)
        return self.last(torch.cat([self.again(d), a], dim=1))


def small(model, seed=3):
    """Weights of -1, 0 and 1, most of them 0, so that nothing overflows what f32 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randint(-6, 7, parameter.shape, generator=generator)
            parameter.copy_((values == 1).float() - (values == -1).float())
    return model


@check
def a_unet():
    volume, target = integers(1, 1, 16, 8, 8), integers(1, 1, 16, 8, 8, seed=5)
    whole, model = small(UNet(nn)), small(UNet(convgrad.torch.nn), seed=3 + dist.get_rank())
    parts = SpatialParallel(model, proportions=uneven(dist.get_world_size()))  # the first tells what parameters are
    one, other = volume.clone().requires_grad_(), volume.clone().requires_grad_()
    expected, result = whole(one), parts(other)
    same(result, expected, "dst")
    (expected - target).pow(2).sum().backward()
    (result - target).pow(2).sum().backward()
    same(other.grad, one.grad, "src")
    for (name, mine), theirs in zip(parts.module.named_parameters(), whole.parameters(), strict=True):
        same(mine.grad, theirs.grad, name)
        assert theirs.grad.any(), name


@check
def losses():
    volume, target = integers(1, 2, 8, 4), integers(1, 2, 8, 4, seed=5)
    for loss in (F.mse_loss, F.l1_loss):
        for reduction in ("sum", "mean"):
            one, other = volume.clone().requires_grad_(), volume.clone().requires_grad_()
            expected = loss(one, target, reduction=reduction)
            result = loss(split(other, 2), split(target, 2), reduction=reduction)
            same(result, expected, loss)
            expected.backward()
            result.backward()
            same(other.grad, one.grad, loss)
    part = split(volume, 2)
    same(part.sum(), volume.sum(), "sum")
    same(torch.mean(part), volume.mean(), "mean")


@check
def scattered_and_gathered():
    last = dist.get_world_size() - 1
    whole = integers(2, 3, 7, 4).requires_grad_()
    held = whole if dist.get_rank() == last else None
    part = scatter(held, 2, source=last, proportions=uneven(last + 1))
    start, stop = part.span
    same(part.local, whole[:, :, start:stop], "part")
    same(part.gather(), whole, "whole")
    assert part.shape == whole.shape
    (part.map(lambda local: local * 3)).sum().backward()
    if held is not None:
        same(whole.grad, torch.full_like(whole, 3), "gradient")
    again = SplitTensor(part.local.detach(), 2, 7, proportions=uneven(last + 1))
    assert repr(again) == (
        f"SplitTensor([2, 3, 7, 4], torch.float32, axis 2 at {list(part.boundaries)}, rank {part.rank} has "
        f"{start}:{stop})"
    )


@check
def refusals():
    part = split(integers(1, 2, 8, 6), 2)
    weights = integers(2, 2, 3, 3)

    def refused(words, function):
        with pytest.raises(ConvError, match=re.escape(words)):
            function()

    refused("softmax: not known to be right on parts of a tensor; call gather() first", lambda: torch.softmax(part, 1))
    refused("joins split tensors along axes other than 2, which is split; dim is 2", lambda: torch.cat([part, part], 2))
    refused("one of these is not split", lambda: torch.cat([part, weights], 1))
    refused("a tensor [8, 6] that is not split meets SplitTensor", lambda: part + integers(8, 6))
    refused("are not split alike", lambda: part + split(integers(1, 2, 8, 6), 3))
    refused("of split tensors only over all axes", lambda: torch.sum(part, 1))
    refused("batch_norm: in training it needs sums over all parts", lambda: nn.BatchNorm2d(2)(part))
    refused("without running statistics", lambda: nn.InstanceNorm2d(2, track_running_stats=True)(part))
    refused("without padding along axis 2", lambda: F.max_pool2d(part, 3, padding=1))
    refused("a window spans 9 elements, but axis 2 has 8", lambda: F.max_pool2d(part, 9))
    refused("src is what can be split", lambda: F.conv2d(part, split(weights, 2)))
    refused("PyTorch's is for strides of 1", lambda: F.conv2d(part, weights, stride=2, padding="same"))
    refused("in OIX has O = 2, I = 1, but src has 2 channels", lambda: F.conv2d(part, weights[:, :1]))
    refused("split: dim is 1, but a tensor", lambda: split(integers(1, 2, 8), 1))
    refused("SplitTensor: dim is 4, but a tensor", lambda: SplitTensor(part.local, 4, 8))
    refused("elements on axis 2, but rank", lambda: SplitTensor(part.local, 2, 80))
    seven = uneven(7)
    refused("are of 7 parts, but the group has", lambda: SplitTensor(part.local, 2, 8, proportions=seven))
    refused("scatter: process 0, the source, gives no tensor", lambda: scatter(None, 2))


@check
def data_parallel():
    """DistributedDataParallel over all processes: batches between groups, volumes within each of two processes."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([n, n + 1]) for n in range(0, processes, 2)]
    volumes = integers(processes, 1, 16, 4, 4)

    def model(kind):
        down, up = kind.Conv3d(1, 4, 3, stride=2, padding=1), kind.ConvTranspose3d(4, 1, 4, stride=2, padding=1)
        return small(nn.Sequential(down, nn.ReLU(), up))

    whole = model(nn)
    whole(volumes).square().sum().backward()

    def compare_with(model, count):
        for (name, mine), theirs in zip(model.named_parameters(), whole.parameters(), strict=True):
            same(mine.grad * count, theirs.grad, name)
            assert theirs.grad.any(), name

    copies = nn.parallel.DistributedDataParallel(model(convgrad.torch.nn))
    copies(volumes[rank : rank + 1]).square().sum().backward()
    compare_with(copies, processes)

    own = rank // 2
    copies = nn.parallel.DistributedDataParallel(SpatialParallel(model(convgrad.torch.nn), group=groups[own]))
    copies(volumes[2 * own : 2 * own + 2]).square().sum().backward()
    compare_with(copies, processes // 2)
