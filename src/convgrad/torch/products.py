"""Matrix products of PyTorch as convolutions of one tap: `aten::mm` and `aten::addmm` for dense CPU matrices.

A linear layer is a 1x1 convolution, and with its gradients most of what some networks of convolutions consist of. With
rows as windows, first @ second is the weights gradient of src = second and diff_dst = first.T, which has the fastest
plans for any strides; with a bias it is a convolution, which adds it on the way.

A geometry is compiled once it has come often enough to pay for that, so that programs whose rows are as many as their
sentences are long do not compile for each length. Until then, and where nothing is to be gained, PyTorch computes it.
"""

from __future__ import annotations

from math import inf, prod

import torch
from torch import Tensor

from convgrad import settings
from convgrad.errors import ConvError
from convgrad.plan.machine import current_machine, why_not
from convgrad.torch import kernels
from convgrad.torch.calls import Left, Plans
from convgrad.torch.jobs import Job, misaligned, unfit
from convgrad.torch.precision import asked_mode

FEWEST_PRODUCTS = 1 << 19  # multiply-adds, below which a call takes longer than they do
WORTH_COMPILING = 1 << 30  # multiply-adds of all calls so far: 20 ms of PyTorch, where compiling takes 50 to 100
FEW_ROWS = 16  # so few results are little beside what they are made of: a bias of f32 is as well added afterwards
LEVELS = ("avx2", "avx512", "avx512_bf16", "amx")  # and emulations of these; others were not compared with PyTorch
BF16_LEVELS = ("avx512_bf16", "amx")  # whose instructions PyTorch uses for products of bf16 itself, and well

PRODUCT = "matrix product"  # how `taken` names it

_MM_OUT = torch.ops.aten.mm.out  # these have kernels of their own, which nothing here replaces
_ADDMM_OUT = torch.ops.aten.addmm.out


class Product:
    """Products of matrices of one geometry: left to PyTorch at first, then computed by a job."""

    __slots__ = ("_bias_after", "_each", "_job", "_rest", "_swapped", "mask", "young")

    def __init__(self, first: Tensor, second: Tensor, bias: Tensor | None):
        self._each = _multiply_adds(first, second)
        self._rest: float = WORTH_COMPILING
        self._bias_after = bias is not None and first.shape[0] <= FEW_ROWS and first.element_size() >= 4
        self._swapped = bias is None or self._bias_after
        self._job: Job | None = None
        self.mask = first.element_size() - 1  # bits that no address of the type has
        self.young = Left("a product that has not come often enough to be compiled")

    @property
    def parts(self) -> tuple[Left | Job, ...]:
        """What counts calls."""
        return (self.young,) if self._job is None else (self.young, self._job)

    def __call__(self, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor | None:
        """The result for such matrices; None while they have not come often enough."""
        job = self._job or self._ripened(first, second, bias)
        if job is None:
            return None
        if not self._swapped:
            return job(first.data_ptr(), second.data_ptr(), first, 0 if bias is None else bias.data_ptr())
        result = job(second.data_ptr(), first.data_ptr(), first)
        return result.add_(bias) if self._bias_after else result

    def _ripened(self, first: Tensor, second: Tensor, bias: Tensor | None) -> Job | None:
        """One more call; the job, once there have been enough."""
        self._rest -= self._each
        if self._rest <= 0:
            try:
                self._job = _job(first, second, None if self._swapped else bias)
            except ConvError as error:
                self._rest, self.young.why = inf, str(error)
        return self._job


def _multiply_adds(first: Tensor, second: Tensor) -> int:
    return first.shape[0] * prod(second.shape)


def _job(first: Tensor, second: Tensor, bias: Tensor | None) -> Job:
    """A kernel whose result is a contiguous matrix."""
    rows, columns = first.shape[0], second.shape[1]
    words = ((1,), (0,), (0,), (1,), 1)
    with settings.relaxed(asked_mode("matmul") or settings.fpmath_mode()):
        if bias is None:
            tensors = (second.t().unsqueeze(0), first.unsqueeze(0))
            job = Job(kernels.CONVOLUTION_BACKWARD_WEIGHTS, tensors, words, (1,), lambda shape: (columns, 1, 1))
        else:
            tensors = (first.t().unsqueeze(0), second.t().unsqueeze(2), bias)
            job = Job(kernels.CONVOLUTION, tensors, words, None, lambda shape: (rows * columns, 1, columns))
    job.name, job.shape, job.strides = PRODUCT, (rows, columns), (columns, 1)
    return job


def _plan(first: Tensor, second: Tensor, bias: Tensor | None, unscaled: bool) -> Product | str:
    """What a product comes to, or why it is left to PyTorch."""
    tensors = (first, second) if bias is None else (first, second, bias)
    if why := unfit(tensors):
        return why
    if first.dim() != 2 or second.dim() != 2 or first.shape[1] != second.shape[0]:
        return f"shapes {', '.join(str(list(tensor.shape)) for tensor in tensors)}"
    if not unscaled or (bias is not None and bias.shape != second.shape[1:]):
        return "something added that is not a bias"
    if min(first.shape[0], *second.shape) < 2 or _multiply_adds(first, second) < FEWEST_PRODUCTS:
        return "a small product"
    isa = current_machine().isa
    if not isa.startswith(LEVELS):
        return f"a product on {isa}"
    if first.dtype is torch.bfloat16 and any(why_not(level) is None for level in BF16_LEVELS):
        return "a product of torch.bfloat16, for which PyTorch has instructions of this processor, too"
    return Product(first, second, bias)


_mm = Plans("mm", _plan)
_addmm = Plans("addmm", _plan)
PLANS = (_mm, _addmm)


def mm(first: Tensor, second: Tensor) -> Tensor:
    """`aten::mm` for dense CPU tensors."""
    key = (first.shape, first.stride(), first.dtype, second.shape, second.stride(), second.dtype, asked_mode("matmul"))
    result = _computed(_mm, key, first, second, None)
    return _MM_OUT(first, second, out=first.new_empty(0)) if result is None else result


def addmm(added: Tensor, first: Tensor, second: Tensor, *, beta=1, alpha=1) -> Tensor:
    """`aten::addmm` for dense CPU tensors: beta * added + alpha * first @ second."""
    key = (
        first.shape,
        first.stride(),
        first.dtype,
        second.shape,
        second.stride(),
        second.dtype,
        added.shape,
        added.stride(),
        added.dtype,
        beta == 1 == alpha,
        asked_mode("matmul"),
    )
    result = _computed(_addmm, key, first, second, added, beta == 1 == alpha)
    if result is None:
        return _ADDMM_OUT(added, first, second, beta=beta, alpha=alpha, out=first.new_empty(0))
    return result


def _computed(
    plans: Plans, key: tuple, first: Tensor, second: Tensor, bias: Tensor | None, unscaled: bool = True
) -> Tensor | None:
    """The result, or None if it is PyTorch's to compute."""
    found = plans.get(key)
    if found is None and not any(misaligned(each) for each in (first, second, bias) if each is not None):
        found = plans.learn(key, first, second, bias, unscaled)
    if type(found) is Product:
        if not (first.data_ptr() | second.data_ptr() | (0 if bias is None else bias.data_ptr())) & found.mask:
            result = found(first, second, bias)
            if result is not None:
                return result
            found = found.young
        else:
            found = None
    plans.leave(found)
    return None


KERNELS = {"mm": mm, "addmm": addmm}
