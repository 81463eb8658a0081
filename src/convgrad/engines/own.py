"""convgrad, through its public functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import convgrad
from convgrad import operations, runtime
from convgrad.engines.interface import Engine, Task, aligned
from convgrad.spec.resolve import Resolved

_FUNCTIONS = {
    "Convolution": operations.convolution,
    "ConvolutionBackwardData": operations.convolution_backward_data,
    "ConvolutionBackwardWeights": operations.convolution_backward_weights,
    "ConvTranspose": operations.conv_transpose,
    "ConvTransposeBackwardData": operations.conv_transpose_backward_data,
    "ConvTransposeBackwardWeights": operations.conv_transpose_backward_weights,
    "BiasAddBackward": operations.bias_add_backward,
}
_HAVE_OUTPUT_PADDING = ("ConvolutionBackwardData", "ConvTranspose", "ConvTransposeBackwardWeights")


class Convgrad(Engine):
    """A call with `out`, so that no memory is taken; what it costs in Python counts."""

    @staticmethod
    def version() -> str:
        """Of the package."""
        return convgrad.__version__

    def __init__(self, task: Task, threads: int) -> None:
        """Nothing is compiled before the first call."""
        runtime.set_num_threads(threads)
        self._function = _FUNCTIONS[task.resolved.op]
        self._keywords = _keywords(task.resolved)
        self._inputs: Sequence[np.ndarray] = ()
        self._out = aligned(task.resolved.output_shape, task.out_dtype)
        self._has_bias = len(task.resolved.input_shapes) == 3

    def load(self, inputs: Sequence[np.ndarray]) -> None:
        """Kept as they are."""
        self._inputs = inputs
        if self._has_bias:
            *self._inputs, self._keywords["bias"] = inputs

    def call(self) -> None:
        """With preallocated memory."""
        self._function(*self._inputs, out=self._out, **self._keywords)

    def output(self) -> np.ndarray:
        """A copy, since the next call overwrites it."""
        return self._out.copy()


def _keywords(resolved: Resolved) -> dict:
    if resolved.op == "BiasAddBackward":
        return {"data_format": resolved.data_format}
    keywords = {
        "strides": resolved.strides,
        "pads_begin": resolved.pads_begin,
        "pads_end": resolved.pads_end,
        "dilations": resolved.dilations,
        "groups": resolved.groups,
        "data_format": resolved.data_format,
        "weights_format": resolved.weights_format,
    }
    if resolved.op in _HAVE_OUTPUT_PADDING and any(resolved.output_padding):
        keywords["output_padding"] = resolved.output_padding
    return keywords


ENGINE = Convgrad
