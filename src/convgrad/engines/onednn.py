"""oneDNN's Graph API through the C functions of its PyPI package: a graph of one operation on dense tensors."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint8, c_void_p, pointer
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from convgrad.engines.interface import Engine, Task, Unsupported, aligned
from convgrad.spec.resolve import Resolved

# Values of the enumerations in dnnl_types.h and dnnl_graph_types.h of oneDNN 3.
_CPU, _FUSION, _IN_ORDER, _VARIABLE, _STRIDED = 1, 1, 1, 1, 2
_DATA_TYPES = {"f16": 1, "bf16": 2, "f32": 3, "f64": 7}
_KINDS = {
    "BiasAddBackward": 9,
    "Convolution": 13,
    "ConvolutionBackwardData": 14,
    "ConvolutionBackwardWeights": 15,
    "ConvTranspose": 16,
    "ConvTransposeBackwardData": 17,
    "ConvTransposeBackwardWeights": 18,
}
_ATTRIBUTES = {
    "groups": 50,
    "dilations": 65,
    "dst_shape": 66,
    "output_padding": 69,
    "pads_begin": 70,
    "pads_end": 71,
    "strides": 75,
    "weights_shape": 76,
    "data_format": 131,
    "weights_format": 135,
}
_STATUSES = (
    "success", "out_of_memory", "invalid_arguments", "unimplemented", "last_impl_reached", "runtime_error",
    "not_required", "invalid_graph", "invalid_graph_op", "invalid_shape", "invalid_data_type",
)  # fmt: skip
_RUNTIMES = {1: "sequential", 2: "OpenMP", 4: "TBB", 512: "SYCL"}
_BESIDE = (  # each after those it needs itself
    "libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libtbb.so.12", "libhwloc.so.15", "libumf.so.1",
    "libur_loader.so.0", "libsycl.so.9", "libOpenCL.so.1",
)  # fmt: skip
_MOST_AXES = 12


class _Layout(ctypes.Union):
    _fields_ = [("strides", c_int64 * _MOST_AXES), ("id", c_size_t)]


class _Tensor(ctypes.Structure):
    """dnnl_graph_logical_tensor_t."""

    _fields_ = [
        ("id", c_size_t),
        ("ndims", c_int),
        ("dims", c_int64 * _MOST_AXES),
        ("data_type", c_int),
        ("property", c_int),
        ("layout_type", c_int),
        ("layout", _Layout),
    ]


class _Version(ctypes.Structure):
    _fields_ = [
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    ]


class _Library:
    """libdnnl, with a CPU engine and a stream."""

    def __init__(self) -> None:
        path = _find()
        # The library names its companions without saying where they are; loaded first, they are found by name.
        for name in _BESIDE:
            if (path.parent / name).exists():
                ctypes.CDLL(str(path.parent / name), mode=ctypes.RTLD_GLOBAL)
        driver = path.parent / "libintelocl.so"  # the CPU device of a SYCL build
        if driver.exists():
            os.putenv("OCL_ICD_FILENAMES", str(driver))
        self.functions = ctypes.CDLL(str(path))
        self.functions.dnnl_version.restype = POINTER(_Version)
        self.engine, self.stream = c_void_p(), c_void_p()
        self("engine_create", byref(self.engine), _CPU, c_size_t(0))
        self("stream_create", byref(self.stream), self.engine, _IN_ORDER)

    def __call__(self, function: str, *arguments: Any) -> None:
        """Call dnnl_<function>; a status other than success is what the library says to the problem."""
        status = getattr(self.functions, f"dnnl_{function}")(*arguments)
        if status:
            word = _STATUSES[status] if status < len(_STATUSES) else f"status {status}"
            raise Unsupported(f"{word} from dnnl_{function}")


def _find() -> Path:
    """The library among the files of the `onednn` distribution."""
    try:
        files = importlib.metadata.files("onednn") or []
    except importlib.metadata.PackageNotFoundError:
        raise ImportError("the distribution onednn is not installed") from None
    found = [Path(str(file.locate())).resolve() for file in files if file.name.startswith("libdnnl.so")]
    existing = [path for path in found if path.exists()]
    if not existing:
        raise ImportError("the distribution onednn holds no libdnnl.so")
    return existing[0]


@cache
def _library() -> _Library:
    return _Library()


class Onednn(Engine):
    """A compiled partition, executed on arguments that are made beforehand, and waited for."""

    @staticmethod
    def version() -> str:
        """With the runtime that the library was built on."""
        found = _library().functions.dnnl_version().contents
        runtime = _RUNTIMES.get(found.cpu_runtime, f"runtime {found.cpu_runtime}")
        return f"{found.major}.{found.minor}.{found.patch} ({runtime})"

    def __init__(self, task: Task, threads: int) -> None:
        """Graph, partition, compilation. How many threads take part is settled when the library is loaded."""
        dnnl = _library()
        shapes = (*task.resolved.input_shapes, task.resolved.output_shape)
        dtypes = [task.dtype] * len(task.resolved.input_shapes) + [task.out_dtype]
        tensors = [_logical(i, *one) for i, one in enumerate(zip(shapes, dtypes, strict=True))]
        self._arrays = [aligned(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        partition = _partition(dnnl, _operation(dnnl, task.resolved, tensors))
        compiled = c_void_p()
        dnnl("graph_compiled_partition_create", byref(compiled), partition)
        inputs, outputs = [pointer(one) for one in tensors[:-1]], [pointer(tensors[-1])]
        dnnl("graph_partition_compile", partition, compiled, *_list(inputs), *_list(outputs), dnnl.engine)
        *given, made = (_memory(dnnl, one, array) for one, array in zip(tensors, self._arrays, strict=True))
        self._kept = tensors  # the library holds their addresses
        self._execute = dnnl.functions.dnnl_graph_compiled_partition_execute
        self._arguments = (compiled, dnnl.stream, *_list(given), *_list([made]))
        self._wait, self._stream = dnnl.functions.dnnl_stream_wait, dnnl.stream

    def load(self, inputs: Sequence[np.ndarray]) -> None:
        """Copy to where the arguments point."""
        for array, values in zip(self._arrays, inputs, strict=False):
            array[...] = values

    def call(self) -> None:
        """Execute, and wait for the stream."""
        status = self._execute(*self._arguments) or self._wait(self._stream)
        if status:
            raise Unsupported(f"{_STATUSES[status] if status < len(_STATUSES) else status} when executed")

    def output(self) -> np.ndarray:
        """A copy, since the next call overwrites it."""
        return self._arrays[-1].copy()


def _logical(id: int, shape: Sequence[int], dtype: str) -> _Tensor:
    tensor = _Tensor(id=id, ndims=len(shape), data_type=_DATA_TYPES[dtype])
    tensor.property, tensor.layout_type = _VARIABLE, _STRIDED
    step = 1
    for axis in reversed(range(len(shape))):
        tensor.dims[axis], tensor.layout.strides[axis] = shape[axis], step
        step *= max(1, shape[axis])
    return tensor


def _operation(dnnl: _Library, resolved: Resolved, tensors: Sequence[_Tensor]) -> c_void_p:
    op = c_void_p()
    dnnl("graph_op_create", byref(op), c_size_t(0), _KINDS[resolved.op], resolved.op.encode())
    for name, value in _attributes(resolved).items():
        if isinstance(value, str):
            dnnl("graph_op_set_attr_str", op, _ATTRIBUTES[name], value.encode(), c_size_t(len(value)))
        elif isinstance(value, int):  # a scalar is a list of length zero
            dnnl("graph_op_set_attr_s64", op, _ATTRIBUTES[name], (c_int64 * 1)(value), c_size_t(0))
        else:
            dnnl("graph_op_set_attr_s64", op, _ATTRIBUTES[name], (c_int64 * len(value))(*value), c_size_t(len(value)))
    for tensor in tensors[:-1]:
        dnnl("graph_op_add_input", op, byref(tensor))
    dnnl("graph_op_add_output", op, byref(tensors[-1]))
    return op


def _attributes(resolved: Resolved) -> dict[str, Any]:
    """Those that the library's schema of the operation takes."""
    if resolved.op == "BiasAddBackward":
        return {"data_format": resolved.data_format}
    attributes: dict[str, Any] = {
        "strides": resolved.strides,
        "pads_begin": resolved.pads_begin,
        "pads_end": resolved.pads_end,
        "dilations": resolved.dilations,
        "groups": resolved.groups,
        "data_format": resolved.data_format,
        "weights_format": resolved.weights_format,
    }
    if resolved.op == "ConvTranspose":
        attributes["output_padding"] = resolved.output_padding
    elif resolved.op == "ConvolutionBackwardData":
        attributes["dst_shape"] = resolved.output_shape
    elif resolved.op.endswith("BackwardWeights"):
        attributes["weights_shape"] = resolved.output_shape
    return attributes


def _partition(dnnl: _Library, op: c_void_p) -> c_void_p:
    """The only partition of a graph of one operation."""
    graph, partition, supported = c_void_p(), c_void_p(), c_uint8()
    dnnl("graph_graph_create", byref(graph), _CPU)
    dnnl("graph_add_op", graph, op)
    dnnl("graph_graph_finalize", graph)
    dnnl("graph_graph_filter", graph, _FUSION)
    dnnl("graph_graph_get_partitions", graph, c_size_t(1), byref(partition))
    dnnl("graph_partition_is_supported", partition, byref(supported))
    if not supported.value:
        raise Unsupported("oneDNN makes no supported partition of it")
    return partition


def _memory(dnnl: _Library, tensor: _Tensor, array: np.ndarray) -> c_void_p:
    made = c_void_p()
    dnnl("graph_tensor_create", byref(made), byref(tensor), dnnl.engine, c_void_p(array.ctypes.data))
    return made


def _list(items: Sequence[Any]) -> tuple[c_size_t, Any]:
    return c_size_t(len(items)), (type(items[0]) * len(items))(*items)


ENGINE = Onednn
