"""Layers of a model, made to run on convgrad and back, in place.

A layer of `torch.nn` and the one of the same name here differ in their class alone, so that is all that changes:
parameters, buffers, hooks, the training flag, and whoever holds the layer, an optimizer or a list, keep what they have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from convgrad.torch import nn

NAMES = tuple(f"{lazy}Conv{kind}{rank}d" for lazy in ("", "Lazy") for kind in ("", "Transpose") for rank in (1, 2, 3))
TO_CONVGRAD = {getattr(torch.nn, name): getattr(nn, name) for name in NAMES}
TO_TORCH = {ours: theirs for theirs, ours in TO_CONVGRAD.items()}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What `convert` or `restore` did; `print` says it. Layers are named as in `model.named_modules()`."""

    taken: dict[str, str]  # name of a layer: name of its class
    left: dict[str, str]  # name of a convolution that stays as it was: why

    def __str__(self) -> str:
        """How many layers of each kind, and a line for each that was left."""
        kinds = Counter(self.taken.values())
        words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
        lines = [f"layers converted: {words}"]
        lines += [f"left as it was: {name or 'the model itself'}, {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def convert(model: torch.nn.Module, *, back: bool = False) -> Conversion:
    """Let the convolutions of a model, and the model itself if it is one, run on convgrad; `back` is `restore`.

    Convolutions that it cannot vouch for stay as they were, and the result says why: subclasses, whose code may count
    on anything; layers whose `forward` was replaced; types and devices that there are no kernels for. Layers with
    parametrizations, `torch.nn.utils.weight_norm` or `spectral_norm` are converted, lazy ones too.
    """
    if back:
        return restore(model)
    return _exchange(model, TO_CONVGRAD, _why_not)


def restore(model: torch.nn.Module) -> Conversion:
    """Make the convolutions of a model those of `torch.nn` again.

    Layers with padding that `torch.nn` has no word for, pairs or SAME, stay as they are.
    """
    return _exchange(model, TO_TORCH, _why_not_back)


def _exchange(model: torch.nn.Module, classes: dict[type, type], why_not) -> Conversion:
    taken, left = {}, {}
    for name, layer in model.named_modules():
        kind = type(layer)
        plain = kind.__bases__[0] if _has_class_of_its_own(layer) else kind
        if plain not in classes:
            if why := _why_not_kind(plain, classes):
                left[name] = why
        elif why := why_not(layer):
            left[name] = why
        else:
            layer.__class__ = classes[plain] if plain is kind else _parametrized(kind, classes[plain])
            taken[name] = plain.__name__
    return Conversion(taken, left)


def _has_class_of_its_own(layer: torch.nn.Module) -> bool:
    """Whether parametrizations gave the layer a class that was made for it, derived from what it was."""
    return is_parametrized(layer) and type(layer).__name__.startswith("Parametrized")


def _parametrized(kind: type, plain: type) -> type:
    """The class of a layer with parametrizations, derived from another class."""
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__", "__doc__")}
    return type(kind.__name__, (plain,), own)


def _why_not_kind(kind: type, classes: dict[type, type]) -> str:
    """A word on a class that is derived from one to be converted, unless it is one that is there already."""
    base = next((known for known in kind.__mro__ if known in classes), None)
    if base is None or not {*classes.values()}.isdisjoint(kind.__mro__):
        return ""
    return f"{kind.__qualname__} is a subclass of {base.__name__} and may do anything; change its base"


def _why_not(layer: torch.nn.Module) -> str:
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


def _why_not_back(layer: torch.nn.Module) -> str:
    padding = layer.padding
    if padding in ("same_upper", "same_lower") or (
        isinstance(padding, tuple) and padding and isinstance(padding[0], tuple)
    ):
        return f"torch.nn has no word for padding = {padding}"
    return ""
