"""Checks of single operations on split tensors: convolutions and what stands between them in networks."""

from itertools import product

import torch
import torch.distributed as dist
import torch.nn.functional as F
from split_checks import check, compare, integers, same, uneven
from torch import nn

import convgrad.torch
from convgrad.torch.distributed import split


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
        (lambda x, w: F.conv2d(x, w, padding=2, dilation=2, groups=2), (1, 128, 20, 20), (256, 64, 3, 3)),
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
