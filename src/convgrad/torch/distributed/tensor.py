"""A tensor that is split along one spatial axis among the processes of a group."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from convgrad.errors import ArrayError, ShapeError
from convgrad.sharding import Proportions
from convgrad.torch.distributed import exchange
from convgrad.torch.distributed.exchange import Group, Span


class SplitTensor:
    """This process's part of a tensor (N, C, spatial...) of which every process of a group holds one.

    local        the part: elements boundaries[rank] <= e < boundaries[rank + 1] of the axis `dim`
    dim          the axis, 2 being the outermost spatial one; the attribute is `split_dim`
    extent       how many elements the axis has in all
    proportions  where parts end, as fractions of any extent; equal shares if not given
    group        the processes, all of them if not given

    Layers and functions of PyTorch take it where a tensor is expected, if what they do is known to be right on parts
    (docs/sharding.md has the list); anything else raises. Tensors that are not split and meet it must be the same on
    every process; in backward, which every process must call, their gradients are summed over the group.
    """

    def __init__(
        self, local: Tensor, dim: int, extent: int, *, proportions: Proportions | None = None, group: Group = None
    ):
        self.group = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(group)
        self.proportions = proportions or Proportions.even(dist.get_world_size(group))
        self.local, self.split_dim, self.extent = local, dim, extent
        self._check()

    def _check(self) -> None:
        processes = dist.get_world_size(self.group)
        if self.proportions.parts != processes:
            raise ShapeError(
                f"SplitTensor: proportions are of {self.proportions.parts} parts, but the group has {processes} "
                "processes; give one part for each"
            )
        _check_spatial("SplitTensor", self.split_dim, self.local.dim())
        start, stop = self.span
        if self.local.shape[self.split_dim] != stop - start:
            raise ShapeError(
                f"SplitTensor: local {list(self.local.shape)} has {self.local.shape[self.split_dim]} elements on axis "
                f"{self.split_dim}, but rank {self.rank} owns {start} to {stop} of {self.extent}, that is "
                f"{stop - start}; give that part, or other proportions"
            )

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Where parts begin and end."""
        return self.proportions.boundaries(self.extent)

    @property
    def span(self) -> Span:
        """First and last + 1 of the elements of this process."""
        return self.boundaries[self.rank], self.boundaries[self.rank + 1]

    @property
    def owned(self) -> list[Span]:
        """The spans of all processes."""
        return exchange.spans_of(self.boundaries)

    def with_local(self, local: Tensor, extent: int | None = None) -> SplitTensor:
        """Another tensor that is split in the same proportions."""
        extent = self.extent if extent is None else extent
        return SplitTensor(local, self.split_dim, extent, proportions=self.proportions, group=self.group)

    def map(self, function: Callable[[Tensor], Tensor]) -> SplitTensor:
        """The function of each part by itself; it must keep the extent of the axis that is split."""
        return self.with_local(function(self.local))

    def fetch(self, spans: Sequence[Span]) -> Tensor:
        """The elements spans[rank] of the axis, from whoever has them; gradients go back and are summed."""
        return exchange.fetch(self.local, self.split_dim, self.owned, list(spans), self.group)

    def gather(self) -> Tensor:
        """The whole tensor, on every process."""
        return exchange.gathered(self.local, self.split_dim, self.owned, self.group)

    def sum(self) -> Tensor:
        """Of all elements of all parts, on every process."""
        return exchange.summed(self.local.sum(), self.group)

    def mean(self) -> Tensor:
        """Of all elements of all parts, on every process."""
        return self.sum() / self.numel()

    def detach(self) -> SplitTensor:
        """The same numbers without a gradient."""
        return self.map(torch.Tensor.detach)

    def to(self, *args: Any, **keywords: Any) -> SplitTensor:
        """As `torch.Tensor.to`."""
        return self.map(lambda local: local.to(*args, **keywords))

    def contiguous(self, *, memory_format: torch.memory_format = torch.contiguous_format) -> SplitTensor:
        """As `torch.Tensor.contiguous`."""
        return self.map(lambda local: local.contiguous(memory_format=memory_format))

    # --- of the whole tensor

    @property
    def shape(self) -> torch.Size:
        """Of the whole tensor."""
        shape = list(self.local.shape)
        shape[self.split_dim] = self.extent
        return torch.Size(shape)

    def size(self, dim: int | None = None) -> Any:
        """Of the whole tensor."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Of the whole tensor."""
        return self.shape.numel()

    def dim(self) -> int:
        """How many axes the tensor has; the one that is split is `split_dim`."""
        return self.local.dim()

    @property
    def ndim(self) -> int:
        """Of the whole tensor, and of its part."""
        return self.local.dim()

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        """Of the part."""
        return self.local.device

    @property
    def requires_grad(self) -> bool:
        """Of the part."""
        return self.local.requires_grad

    def __repr__(self) -> str:
        start, stop = self.span
        return (
            f"SplitTensor({list(self.shape)}, {self.dtype}, axis {self.split_dim} at {list(self.boundaries)}, rank "
            f"{self.rank} has {start}:{stop})"
        )

    # --- functions of PyTorch

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Apply a function that takes split tensors; raise for any other."""
        from convgrad.torch.distributed.layers import rule_of

        rule = rule_of(func)
        if rule is None:
            raise ArrayError(
                f"{getattr(func, '__name__', func)}: not known to be right on parts of a tensor; call gather() first, "
                "or map() if it works on every part by itself"
            )
        return rule(func, args, kwargs or {})


def _method(function: Callable, swapped: bool = False) -> Callable:
    """A method that applies a function of PyTorch; `swapped` puts the first two arguments the other way round."""

    def method(self: SplitTensor, *args: Any, **keywords: Any) -> Any:
        given = (*args, self) if swapped else (self, *args)
        return SplitTensor.__torch_function__(function, (SplitTensor,), given, keywords)

    return method


for _name in ("abs", "clamp", "exp", "log", "pow", "relu", "sigmoid", "sqrt", "square", "tanh"):
    setattr(SplitTensor, _name, _method(getattr(torch, _name)))
for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(SplitTensor, f"__{_name}__", _method(getattr(operator, _name)))
    setattr(SplitTensor, f"__r{_name}__", _method(getattr(operator, _name), swapped=True))
SplitTensor.__neg__ = _method(operator.neg)


def split(whole: Tensor, dim: int, *, proportions: Proportions | None = None, group: Group = None) -> SplitTensor:
    """Split a tensor that every process of the group holds: each keeps its part."""
    proportions = proportions or Proportions.even(dist.get_world_size(group))
    _check_spatial("split", dim, whole.dim())
    owned = exchange.spans_of(proportions.boundaries(whole.shape[dim]))
    local = exchange.own_part(whole, dim, owned, group)
    return SplitTensor(local, dim, whole.shape[dim], proportions=proportions, group=group)


def scatter(
    whole: Tensor | None,
    dim: int,
    *,
    source: int = 0,
    proportions: Proportions | None = None,
    group: Group = None,
    device: torch.device | str = "cpu",
) -> SplitTensor:
    """Split a tensor that the process `source` (its rank in the group) holds, and the others know nothing of.

    whole is None on the others, whose parts come to lie on `device`; its gradient is put together on the source.
    """
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    world = dist.group.WORLD if group is None else group
    told = [None if whole is None else (tuple(whole.shape), whole.dtype, whole.requires_grad)]
    dist.broadcast_object_list(told, src=dist.get_global_rank(world, source), group=group)
    if told[0] is None:
        raise ArrayError(f"scatter: process {source}, the source, gives no tensor; give it there")
    shape, dtype, needs_grad = told[0]
    _check_spatial("scatter", dim, len(shape))
    extent = shape[dim]
    proportions = proportions or Proportions.even(count)
    if rank != source or whole is None:
        empty = (*shape[:dim], 0, *shape[dim + 1 :])
        whole = torch.empty(empty, dtype=dtype, device=device, requires_grad=needs_grad)
    owned = [(0, extent) if other == source else (0, 0) for other in range(count)]
    local = exchange.fetch(whole, dim, owned, exchange.spans_of(proportions.boundaries(extent)), group)
    return SplitTensor(local, dim, extent, proportions=proportions, group=group)


def _check_spatial(name: str, dim: int, rank: int) -> None:
    if not 2 <= operator.index(dim) < rank:
        raise ShapeError(
            f"{name}: dim is {dim}, but a tensor of (N, C, spatial...) with {rank} axes has its spatial axes from 2 to "
            f"{rank - 1}; give one of them"
        )
