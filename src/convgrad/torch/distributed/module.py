"""A model whose inputs, and all that it makes of them, are split among processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from convgrad.sharding import Proportions
from convgrad.torch.distributed.exchange import Group
from convgrad.torch.distributed.tensor import SplitTensor, split


class SpatialParallel(nn.Module):
    """A model that computes its own part of every tensor along one spatial axis, and is else as it was.

    module       any model of layers that take a `SplitTensor`; it is used as it is, not copied
    dim          the axis that is split, 2 being the outermost spatial one
    proportions  where parts end, as fractions of any extent; equal shares if not given
    group        the processes, all of them if not given

    Parameters and buffers become those of the group's first process. Tensors that are given are taken to be the same
    on every process and are split, and then results are gathered; split tensors give split results. Gradients of
    parameters are summed over the group in backward, and so the same on every process. For more than one group,
    wrap it in DistributedDataParallel: the mean of gradients over all processes is that over the groups.
    """

    def __init__(self, module: nn.Module, dim: int = 2, *, proportions: Proportions | None = None, group: Group = None):
        super().__init__()
        self.module, self.dim, self.proportions, self.group = module, dim, proportions, group
        first = dist.get_global_rank(dist.group.WORLD if group is None else group, 0)
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                plain = tensor.contiguous()
                dist.broadcast(plain, src=first, group=group)
                if plain is not tensor:
                    tensor.copy_(plain)

    def forward(self, *inputs: Any) -> Any:
        """The model of tensors or split tensors."""
        given = any(isinstance(one, Tensor) for one in inputs)
        result = self.module(*map(self._split, inputs))
        return result.gather() if given and isinstance(result, SplitTensor) else result

    def _split(self, given: Any) -> Any:
        if not isinstance(given, Tensor):
            return given
        return split(given, self.dim, proportions=self.proportions, group=self.group)
