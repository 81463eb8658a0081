"""What every engine offers: one operation on tensors of known shape, prepared, fed, run and read the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from convgrad.dtypes import numpy_dtype
from convgrad.errors import ConvError
from convgrad.spec.resolve import Resolved
from convgrad.values import frozen

ALIGNMENT = 64  # bytes, for the arrays of every engine that takes ours


class EngineError(ConvError):
    """A library that is not there, or died."""


class Unsupported(ConvError):
    """A problem that a library does not do; the message says why, in its words if it has any."""


@frozen
class Task:
    """One operation on dense tensors in the axis order that its formats name."""

    resolved: Resolved
    dtype: str  # of the inputs
    out_dtype: str

    def random_inputs(self, seed: int) -> list[np.ndarray]:
        """Normally distributed numbers, the same in every process."""
        rng = np.random.default_rng(seed)
        return [self._cast(rng.standard_normal(shape, np.float32)) for shape in self.resolved.input_shapes]

    def _cast(self, values: np.ndarray) -> np.ndarray:
        array = aligned(values.shape, self.dtype)
        array[...] = values
        return array


class Engine(ABC):
    """One operation of one library: made for a task, then `load`, then `call` as often as wanted, then `output`."""

    @staticmethod
    @abstractmethod
    def version() -> str:
        """Of the library; ImportError or OSError where it is absent."""

    @abstractmethod
    def __init__(self, task: Task, threads: int) -> None:
        """Compile; Unsupported if the library does not do this."""

    @abstractmethod
    def load(self, inputs: Sequence[np.ndarray]) -> None:
        """Take the inputs, in the order of the operation, a bias last."""

    @abstractmethod
    def call(self) -> None:
        """Compute the result once, to its end: the only part that is timed."""

    @abstractmethod
    def output(self) -> np.ndarray:
        """What the latest call computed, in the layout of the task."""


def aligned(shape: Sequence[int], dtype: str) -> np.ndarray:
    """A dense array on a boundary of cache lines, not filled."""
    kind = numpy_dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(kind).reshape(shape)
