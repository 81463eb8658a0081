"""Which convolutions a training step consists of, and how long each takes in PyTorch and in convgrad."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import convgrad.torch

TURNS = 8  # of each engine on each operation
AXES = {1: "w", 2: "hw", 3: "dhw"}
TYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}
KINDS = ("forward", "data", "weights")
NAMES = {  # of the operation that each kind is, for convolutions and transposed ones
    "forward": ("Convolution", "ConvTranspose"),
    "data": ("ConvolutionBackwardData", "ConvTransposeBackwardData"),
    "weights": ("ConvolutionBackwardWeights", "ConvTransposeBackwardWeights"),
}

Ints = tuple[int, ...]
Layout = tuple[Ints, Ints]  # shape and strides


@dataclass(frozen=True, slots=True)
class Layer:
    """One operation on tensors of known shapes and strides; source and result are those of the forward operation."""

    kind: str  # of KINDS
    dtype: torch.dtype
    source: Layout
    weights: Layout
    result: Layout
    bias: bool  # added in the forward operation
    stride: Ints
    padding: Ints
    dilation: Ints
    transposed: bool
    output_padding: Ints
    groups: int

    @property
    def op(self) -> str:
        """As the specification calls it."""
        return NAMES[self.kind][self.transposed]

    @property
    def problem(self) -> str:
        """In the notation of benchdnn, as the commands of convgrad take it (with --deconv if it is transposed)."""
        (batch, channels, *extents), (_, made, *results) = self.source[0], self.result[0]
        kernel = self.weights[0][2:]
        words = [f"g{self.groups}"] if self.groups > 1 else []
        words.append(f"mb{batch}_ic{channels}" + "".join(map("i{}{}".format, AXES[len(extents)], extents)))
        words.append(f"oc{made}" + "".join(map("o{}{}".format, AXES[len(extents)], results)))
        for letter, values in (("k", kernel), ("s", self.stride), ("p", self.padding)):
            words.append(
                "".join(f"{letter}{axis}{value}" for axis, value in zip(AXES[len(extents)], values, strict=True))
            )
        if set(self.dilation) != {1}:
            words.append(
                "".join(f"d{axis}{value - 1}" for axis, value in zip(AXES[len(extents)], self.dilation, strict=True))
            )
        return "_".join(words)

    @property
    def layout(self) -> str:
        """NXC if channels lie side by side in the source, or in the result where the source has but one."""
        shape, strides = self.source if self.source[0][1] > 1 else self.result
        return "NXC" if strides[1] == 1 and shape[1] > 1 else "NCX"

    @property
    def flops(self) -> int:
        """Two per multiply-add; taps in the padding count, which makes rates comparable but not absolute."""
        windows = self.source if self.transposed else self.result
        pixels = windows[0][0]
        for extent in windows[0][2:]:
            pixels *= extent
        count = 2 * pixels
        channels = self.weights[0][0] * self.weights[0][1]
        for tap in self.weights[0][2:]:
            channels *= tap
        return count * channels


class Recorder(TorchDispatchMode):
    """Counts the convolutions that PyTorch runs while this is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: Counter[Layer] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run what is asked for, and note convolutions by the strides that they meet."""
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            source, weights, bias, *how = args
            self._note("forward", source, weights, made, bias is not None, how)
        elif func is torch.ops.aten.convolution_backward.default:
            gradient, source, weights, _, *how, wanted = args
            for kind, asked in zip(("data", "weights"), wanted, strict=False):
                if asked:
                    self._note(kind, source, weights, gradient, False, how)
        return made

    def _note(self, kind: str, source, weights, result, bias: bool, how: list[Any]) -> None:
        stride, padding, dilation, transposed, output_padding, groups = how
        rank = source.ndim - 2
        layouts = [(tuple(t.shape), t.stride()) for t in (source, weights, result)]
        stride, padding, dilation, output_padding = (
            tuple(each) * (rank if len(each) == 1 else 1) for each in (stride, padding, dilation, output_padding)
        )
        self.layers[
            Layer(kind, source.dtype, *layouts, bias, stride, padding, dilation, transposed, output_padding, groups)
        ] += 1


@dataclass(slots=True)
class Comparison:
    """Fastest seconds of one call."""

    layer: Layer
    count: int  # calls in one step
    stock: float = float("inf")
    ours: float = float("inf")

    @property
    def ratio(self) -> float:
        """Above 1 convgrad is faster."""
        return self.stock / self.ours

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        layer = self.layer
        return {
            "problem": layer.problem,
            "operation": layer.op,
            "dtype": TYPES[layer.dtype],
            "layout": layer.layout,
            "strides": {"source": layer.source[1], "weights": layer.weights[1], "result": layer.result[1]},
            "calls": self.count,
            "stock_seconds": self.stock,
            "convgrad_seconds": self.ours,
            "stock_gflops": layer.flops / self.stock / 1e9,
            "convgrad_gflops": layer.flops / self.ours / 1e9,
            "ratio": self.ratio,
        }


def compare(layers: Counter[Layer], budget: float) -> Iterator[Comparison]:
    """Time every layer by both engines in turns, each for about `budget` seconds."""
    for layer, count in layers.items():
        found = Comparison(layer, count)
        call = _call(layer)
        with torch.no_grad():
            call()
            with convgrad.torch.enabled():  # compiles
                call()
            for _ in range(TURNS):
                found.stock = min(found.stock, _fastest(call, budget / TURNS))
                with convgrad.torch.enabled():
                    found.ours = min(found.ours, _fastest(call, budget / TURNS))
        yield found


def _fastest(call: Callable[[], object], seconds: float) -> float:
    best, begin = float("inf"), perf_counter()
    while True:
        start = perf_counter()
        call()
        end = perf_counter()
        best = min(best, end - start)
        if end - begin > seconds:
            return best


def _call(layer: Layer) -> Callable[[], object]:
    """The operator of PyTorch that training calls, asked for one gradient."""
    source, weights, result = (_random(each, layer.dtype) for each in (layer.source, layer.weights, layer.result))
    how = (layer.stride, layer.padding, layer.dilation, layer.transposed, layer.output_padding, layer.groups)
    if layer.kind == "forward":
        bias = torch.randn(layer.result[0][1]).to(layer.dtype) if layer.bias else None
        return lambda: torch.ops.aten.convolution(source, weights, bias, *how)
    wanted = [layer.kind == "data", layer.kind == "weights", False]
    return lambda: torch.ops.aten.convolution_backward(result, source, weights, None, *how, wanted)


def _random(layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.empty_strided(*layout, dtype=dtype)
    if 0 in layout[1]:  # expanded: its elements share memory
        return torch.ones((), dtype=dtype).expand(layout[0])
    return tensor.copy_(torch.randn(layout[0]))
