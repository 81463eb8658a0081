"""PyTorch, through the operators that its autograd calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from convgrad.dtypes import numpy_dtype
from convgrad.engines.interface import Engine, Task, Unsupported
from convgrad.spec.resolve import Resolved
from convgrad.spec.weights import letter_axes

_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # there is none for one spatial axis


class PyTorch(Engine):
    """aten.convolution, or aten.convolution_backward asked for one gradient. PyTorch allocates the result itself.

    NXC tensors lie in channels_last memory where PyTorch has it.
    """

    @staticmethod
    def version() -> str:
        """Of torch."""
        return torch.__version__

    def __init__(self, task: Task, threads: int) -> None:
        """Find PyTorch's words for the geometry; Unsupported if it has none."""
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._task = task
        self._result = torch.empty(0)
        if task.out_dtype != task.dtype:
            raise Unsupported(f"PyTorch makes no {task.out_dtype} of {task.dtype}")
        self._is_bias = task.resolved.op == "BiasAddBackward"
        if not self._is_bias:
            self._roles = _roles(task.resolved.op)
            self._arguments = _arguments(task.resolved)
            if task.resolved.weights_convention != "library" and task.resolved.groups > 1:
                raise Unsupported("PyTorch has no transposed weights of I = IC/groups")
        self._tensors: dict[str, torch.Tensor | None] = {}

    def load(self, inputs: Sequence[np.ndarray]) -> None:
        """Copy into PyTorch's own memory and axis order."""
        if self._is_bias:
            self._tensors = {"gradient": self._adopt(inputs[0], self._channels_first())}
            return
        first, second, made = self._roles
        self._tensors = {first: self._role(inputs[0], first), second: self._role(inputs[1], second), "bias": None}
        if len(inputs) == 3:
            self._tensors["bias"] = self._adopt(inputs[2], [0])
        shape = np.broadcast_to(np.zeros((), numpy_dtype(self._task.dtype)), self._task.resolved.output_shape)
        self._tensors[made] = self._role(shape, made)  # a gradient is asked for with the tensor it belongs to

    def call(self) -> None:
        """One operator, eagerly."""
        t = self._tensors
        if self._is_bias:
            gradient = t["gradient"]
            self._result = gradient.sum([axis for axis in range(gradient.ndim) if axis != 1])
            return
        made = self._roles[2]
        if made == "gradient":
            self._result = torch.ops.aten.convolution(t["source"], t["weights"], t["bias"], *self._arguments)
            return
        wanted = [made == "source", made == "weights", False]
        both = torch.ops.aten.convolution_backward(
            t["gradient"], t["source"], t["weights"], None, *self._arguments, wanted
        )
        self._result = both[0] if wanted[0] else both[1]

    def output(self) -> np.ndarray:
        """Back in the order of the task."""
        result = self._result
        if not self._is_bias:
            order = self._weights_first() if self._roles[2] == "weights" else self._channels_first()
            result = result.permute(np.argsort(order).tolist())
        plain = result.contiguous()
        return plain.view(_BITS[plain.element_size()]).numpy().view(numpy_dtype(self._task.dtype)).copy()

    def _role(self, array: np.ndarray, role: str) -> torch.Tensor:
        return self._adopt(array, self._weights_first() if role == "weights" else self._channels_first())

    def _adopt(self, array: np.ndarray, order: list[int]) -> torch.Tensor:
        bits = np.ascontiguousarray(array).view(f"i{array.itemsize}")
        tensor = torch.from_numpy(bits.copy()).view(_TYPES[self._task.dtype]).permute(order)
        last = self._task.resolved.data_format == "NXC"
        layout = _CHANNELS_LAST.get(tensor.ndim, torch.contiguous_format) if last else torch.contiguous_format
        return tensor.contiguous(memory_format=layout)

    def _channels_first(self) -> list[int]:
        rank = self._task.resolved.rank
        return list(range(rank + 2)) if self._task.resolved.data_format == "NCX" else [0, rank + 1, *range(1, rank + 1)]

    def _weights_first(self) -> list[int]:
        """Axes of OIX for a convolution, of IOX for a transposed one."""
        resolved = self._task.resolved
        axes = letter_axes(resolved.weights_format, resolved.rank)
        one, two = "IO" if resolved.op.startswith("ConvTranspose") else "OI"
        return [axes[one], axes[two], *range(axes["X"], axes["X"] + resolved.rank)]


def _roles(op: str) -> tuple[str, str, str]:
    """What the inputs and the result are to convolution_backward, where dst goes by its gradient."""
    if op.endswith("BackwardData"):
        return "gradient", "weights", "source"
    if op.endswith("BackwardWeights"):
        return "source", "gradient", "weights"
    return "source", "weights", "gradient"


def _arguments(resolved: Resolved) -> tuple:
    """Stride, padding, dilation, transposed, output padding, groups: PyTorch pads both ends alike.

    Pads at the end count only through the extent of the result, which other pads may give as well.
    """
    transposed = resolved.op.startswith("ConvTranspose")
    output_padding = []
    for x, y, k, s, d, low in zip(
        resolved.image_extent, resolved.window_extent, resolved.kernel, resolved.strides, resolved.dilations,
        resolved.pads_begin, strict=True,
    ):  # fmt: skip
        reach = d * (k - 1) + 1
        rest = x + 2 * low - reach - s * (y - 1)  # of the image that no window reaches, were pads alike
        if not 0 <= rest < (max(s, d) if transposed else s):
            raise Unsupported("PyTorch pads both ends of an axis alike")
        output_padding.append(rest if transposed else 0)
    return resolved.strides, resolved.pads_begin, resolved.dilations, transposed, output_padding, resolved.groups


ENGINE = PyTorch
