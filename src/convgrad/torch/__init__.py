"""convgrad in PyTorch: whole programs, models, layers, and the operations on tensors, as functions that autograd knows.

`enable` lets a program run on convgrad as it is, `convert` a model; `convgrad.torch.nn` has layers.
`convgrad.torch.functions` explains what the functions take; the operators themselves are `torch.ops.convgrad.*`.
"""

try:
    import torch  # noqa: F401  # first, for a message that says what is missing
except ImportError as error:
    raise ImportError(f"convgrad.torch needs PyTorch ({error}): pip install 'convgrad[torch]'") from error

from convgrad.torch import nn
from convgrad.torch.conversion import Converted, convert, converted, restore
from convgrad.torch.functions import (
    bias_add_backward,
    conv_transpose,
    conv_transpose_backward_data,
    conv_transpose_backward_weights,
    convolution,
    convolution_backward_data,
    convolution_backward_weights,
)
from convgrad.torch.results import keep_results
from convgrad.torch.takeover import Taken, disable, enable, enabled, is_enabled, taken

__all__ = [
    "Converted",
    "Taken",
    "bias_add_backward",
    "conv_transpose",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weights",
    "convert",
    "converted",
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weights",
    "disable",
    "enable",
    "enabled",
    "is_enabled",
    "keep_results",
    "nn",
    "restore",
    "taken",
]
