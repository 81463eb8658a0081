"""Partitions: what a graph is compiled in, and why an operation cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from convgrad.dtypes import FLOATING
from convgrad.errors import GraphError
from convgrad.graph.operations import Op, schema_of
from convgrad.graph.tensors import LogicalTensor
from convgrad.spec.schemas import SCHEMAS, Schema

if TYPE_CHECKING:
    from convgrad.graph.compiled import CompiledPartition


class Partition:
    """One operation of a finalized graph as a unit of compilation."""

    def __init__(self, id: int, op: Op, engine_kind: str, fpmath_mode: str = "strict") -> None:
        """A partition of a verified operation."""
        self.id = id
        self.fpmath_mode = fpmath_mode
        self.ops = (op,)
        self.engine_kind = engine_kind
        self.reason = _why_not(op, engine_kind)  # that it cannot be compiled; None if it can

    def is_supported(self) -> bool:
        """Whether it can be compiled; if not, `reason` says why."""
        return self.reason is None

    def get_input_ports(self) -> list[LogicalTensor]:
        """What the operation reads, in its order."""
        return list(self.ops[0].inputs)

    def get_output_ports(self) -> list[LogicalTensor]:
        """What the operation makes."""
        return list(self.ops[0].outputs)

    def compile(
        self,
        inputs: Iterable[LogicalTensor] | None = None,
        outputs: Iterable[LogicalTensor] | None = None,
        *,
        constants: Mapping[int, Sequence[int]] | None = None,
    ) -> CompiledPartition:
        """Code for these tensors, one for each port, matched by id; the ports themselves if nothing is given.

        Inputs need a shape; what is missing of the outputs is inferred. `constants` holds the value of a shape tensor
        by id. Without it, and if nothing else tells the shape, compilation waits for the tensor given to `execute`.
        """
        from convgrad.graph.compiled import CompiledPartition

        op = self.ops[0]
        if self.reason is not None:
            raise GraphError(self.reason)
        given_inputs = _for_ports(op, "input", op.inputs, inputs)
        given_outputs = _for_ports(op, "output", op.outputs, outputs)
        changed = Op(op.id, op.kind, op.name, op.attrs, given_inputs, given_outputs)
        reason = _why_not(changed, self.engine_kind)
        if reason is not None:
            raise GraphError(reason)
        return CompiledPartition(changed, {} if constants is None else constants, self.fpmath_mode)

    def __str__(self) -> str:
        return f"partition {self.id}: {self.ops[0]}" + (f"; not supported: {self.reason}" if self.reason else "")


def _for_ports(
    op: Op, side: str, ports: Sequence[LogicalTensor], given: Iterable[LogicalTensor] | None
) -> list[LogicalTensor]:
    """What is given for each port, in the order of the ports."""
    if given is None:
        return list(ports)
    by_id = {tensor.id: tensor for tensor in given}
    ids = {port.id for port in ports}
    if by_id.keys() != ids:
        raise GraphError(
            f"{op.label}: compile needs one tensor for each {side} port, ids {sorted(ids)}; got {sorted(by_id)}"
        )
    for port in ports:
        tensor = by_id[port.id]
        if port.dtype not in ("undef", tensor.dtype):
            raise GraphError(f"{op.label}: {side} {port} is given as {tensor}; the types of its elements differ")
    return [by_id[port.id] for port in ports]


def _why_not(op: Op, engine_kind: str) -> str | None:
    """The reason for which convgrad cannot run the operation on these tensors; None if it can."""
    schema = schema_of(op.kind)
    if schema is None:
        return f"{op.label}: convgrad runs {', '.join(SCHEMAS)}, not {op.kind}"
    if engine_kind == "gpu":
        return f"{op.label}: engine_kind is gpu; convgrad runs on the CPU"
    for tensor in (*op.inputs, *op.outputs):
        if tensor.layout_type == "opaque":
            return f"{op.label}: {tensor} is opaque, a layout that only its maker can read; give strides, or layout any"
    return _why_not_dtypes(op, schema)


def _why_not_dtypes(op: Op, schema: Schema) -> str | None:
    count = len(schema.inputs)
    first = op.inputs[0].dtype
    if first not in FLOATING:
        return f"{op.label}: {op.inputs[0]}; convgrad computes on {', '.join(FLOATING)}"
    for tensor, is_shape in [(t, i >= count and schema.shape_attribute) for i, t in enumerate(op.inputs)]:
        if is_shape and tensor.dtype != "s32":
            return f"{op.label}: {schema.optional} is {tensor}; a tensor that tells a shape is s32"
        if not is_shape and tensor.dtype != first:
            return f"{op.label}: {tensor} and {op.inputs[0]} differ in type; all floating inputs must be of one type"
    out = op.outputs[0].dtype
    if out not in ("undef", first) and not (out == "f32" and first in ("bf16", "f16")):
        return f"{op.label}: {op.outputs[0]} cannot be made of {first}; give it that type, or f32 for 16-bit inputs"
    return None
