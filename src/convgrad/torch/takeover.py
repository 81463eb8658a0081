"""Convolution of PyTorch itself, computed by convgrad: `enable`, `disable`, `enabled`, `taken`.

Whatever way a program takes to a convolution, `torch.nn`, `torch.nn.functional`, a second derivative, autocast, vmap, a
compiled graph, it ends in two operators of ATen: `convolution` and `convolution_backward` (and `_convolution`, which
traced programs call). Both are one kernel for all backends; `enable` gives them another one for dense CPU tensors, and
`disable` takes it away. Linear layers, which are convolutions of one tap, end in `mm` and `addmm`; these have a kernel
for CPUs, which is replaced meanwhile. Autograd, autocast and all the rest stay PyTorch's.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch.library import Library

from convgrad.torch import convolutions, products
from convgrad.torch.calls import Taken, taken_of
from convgrad.torch.results import KEEP_BYTES, checked, keep_while_taken, kept_while_taken

_library: Library | None = None
_lock = threading.Lock()


def enable(keep_bytes: int | None = None, *, linear: bool = True) -> None:
    """Compute the convolutions of CPU tensors in this process, and their gradients, with convgrad.

    Of f32, f64, bf16 and f16; the rest stays with PyTorch. Models, parameters and programs need no change. Call it
    while no other thread is inside a convolution.

    linear: whether matrix products, of linear layers and their gradients, are computed here, too, where that is faster
    and they come often enough.

    keep_bytes: when results of 8 MiB or more die, up to so many bytes of their memory are kept for results of the same
    size that follow, until `disable`; 512 MiB if not given, 0 keeps none. Such results cannot be enlarged by `resize_`.

    A second call changes nothing but keep_bytes, if given. Raises SettingError for what is not a whole number of bytes.
    """
    global _library
    if keep_bytes is not None:
        checked("keep_bytes", keep_bytes)
    with _lock:
        if _library is None or keep_bytes is not None:
            keep_while_taken(KEEP_BYTES if keep_bytes is None else keep_bytes)
        if _library is not None:
            return
        for plans in (*convolutions.PLANS, *products.PLANS):
            plans.forget_counts()
        library = Library("aten", "IMPL")
        with warnings.catch_warnings():  # that products had a kernel for CPUs before, which comes back with `disable`
            warnings.filterwarnings("ignore", message=r"(?s).*[Oo]verrid.*aten::(add)?mm\(")
            for name, kernel in (convolutions.KERNELS | (products.KERNELS if linear else {})).items():
                library.impl(name, kernel, "CPU")
        _library = library


def disable() -> None:
    """Give convolution back to PyTorch, and memory that was kept. Without an `enable` before, it changes nothing."""
    global _library
    with _lock:
        if _library is not None:
            _library._destroy()
            _library = None
            keep_while_taken(0)


def is_enabled() -> bool:
    """Whether convolutions are computed here."""
    return _library is not None


@contextmanager
def enabled(keep_bytes: int | None = None, *, linear: bool = True) -> Iterator[None]:
    """`enable` for a block; afterwards it is as it was before. It holds for the whole process, not for a thread."""
    before, kept = is_enabled(), kept_while_taken()
    enable(keep_bytes, linear=linear)
    try:
        yield
    finally:
        if before:
            keep_while_taken(kept)
        else:
            disable()


def taken() -> Taken:
    """What was computed here since the last `enable` that changed something, and what was left to PyTorch and why."""
    return taken_of(convolutions.PLANS, products.PLANS)
