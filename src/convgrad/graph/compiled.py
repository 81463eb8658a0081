"""Compiled partitions and graphs: code for tensors of known shape, run as often as wanted, from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from convgrad import settings
from convgrad.errors import ConvError, GraphError, shown
from convgrad.graph import memory
from convgrad.graph.operations import Op, in_op, schema_of
from convgrad.graph.tensors import LogicalTensor
from convgrad.problem.canonicalize import ROLES, canonicalize
from convgrad.spec.resolve import Resolved, resolve
from convgrad.values import frozen, replace

if TYPE_CHECKING:
    from convgrad.graph.graph import Graph
    from convgrad.problem.conv import ConvProblem
    from convgrad.runtime import Kernel

Arrays = Mapping[int, Any]  # by the id of the tensor
Shapes = Mapping[int, tuple[int, ...]]  # values of shape tensors, by id


@frozen
class Code:
    """An operation on tensors that are known in full, and the kernel for it."""

    resolved: Resolved
    problem: ConvProblem
    kernel: Kernel | None  # None if the result has no elements
    inputs: tuple[LogicalTensor, ...]  # without the one that tells a shape
    output: LogicalTensor


class CompiledPartition:
    """One operation, compiled; made by `Partition.compile`."""

    def __init__(self, op: Op, constants: Mapping[int, Sequence[int]], fpmath_mode: str = "strict") -> None:
        """Compile now, unless the shape of the result is still to come with `execute`."""
        self.op = op
        self.fpmath_mode = fpmath_mode if fpmath_mode != "strict" else settings.fpmath_mode()
        self.shape_tensor = shape = shape_tensor(op)
        _check_known(op)
        check_by_id(op.label, constants)
        value = None
        if shape is not None and shape.id in constants:
            value = memory.shape_value(shape, constants[shape.id], op.label)
        told_elsewhere = op.outputs[0].is_known or "dst_shape" in op.attrs or "weights_shape" in op.attrs
        self.code = None if shape is not None and value is None and not told_elsewhere else self._compile(value)

    @property
    def is_deferred(self) -> bool:
        """Whether compilation waits for the value of a shape tensor."""
        return self.code is None

    def _compile(self, value: tuple[int, ...] | None) -> Code:
        return _compile(self.op, value, self.fpmath_mode)

    def query_logical_tensor(self, id: int) -> LogicalTensor:
        """A tensor of the operation, with the shape and strides that were compiled for."""
        tensors = {tensor.id: tensor for tensor in (*self.op.inputs, *self.op.outputs)}
        if self.code is not None:
            tensors |= {tensor.id: tensor for tensor in (*self.code.inputs, self.code.output)}
        if id not in tensors:
            raise GraphError(f"{self.op.label}: no tensor {id}; its tensors are {sorted(tensors)}")
        return tensors[id]

    def execute(self, inputs: Arrays, outputs: Arrays | None = None) -> dict[int, np.ndarray]:
        """Run on arrays by the id of their tensor; results that are given no array get a new one.

        An input that lies otherwise than compiled for is copied; an array for a result must lie as compiled for.
        """
        owner = self.op.label
        check_by_id(owner, inputs, {} if outputs is None else outputs)
        missing = [tensor.id for tensor in self.op.inputs if tensor.id not in inputs]
        if missing:
            raise GraphError(f"{owner}: execute needs an array for tensor {missing[0]}")
        code = self.code
        if self.shape_tensor is not None:
            value = memory.shape_value(self.shape_tensor, inputs[self.shape_tensor.id], owner)
            code = code or self._compile(value)
            if value != code.output.shape and _resolve(self.op, value).output_shape != code.output.shape:
                raise GraphError(
                    f"{owner}: {self.shape_tensor} holds {list(value)}, but the code was compiled for a result of "
                    f"{list(code.output.known_shape or ())}; compile again for another shape"
                )
        assert code is not None
        given = [memory.as_input(tensor, inputs[tensor.id], owner) for tensor in code.inputs]
        out = code.output
        if outputs and out.id in outputs:
            result = memory.as_output(out, outputs[out.id], owner, given)
        else:
            result = memory.empty(out)
        _call(code, given, result)
        return {out.id: result}


class CompiledGraph:
    """All partitions of a graph, compiled; made by `Graph.compile`."""

    def __init__(self, graph: Graph, constants: Mapping[int, Sequence[int]]) -> None:
        """Compile what can be before the values of shape tensors that are not given."""
        reasons = [partition.reason for partition in graph.get_partitions() if partition.reason]
        if reasons:
            raise GraphError("the graph cannot be run: " + "; ".join(reasons))
        check_by_id("the graph", constants)
        self.graph = graph
        self._constants = dict(constants)
        self._by_shapes: dict[tuple, list[CompiledPartition]] = {}
        self._compiling = threading.Lock()
        self.partitions = self._compile({})  # up to the first that is deferred

    @property
    def is_deferred(self) -> bool:
        """Whether some partitions wait for the value of a shape tensor."""
        return any(partition.is_deferred for partition in self.partitions)

    def query_logical_tensor(self, id: int) -> LogicalTensor:
        """A tensor of the graph, with the shape and strides that were compiled for."""
        for partition in self.partitions:
            if any(tensor.id == id for tensor in (*partition.op.inputs, *partition.op.outputs)):
                return partition.query_logical_tensor(id)
        raise GraphError(f"no compiled partition has a tensor {id}")

    def execute(
        self,
        inputs: Arrays,
        outputs: Arrays | None = None,
        *,
        keep_all: bool = False,
        on_step: Callable[[CompiledPartition, float], None] | None = None,
    ) -> dict[int, np.ndarray]:
        """Run every partition; arrays go in and come out by the id of their tensor.

        What is only passed from one operation to another is dropped after its last use, unless `keep_all` is set.
        `on_step` is told of every partition that is done, and of the seconds it took.
        """
        check_by_id("the graph", inputs, {} if outputs is None else outputs)
        needed = [port.id for port in self.graph.get_input_ports()]
        missing = [id for id in needed if id not in inputs]
        if missing:
            raise GraphError(f"execute needs an array for tensor {missing[0]}; the inputs are {needed}")
        partitions = self.compiled_for(inputs)
        live = _checked_arrays(partitions, inputs, outputs or {})
        wanted = {port.id for port in self.graph.get_output_ports()}
        last_use = {tensor.id: step for step, partition in enumerate(partitions) for tensor in partition.op.inputs}
        results: dict[int, np.ndarray] = {}
        for step, partition in enumerate(partitions):
            start = time.perf_counter()
            made = partition.execute(live, outputs)
            if on_step is not None:
                on_step(partition, time.perf_counter() - start)
            live |= made
            results |= {id: array for id, array in made.items() if keep_all or id in wanted}
            live = {id: array for id, array in live.items() if last_use.get(id, -1) > step}
        return results

    def compiled_for(self, inputs: Arrays) -> list[CompiledPartition]:
        """The partitions that `execute` would run on these inputs, every one of them compiled."""
        return self._for_shapes(inputs) if self.is_deferred else self.partitions

    def _for_shapes(self, inputs: Arrays) -> list[CompiledPartition]:
        """Partitions for the values of the shape tensors, compiled once for each set of values."""
        tensors = [tensor for op in self.graph.ops if (tensor := shape_tensor(op)) is not None]
        values = {t.id: memory.shape_value(t, inputs[t.id], "the graph") for t in tensors}
        with self._compiling:
            key = tuple(values.items())
            if key not in self._by_shapes:
                self._by_shapes[key] = self._compile(values)
            return self._by_shapes[key]

    def _compile(self, shapes: Shapes) -> list[CompiledPartition]:
        """Partitions in order, what one makes known to the next, until one has to wait for a shape."""
        known: dict[int, LogicalTensor] = {}
        compiled: list[CompiledPartition] = []
        constants = {**self._constants, **shapes}
        for partition in self.graph.get_partitions():
            inputs = [known.get(port.id, port) for port in partition.get_input_ports()]
            step = partition.compile(inputs, constants=constants)
            compiled.append(step)
            if step.code is None:
                break
            known[step.code.output.id] = step.code.output
        codes = [step.code for step in compiled if step.code is not None]
        memory.check_size([tensor for code in codes for tensor in (*code.inputs, code.output)], "the graph")
        return compiled


def _checked_arrays(partitions: Sequence[CompiledPartition], inputs: Arrays, outputs: Arrays) -> dict[int, Any]:
    """The inputs of a graph as its kernels read them, once nothing is wrong with any array, so that none is written."""
    live = dict(inputs)
    codes = [partition.code for partition in partitions if partition.code is not None]
    for code in codes:
        for tensor in code.inputs:
            if tensor.id in live:
                live[tensor.id] = memory.as_input(tensor, live[tensor.id], "the graph")
    taken = [array for array in live.values() if isinstance(array, np.ndarray)]
    for code in codes:
        if code.output.id in outputs:
            taken.append(memory.as_output(code.output, outputs[code.output.id], "the graph", taken))
    unknown = outputs.keys() - {code.output.id for code in codes}
    if unknown:
        raise GraphError(f"execute was given an array for tensor {min(unknown)}, which no operation makes")
    return live


def check_by_id(owner: str, *given: Any) -> None:
    """Refuse a list where a dictionary belongs."""
    for arrays in given:
        if not isinstance(arrays, Mapping):
            raise GraphError(f"{owner}: arrays and extents are given by the ids of their tensors; got {shown(arrays)}")


def shape_tensor(op: Op) -> LogicalTensor | None:
    """The input of an operation that tells the shape of its result, if it has one."""
    schema = schema_of(op.kind)
    if schema is None or schema.shape_attribute is None or len(op.inputs) == len(schema.inputs):
        return None
    return op.inputs[-1]


def _numeric_inputs(op: Op) -> tuple[LogicalTensor, ...]:
    return op.inputs if shape_tensor(op) is None else op.inputs[:-1]


def _check_known(op: Op) -> None:
    for tensor in _numeric_inputs(op):
        if not tensor.is_known or tensor.layout_type == "undef":
            what = "its shape" if tensor.layout_type != "undef" else "its layout"
            raise GraphError(f"{op.label}: input {tensor}: {what} must be known to compile")


def _resolve(op: Op, shape: tuple[int, ...] | None, output_shape: tuple[int, ...] | None = None) -> Resolved:
    shapes = [tensor.known_shape or () for tensor in _numeric_inputs(op)]
    try:
        return resolve(op.kind, op.attrs, shapes, shape_input=shape, output_shape=output_shape)
    except ConvError as error:
        raise in_op(op, error) from error


def _compile(op: Op, shape: tuple[int, ...] | None, fpmath_mode: str) -> Code:
    """Resolve, check and hand to the compiler; `shape` is the value of the shape tensor."""
    from convgrad.runtime import kernel_for

    inputs = tuple(replace(tensor, strides=memory.strides_of(tensor)) for tensor in _numeric_inputs(op))
    resolved = _resolve(op, shape, op.outputs[0].known_shape)
    output = _final_output(op, resolved.output_shape, inputs[0].dtype)
    memory.check_size((*inputs, output), op.label)
    memory.check_output_layout(output, op.label)
    has_bias = len(inputs) == 3
    problem = canonicalize(
        resolved,
        input_strides=[memory.strides_of(tensor) for tensor in inputs[:2]],  # one for BiasAddBackward
        output_strides=memory.strides_of(output),
        dtype=inputs[0].dtype,
        out_dtype=output.dtype,
        bias_stride=memory.strides_of(inputs[2])[0] if has_bias else None,
        fpmath_mode=fpmath_mode,
    )
    kernel = None if 0 in resolved.output_shape else kernel_for(problem)
    return Code(resolved, problem, kernel, inputs, output)


def _final_output(op: Op, shape: tuple[int, ...], dtype: str) -> LogicalTensor:
    """The result as it will lie in memory: as asked for, else dense."""
    asked = op.outputs[0]
    if asked.shape is not None and not (
        len(asked.shape) == len(shape) and all(a in (None, b) for a, b in zip(asked.shape, shape, strict=True))
    ):
        raise GraphError(f"{op.label}: the result is {asked}, but inputs and attributes make it {list(shape)}")
    return LogicalTensor(
        asked.id, dtype if asked.dtype == "undef" else asked.dtype, shape, "strided", asked.strides, asked.property_type
    )


def _call(code: Code, inputs: Sequence[np.ndarray], output: np.ndarray) -> None:
    """Run the kernel on addresses, each in the place that its role in the trilinear form has."""
    if code.kernel is None:
        return
    first, *rest = inputs
    if code.resolved.op == "BiasAddBackward":
        rest = [np.ones((), first.dtype)]  # the sum of y is its gradient against an x of ones
    arrays = dict(zip(ROLES[code.resolved.op], (first, rest[0], output), strict=True))
    bias = rest[1].ctypes.data if len(rest) > 1 else 0
    code.kernel(arrays["x"].ctypes.data, arrays["w"].ctypes.data, arrays["y"].ctypes.data, bias)
