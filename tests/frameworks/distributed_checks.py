"""What one process of a group does in the tests of split tensors: every check in turn, compared with one process.

    python distributed_checks.py RANK PROCESSES FOLDER

The processes meet at a file in the folder, and each writes there what became of every check.
"""

import json
import re
import sys
import traceback
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import convgrad.torch
from convgrad.errors import ConvError
from convgrad.sharding import Proportions
from convgrad.torch.distributed import SpatialParallel, SplitTensor, scatter, split

CHECKS = []


def check(function):
    """One of the checks; `some(2)` of them need a certain number of processes."""
    CHECKS.append(function)
    return function


def integers(*shape, low=-3, high=4, seed=0, dtype=torch.float32):
    """The same on every process; sums of them are exact."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def same(result, expected, where):
    assert result.shape == expected.shape, (where, result.shape, expected.shape)
    assert torch.equal(result, expected), f"{where}: {(result != expected).sum()} of {expected.numel()} differ"


def uneven(parts):
    """Parts of 1, 2, 3, ... shares."""
    ends = [n * (n + 1) // 2 for n in range(parts + 1)]
    return Proportions.of(ends)


def compare(where, function, inputs, dim, proportions=None, seed=7):
    """A function of split and of whole tensors: the results, and the gradients of its tensors and of its inputs.

    function(inputs) takes one tensor, split or whole, and a dictionary of those that are the same everywhere.
    """
    results = []
    for is_split in (False, True):
        src, *rest = (tensor.clone().requires_grad_() for tensor in inputs)
        given = split(src, dim, proportions=proportions) if is_split else src
        dst = function(given, *rest)
        if is_split:
            assert isinstance(dst, SplitTensor), where
            assert dst.boundaries == dst.proportions.boundaries(dst.shape[dim])
            dst = dst.gather()
        diff = integers(*dst.shape, seed=seed, dtype=dst.dtype)
        dst.backward(diff)
        results.append((dst.detach(), *(tensor.grad for tensor in (src, *rest))))
    for name, expected, result in zip(("dst", "src", "weights", "bias"), *results, strict=False):
        same(result, expected, (where, name))


@check
def convolutions():
    cases = [  # extents, taps, strides, pads, dilations, groups
        ((11, 6), (3, 3), (1, 1), (1, 1), (1, 1), 1),
        ((13, 5), (5, 2), (2, 1), (2, 0), (1, 2), 2),
        ((9, 4), (4, 1), (3, 2), (3, 1), (2, 1), 1),  # a kernel larger than any part
        ((3, 7), (3, 3), (1, 1), (1, 1), (1, 1), 4),  # fewer elements than processes, perhaps
        ((8, 5), (1, 1), (8, 2), (0, 0), (1, 1), 1),  # parts that no window meets
        ((2, 3), (1, 3), (1, 1), (4, 1), (1, 1), 1),  # windows that meet nothing
    ]
    for number, (extents, taps, strides, pads, dilations, groups) in enumerate(cases):
        proportions = uneven(dist.get_world_size()) if number % 2 else None
        inputs = integers(2, 4, *extents), integers(8, 4 // groups, *taps), integers(8)
        words = dict(stride=strides, padding=pads, dilation=dilations, groups=groups)
        compare(words, lambda x, w, b, words=words: F.conv2d(x, w, b, **words), inputs, 2, proportions)


@check
def transposed_convolutions():
    cases = [  # extents, taps, strides, pads, output padding, dilations, groups
        ((7, 4), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1), 1),
        ((6, 5), (4, 2), (2, 2), (1, 0), (1, 1), (1, 1), 2),
        ((5, 3), (3, 2), (3, 2), (0, 1), (2, 1), (2, 3), 1),
        ((3, 3), (1, 1), (4, 2), (0, 0), (3, 0), (1, 1), 4),  # elements that no window meets
        ((2, 6), (7, 3), (1, 2), (2, 1), (0, 1), (1, 1), 1),
    ]
    for number, (extents, taps, strides, pads, more, dilations, groups) in enumerate(cases):
        proportions = uneven(dist.get_world_size()) if number % 2 else None
        inputs = integers(2, 4, *extents), integers(4, 8 // groups, *taps), integers(8)
        words = dict(stride=strides, padding=pads, output_padding=more, dilation=dilations, groups=groups)
        compare(words, lambda x, w, b, words=words: F.conv_transpose2d(x, w, b, **words), inputs, 2, proportions)


@check
def bits_of_sums_that_are_rounded():
    """Where no sum crosses parts, the order of its terms is that of the whole, for numbers of any kind."""
    cases = [  # layer, channels, extents
        (lambda x, w: F.conv2d(x, w, padding=1), (2, 192, 9, 40), (16, 192, 3, 3)),
        (lambda x, w: F.conv2d(x, w, padding=6, dilation=6), (1, 96, 25, 25), (16, 96, 3, 3)),
        (lambda x, w: F.conv2d(x, w, padding=4, dilation=2, groups=20), (2, 20, 24, 33), (20, 1, 5, 5)),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), (1, 72, 13, 9), (72, 32, 4, 4)),
        (lambda x, w: F.conv3d(x, w, padding=1), (1, 24, 11, 8, 9), (16, 24, 3, 3, 3)),
    ]
    generator = torch.Generator().manual_seed(5)
    for number, (layer, shape, kernel) in enumerate(cases):
        src, weights = torch.randn(shape, generator=generator), torch.randn(kernel, generator=generator)
        results = []
        for is_split in (False, True):
            given, w = src.clone().requires_grad_(), weights.clone().requires_grad_()
            last = src.dim() - 1
            with convgrad.torch.enabled():
                dst = layer(split(given, last) if is_split else given, w)
                dst = dst.gather() if is_split else dst
                dst.backward(torch.randn(dst.shape, generator=torch.Generator().manual_seed(number)))
            results.append((dst.detach(), given.grad, w.grad))
        (dst, diff_src, diff_weights), (part_dst, part_diff_src, part_diff_weights) = results
        same(part_dst, dst, (number, "dst"))
        same(part_diff_src, diff_src, (number, "src"))
        torch.testing.assert_close(part_diff_weights, diff_weights, rtol=1e-4, atol=1e-3)


@check
def one_and_three_axes():
    compare(
        "1d, the odd pad at the end",
        lambda x, w: F.conv1d(x, w, padding="same"),
        (integers(1, 2, 17), integers(3, 2, 4)),
        2,
    )
    compare("1d, valid", lambda x, w: F.conv1d(x, w, padding="valid"), (integers(1, 2, 17), integers(3, 2, 4)), 2)
    volume, weights = integers(1, 2, 6, 7, 8), integers(4, 2, 3, 3, 3)
    compare("3d", lambda x, w: F.conv3d(x, w, stride=2, padding=1), (volume, weights), 3)
    compare("3d up", lambda x, w: F.conv_transpose3d(x, w, stride=2), (volume, integers(2, 4, 2, 3, 2)), 4)


@check
def memory_formats_and_types():
    src = integers(2, 8, 9, 5).contiguous(memory_format=torch.channels_last)
    weights = integers(6, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    compare("channels last", lambda x, w: F.conv2d(x, w, padding=1), (src, weights), 2)
    part = split(src, 2)
    dst = F.conv2d(part, weights.requires_grad_(), padding=1)
    if dst.local.shape[2] > 1:
        assert dst.local.is_contiguous(memory_format=torch.channels_last)
    dst.sum().backward()
    assert weights.grad.is_contiguous(memory_format=torch.channels_last)
    for dtype in (torch.float64, torch.bfloat16):
        inputs = [integers(1, 2, 9, 4, low=-1, high=2, dtype=dtype), integers(2, 2, 3, 3, low=-1, high=2, dtype=dtype)]
        compare(dtype, lambda x, w: F.conv2d(x, w, padding=1), inputs, 2)
    weights = integers(2, 2, 3, 3).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        dst = F.conv2d(split(integers(1, 2, 9, 4), 2), weights, padding=1)
    dst.sum().backward()
    assert (dst.dtype, weights.grad.dtype) == (torch.bfloat16, torch.float32)


@check
def layers_of_both_kinds():
    ours = convgrad.torch.nn
    layers = [
        (ours.Conv2d(2, 4, 3, stride=2, padding="same_upper"), (1, 2, 9, 6)),
        (ours.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1), (1, 2, 7, 6)),
        (ours.Conv3d(2, 4, 3, padding=1, groups=2), (1, 2, 5, 4, 3)),
        (nn.Conv3d(2, 4, 3, padding=1, groups=2), (1, 2, 5, 4, 3)),
    ]
    for layer, shape in layers:
        weights, bias = integers(*layer.weight.shape), integers(*layer.bias.shape)

        def apply(x, w, b, layer=layer):
            return torch.func.functional_call(layer, {"weight": w, "bias": b}, (x,))

        compare(layer, apply, (integers(*shape), weights, bias), 2)


@check
def pooling():
    for pool, dim in product((F.max_pool2d, F.avg_pool2d), (2, 3)):
        for words in (dict(kernel_size=2), dict(kernel_size=4, stride=2), dict(kernel_size=(2, 1), stride=(4, 1))):
            src = integers(1, 2, 10, 9) * 16  # means are exact, too
            compare((pool.__name__, words, dim), lambda x, p=pool, k=words: p(x, **k), (src,), dim)
    compare("3d", lambda x: F.max_pool3d(x, 2), (integers(1, 2, 8, 4, 4),), 2)
    compare("less than one for each", lambda x: F.max_pool2d(x, 3), (integers(1, 1, 4, 9),), 2)


@check
def element_by_element():
    scale = integers(3, 1, 1)

    def function(x, s):
        y = F.relu(x) * s + 2 * x - 1 + x.clamp(max=1).square().abs() / 2
        return torch.cat([1 - y, -x, F.leaky_relu(y, 2.0), s + 2 / (4 + 0 * x), x.tanh() * 0], dim=1) ** 2

    compare("elementwise", function, (integers(2, 3, 7, 5), scale), 2)
    compare("prelu", lambda x, w: F.prelu(x, w), (integers(2, 3, 7, 5), integers(3)), 3)


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
def normalization():
    src, weights, bias = torch.randn(2, 6, 9, 5, generator=torch.Generator().manual_seed(1)), integers(6), integers(6)
    functions = {
        "group": lambda x, w, b: F.group_norm(x, 3, w, b),
        "instance": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        "batch": lambda x, w, b: F.batch_norm(x, torch.ones(6), torch.full((6,), 4.0), w, b, training=False),
    }
    for name, function in functions.items():
        results = []
        for is_split in (False, True):
            x, w, b = (tensor.clone().requires_grad_() for tensor in (src, weights, bias))
            dst = function(split(x, 2) if is_split else x, w, b)
            dst = dst.gather() if is_split else dst
            (dst * integers(*dst.shape)).sum().backward()
            results.append((dst, x.grad, w.grad, b.grad))
        for expected, result in zip(*results, strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4, msg=name)


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


def main():
    rank, processes, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=processes, timeout=timedelta(seconds=60)
    )
    outcome = {}
    for function in CHECKS:
        try:
            function()
            outcome[function.__name__] = "passed"
        except BaseException:
            outcome[function.__name__] = traceback.format_exc()
        agreed = [None] * processes
        dist.all_gather_object(agreed, outcome[function.__name__] == "passed")
        if not all(agreed):  # processes may be out of step
            break
    (folder / f"rank{rank}.json").write_text(json.dumps(outcome))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
