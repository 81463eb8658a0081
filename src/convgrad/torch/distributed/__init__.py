"""Volumes that fit no single machine: tensors split along one spatial axis, and layers that exchange their halos.

On PyTorch's own `torch.distributed`: any backend with point-to-point messages moves the halos. docs/sharding.md shows
how it is used, and what is computed where.
"""

from convgrad.sharding import Proportions, balanced
from convgrad.torch.distributed.module import SpatialParallel
from convgrad.torch.distributed.tensor import SplitTensor, scatter, split

__all__ = ["Proportions", "SpatialParallel", "SplitTensor", "balanced", "scatter", "split"]
