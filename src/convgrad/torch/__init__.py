"""convgrad in PyTorch: the operations on tensors, as functions that autograd knows.

`convgrad.torch.functions` explains what they take; the operators themselves are `torch.ops.convgrad.*`.
"""

from convgrad.torch.functions import (
    bias_add_backward,
    conv_transpose,
    conv_transpose_backward_data,
    conv_transpose_backward_weights,
    convolution,
    convolution_backward_data,
    convolution_backward_weights,
)

__all__ = [
    "bias_add_backward",
    "conv_transpose",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weights",
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weights",
]
