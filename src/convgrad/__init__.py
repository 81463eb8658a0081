"""The convolution gradients of the oneDNN Graph specification, compiled for the exact shape.

`convgrad.operations` explains what the functions take; `convgrad.graph` runs graphs of them.
"""

from convgrad.errors import (
    ArrayError,
    AttributeRuleError,
    ConvError,
    DtypeError,
    FileFormatError,
    GraphError,
    SettingError,
    ShapeError,
)
from convgrad.operations import (
    bias_add_backward,
    conv_transpose,
    conv_transpose_backprop_filters,
    conv_transpose_backward_data,
    conv_transpose_backward_weights,
    convolution,
    convolution_backward_data,
    convolution_backward_weights,
)
from convgrad.runtime.threads import num_threads, set_num_threads
from convgrad.settings import relaxed as fpmath_mode

__version__ = "0.1.0"

__all__ = [
    "ArrayError",
    "AttributeRuleError",
    "ConvError",
    "DtypeError",
    "FileFormatError",
    "GraphError",
    "SettingError",
    "ShapeError",
    "bias_add_backward",
    "conv_transpose",
    "conv_transpose_backprop_filters",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weights",
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weights",
    "fpmath_mode",
    "num_threads",
    "set_num_threads",
]
