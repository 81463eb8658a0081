"""Ranges of one axis that move between the processes of a group, and sums over them, as functions autograd knows.

Two kinds of tensors live on every process: its own part of a tensor that is split, and tensors that are the same
everywhere, whose gradients are the same everywhere, too. What goes from one kind to the other says here what becomes
of gradients. Every process has to call the same functions in the same order, and backward as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Span = tuple[int, int]  # start <= e < stop
Spans = Sequence[Span]  # by rank within the group
Group = dist.ProcessGroup | None  # None is the group of all processes


def spans_of(boundaries: Sequence[int]) -> list[Span]:
    """What each rank owns."""
    return list(pairwise(boundaries))


def fetch(local: Tensor, dim: int, owned: Spans, wanted: Spans, group: Group = None) -> Tensor:
    """The elements wanted[rank] of an axis of which each rank holds owned[rank]; gradients go back and are summed.

    All that is wanted must be owned, and by one rank only.
    """
    return _Fetch.apply(local, dim, owned, wanted, group)


def gathered(local: Tensor, dim: int, owned: Spans, group: Group = None) -> Tensor:
    """The whole tensor, the same on every rank; of its gradient, the same too, each rank keeps its part."""
    return _Gather.apply(local, dim, owned, group)


def own_part(whole: Tensor, dim: int, owned: Spans, group: Group = None) -> Tensor:
    """This rank's part of a tensor that is the same on every rank; its gradient is put together from all parts."""
    return _OwnPart.apply(whole, dim, owned, group)


def shared(tensor: Tensor, group: Group = None) -> Tensor:
    """A tensor that is the same on every rank, for use with parts: its gradient is summed over the ranks."""
    return _Shared.apply(tensor, group) if tensor.requires_grad and torch.is_grad_enabled() else tensor


def summed(local: Tensor, group: Group = None) -> Tensor:
    """The sum over the ranks, the same on every rank; each summand has the gradient of the sum."""
    return _Summed.apply(local, group)


def exchange(local: Tensor, dim: int, owned: Spans, wanted: Spans, group: Group = None) -> Tensor:
    """As `fetch`, without a gradient; `local` itself, or a view of it, where nothing comes from elsewhere."""
    rank = dist.get_rank(group)
    first = owned[rank][0]
    pieces: list[Tensor] = []
    received: list[tuple[int, int, Tensor]] = []
    sends: list[tuple[int, Tensor]] = []
    for other, span in enumerate(owned):
        low, high = _common(span, wanted[rank])
        if other != rank and low < high:
            received.append((other, len(pieces), _buffer(local, dim, high - low)))
            pieces.append(received[-1][2])
        elif low < high:
            pieces.append(local.narrow(dim, low - first, high - low))
    for other, span in enumerate(wanted):
        low, high = _common(owned[rank], span)
        if other != rank and low < high:
            sends.append((other, local.narrow(dim, low - first, high - low).contiguous()))
    _communicate(sends, [(other, buffer) for other, _, buffer in received], group)
    for _, place, buffer in received:
        pieces[place] = _lying_like(local, buffer)
    if not pieces:
        return local.narrow(dim, 0, 0)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def give_back(grad: Tensor, dim: int, owned: Spans, wanted: Spans, group: Group = None) -> Tensor:
    """The adjoint of `exchange`: what each rank holds of wanted[rank] is added where its elements are owned.

    A rank adds its own first, then those of the others by rising rank.
    """
    rank = dist.get_rank(group)
    first, start = wanted[rank][0], owned[rank][0]
    shape = list(grad.shape)
    shape[dim] = owned[rank][1] - start
    total = _lying_like(grad, grad.new_zeros(shape))
    received: list[tuple[int, int, Tensor]] = []
    sends: list[tuple[int, Tensor]] = []
    for other in range(len(owned)):
        if other == rank:
            continue
        low, high = _common(owned[rank], wanted[other])
        if low < high:
            received.append((other, low - start, _buffer(grad, dim, high - low)))
        low, high = _common(owned[other], wanted[rank])
        if low < high:
            sends.append((other, grad.narrow(dim, low - first, high - low).contiguous()))
    _communicate(sends, [(other, buffer) for other, _, buffer in received], group)
    low, high = _common(owned[rank], wanted[rank])
    if low < high:
        total.narrow(dim, low - start, high - low).copy_(grad.narrow(dim, low - first, high - low))
    for _, place, buffer in received:
        total.narrow(dim, place, buffer.shape[dim]).add_(buffer)
    return total


def reduced(tensor: Tensor, group: Group = None) -> Tensor:
    """The sum over the ranks, in a tensor of its own that lies as the summands do."""
    total = tensor.clone(memory_format=torch.preserve_format)
    if total.is_contiguous():
        dist.all_reduce(total, group=group)
        return total
    plain = total.contiguous()  # messages are dense
    dist.all_reduce(plain, group=group)
    return total.copy_(plain)


def _common(one: Span, other: Span) -> Span:
    return max(one[0], other[0]), min(one[1], other[1])


def _communicate(sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]], group: Group) -> None:
    """All messages at once; between two ranks at most one each way."""
    world = dist.group.WORLD if group is None else group
    operations = [
        dist.P2POp(operation, tensor, dist.get_global_rank(world, rank), group=world)
        for operation, messages in ((dist.irecv, receives), (dist.isend, sends))
        for rank, tensor in messages
    ]
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def _buffer(like: Tensor, dim: int, extent: int) -> Tensor:
    """For a message. These are always dense and channels first: no process can tell how another one's tensor lies."""
    shape = list(like.shape)
    shape[dim] = extent
    return like.new_empty(shape)


def _lying_like(model: Tensor, tensor: Tensor) -> Tensor:
    """The same numbers with channels last if the model has them there."""
    if model.dim() > 2 and not model.is_contiguous() and model.movedim(1, -1).is_contiguous():
        return tensor.movedim(1, -1).contiguous().movedim(-1, 1)
    return tensor


class _Fetch(Function):
    @staticmethod
    def forward(ctx, local, dim, owned, wanted, group):
        ctx.words = dim, owned, wanted, group
        found = exchange(local, dim, owned, wanted, group)
        return found.view_as(found) if found is local else found

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return give_back(grad, *ctx.words), None, None, None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx, local, dim, owned, group):
        ctx.dim, ctx.span = dim, owned[dist.get_rank(group)]
        found = exchange(local, dim, owned, [(0, owned[-1][1])] * len(owned), group)
        return found.view_as(found) if found is local else found

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        start, stop = ctx.span
        return grad.narrow(ctx.dim, start, stop - start), None, None, None


class _OwnPart(Function):
    @staticmethod
    def forward(ctx, whole, dim, owned, group):
        ctx.words = dim, owned, group
        start, stop = owned[dist.get_rank(group)]
        part = whole.narrow(dim, start, stop - start).clone(memory_format=torch.contiguous_format)
        return _lying_like(whole, part)  # of its own, so that the whole need not be kept

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        dim, owned, group = ctx.words
        return exchange(grad, dim, owned, [(0, owned[-1][1])] * len(owned), group), None, None, None


class _Shared(Function):
    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return reduced(grad, ctx.group), None


class _Summed(Function):
    @staticmethod
    def forward(ctx, local, group):
        return reduced(local, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad, None
