"""The operations under JAX: `jit`, `grad` of any order in both modes, `vmap`, `shard_map`.

Programs call compiled kernels through XLA's foreign-function interface; no Python runs between two steps of a compiled
program. `operations` holds the operations of the specification, `conv_general_dilated` is JAX's own function of that
name where it belongs to the family, and `register_targets` prepares a process for an exported program.
"""

try:
    import jax  # noqa: F401  # first, for a message that says what is missing
except ImportError as error:
    raise ImportError(f"convgrad.jax needs JAX ({error}): pip install 'convgrad[jax]'") from error

import convgrad.jax.batching
import convgrad.jax.derivatives  # noqa: F401  # both for the rules that they register
from convgrad.jax.general import conv_general_dilated
from convgrad.jax.operations import (
    bias_add_backward,
    conv_transpose,
    conv_transpose_backward_data,
    conv_transpose_backward_weights,
    convolution,
    convolution_backward_data,
    convolution_backward_weights,
)
from convgrad.jax.targets import register_targets

__all__ = [
    "bias_add_backward",
    "conv_general_dilated",
    "conv_transpose",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weights",
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weights",
    "register_targets",
]
