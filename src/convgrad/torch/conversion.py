"""Layers of a model, made to run on convgrad and back, in place.

A layer of `torch.nn` and the one of the same name here differ in their class alone, so that is all that changes:
parameters, buffers, hooks, the training flag, and whoever holds the layer, an optimizer or a list, keep what they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from convgrad.torch import nn
from convgrad.values import frozen

NAMES = tuple(f"{lazy}Conv{kind}{rank}d" for lazy in ("", "Lazy") for kind in ("", "Transpose") for rank in (1, 2, 3))
TO_CONVGRAD = {getattr(torch.nn, name): getattr(nn, name) for name in NAMES}
TO_TORCH = {ours: theirs for theirs, ours in TO_CONVGRAD.items()}
Model = TypeVar("Model", bound=torch.nn.Module)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@frozen
class Converted:
    """The convolutions of a model; `print` says them. Layers are named as in `model.named_modules()`."""

    taken: dict[str, str]  # name of a layer that runs on convgrad: name of its class
    left: dict[str, str]  # name of a convolution that does not: why

    def __str__(self) -> str:
        """How many layers of each kind run on convgrad, and a line for each that does not."""
        kinds = Counter(self.taken.values())
        words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
        lines = [f"layers on convgrad: {words}"]
        lines += [f"left to PyTorch: {name or 'the model itself'}, {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def convert(model: Model, *, back: bool = False) -> Model:
    """Let the convolutions of a model, and the model itself if it is one, run on convgrad; `back` is `restore`.

    The model is changed in place, and is the result. Convolutions that cannot be vouched for stay as they were, and
    `converted` says why: subclasses, whose code may count on anything; layers whose `forward` was replaced; types and
    devices that there are no kernels for. Layers with parametrizations, `torch.nn.utils.weight_norm` or
    `spectral_norm` are converted, lazy ones too.
    """
    if back:
        return restore(model)
    for _, layer, plain in _convolutions(model, TO_CONVGRAD):
        if not _why_not(layer, plain):
            _become(layer, plain, TO_CONVGRAD)
    return model


def restore(model: Model) -> Model:
    """Make the convolutions of a model, in place, those of `torch.nn` again; the result is the model.

    Layers with padding that `torch.nn` has no word for, pairs or SAME, stay as they are, and `converted` names them.
    """
    for _, layer, plain in _convolutions(model, TO_TORCH):
        if plain in TO_TORCH and _is_padding_of_torch(layer.padding):
            _become(layer, plain, TO_TORCH)
    return model


def converted(model: torch.nn.Module) -> Converted:
    """Which convolutions of a model run on convgrad, by `convert` or from the start, and why others do not."""
    taken = {name: plain.__name__ for name, _, plain in _convolutions(model, TO_TORCH)}
    left = {
        name: _why_not(layer, plain) or "not converted"
        for name, layer, plain in _convolutions(model, TO_CONVGRAD)
        if name not in taken
    }
    return Converted(taken, left)


def _convolutions(model: torch.nn.Module, classes: dict[type, type]) -> Iterator[tuple[str, torch.nn.Module, type]]:
    """Name, layer and class, without parametrizations, of what is one of some classes or derived from one."""
    for name, layer in model.named_modules():
        kind = type(layer)
        plain = kind.__bases__[0] if _has_class_of_its_own(layer) else kind
        if not classes.keys().isdisjoint(plain.__mro__):
            yield name, layer, plain


def _become(layer: torch.nn.Module, plain: type, classes: dict[type, type]) -> None:
    kind = type(layer)
    layer.__class__ = classes[plain] if plain is kind else _parametrized(kind, classes[plain])


def _has_class_of_its_own(layer: torch.nn.Module) -> bool:
    """Whether parametrizations gave the layer a class that was made for it, derived from what it was."""
    return is_parametrized(layer) and type(layer).__name__.startswith("Parametrized")


def _parametrized(kind: type, plain: type) -> type:
    """The class of a layer with parametrizations, derived from another class."""
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__", "__doc__")}
    return type(kind.__name__, (plain,), own)


def _why_not(layer: torch.nn.Module, plain: type) -> str:
    if plain not in TO_CONVGRAD:
        base = next(known for known in plain.__mro__ if known in TO_CONVGRAD)
        return f"{plain.__qualname__} is a subclass of {base.__name__} and may do anything; change its base"
    replaced = [name for name in ("forward", "_conv_forward") if name in vars(layer)]
    if replaced:
        return f"its {replaced[0]} was replaced"
    weight = next(layer.parameters(), None)  # not layer.weight, which a parametrization would compute
    if weight is None:
        weight = layer.weight
    if not is_lazy(weight) and weight.dtype not in DTYPES:
        return f"it holds {str(weight.dtype).removeprefix('torch.')}, for which there are no kernels"
    if weight.device.type not in ("cpu", "meta"):
        return f"it lies on {weight.device}, and kernels run on the CPU"
    return ""


def _is_padding_of_torch(padding: Any) -> bool:
    if isinstance(padding, str):
        return padding in ("valid", "same")
    return not (isinstance(padding, tuple) and padding and isinstance(padding[0], tuple))
