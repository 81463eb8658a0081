"""A graph of operations joined by the ids of their tensors."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from convgrad.dtypes import FLOATING
from convgrad.errors import GraphError, shown
from convgrad.graph.operations import Op, verified
from convgrad.graph.partition import Partition
from convgrad.graph.tensors import LogicalTensor
from convgrad.settings import FPMATH_MODES
from convgrad.values import replace

if TYPE_CHECKING:
    from convgrad.graph.compiled import CompiledGraph

ENGINE_KINDS = ("cpu", "gpu", "any")
POLICIES = ("fusion", "debug")


class Graph:
    """Operations that grow until `finalize`, and are cut into partitions after it.

    Two graphs are equal when their modes and their operations are, in the order in which they were added.
    """

    def __init__(
        self, engine_kind: str = "cpu", *, fpmath_mode: str = "strict", fpmath_mode_apply_to_int: bool = False
    ) -> None:
        """An empty graph."""
        self.engine_kind = _word("engine_kind", engine_kind, ENGINE_KINDS)
        self._finalized = False
        self._ops: dict[int, Op] = {}  # in topological order once finalized
        self._partitions: tuple[Partition, ...] = ()
        self.set_fpmath_mode(fpmath_mode, fpmath_mode_apply_to_int)

    def set_fpmath_mode(self, mode: str, apply_to_int: bool = False) -> None:
        """Allow f32 products of operands of less precision; `strict` leaves it to what surrounds the compilation.

        That is `convgrad.fpmath_mode`, else CONVGRAD_FPMATH_MODE.
        """
        self._must_be_open("set_fpmath_mode")
        self.fpmath_mode = _word("fpmath_mode", mode, FPMATH_MODES)
        self.fpmath_mode_apply_to_int = bool(apply_to_int)

    def add_op(self, op: Op) -> None:
        """Take a verified copy of an operation, with its defaults filled in; one whose id is taken is ignored."""
        self._must_be_open("add_op")
        if not isinstance(op, Op):
            raise GraphError(f"add_op got {shown(op)}; it takes an Op")
        if op.id not in self._ops:
            self._ops[op.id] = verified(op)

    @property
    def ops(self) -> tuple[Op, ...]:
        """The operations, in the order in which they were added."""
        return tuple(self._ops.values())

    @property
    def is_finalized(self) -> bool:
        """Whether the graph is closed for additions."""
        return self._finalized

    def finalize(self) -> None:
        """Join the operations by the ids of their tensors; a second call changes nothing."""
        if self._finalized:
            return
        self._tensors = _collect_tensors(self.ops)
        self._producers = _collect_producers(self.ops)
        order = _in_topological_order(self.ops, self._producers)
        self._partitions = tuple(
            Partition(i, op, self.engine_kind, self.fpmath_mode)
            for i, op in enumerate(op for op in order if op.kind != "End")
        )
        self._finalized = True

    def get_partitions(self, policy: str = "fusion") -> list[Partition]:
        """The units of compilation in topological order, one for each operation under either policy."""
        _word("policy", policy, POLICIES)
        self._must_be_final("get_partitions")
        return list(self._partitions)

    def get_input_ports(self) -> list[LogicalTensor]:
        """Tensors that no operation of the graph makes, each once, in the order of the operations."""
        self._must_be_final("get_input_ports")
        return [tensor for id, tensor in self._tensors.items() if id not in self._producers]

    def get_output_ports(self) -> list[LogicalTensor]:
        """Tensors that no operation of the graph reads, or that an End operation marks."""
        self._must_be_final("get_output_ports")
        read = {tensor.id for op in self.ops if op.kind != "End" for tensor in op.inputs}
        marked = {tensor.id for op in self.ops if op.kind == "End" for tensor in op.inputs}
        return [
            tensor for id, tensor in self._tensors.items() if id in self._producers and (id not in read or id in marked)
        ]

    def compile(self, constants: Mapping[int, Sequence[int]] | None = None) -> CompiledGraph:
        """Compile every partition, in order, shapes flowing from one to the next.

        `constants` gives values of shape tensors by id; those that are not given here come with `execute`.
        """
        from convgrad.graph.compiled import CompiledGraph

        self.finalize()
        return CompiledGraph(self, {} if constants is None else constants)

    def with_dtype(self, dtype: str) -> Graph:
        """The same graph, open, with every floating tensor of another type."""
        _word("dtype", dtype, FLOATING)

        def changed(tensors: Sequence[LogicalTensor]) -> list[LogicalTensor]:
            return [replace(tensor, dtype=dtype) if tensor.dtype in FLOATING else tensor for tensor in tensors]

        graph = Graph(
            self.engine_kind, fpmath_mode=self.fpmath_mode, fpmath_mode_apply_to_int=self.fpmath_mode_apply_to_int
        )
        for op in self.ops:
            graph.add_op(Op(op.id, op.kind, op.name, op.attrs, changed(op.inputs), changed(op.outputs)))
        return graph

    def __eq__(self, other: object) -> bool:
        """By modes and operations."""
        if not isinstance(other, Graph):
            return NotImplemented
        return self._key() == other._key()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it grows

    def __str__(self) -> str:
        return "\n".join([f"graph of {len(self._ops)} operations, fpmath_mode {self.fpmath_mode}", *map(str, self.ops)])

    def _key(self) -> tuple:
        return self.engine_kind, self.fpmath_mode, self.fpmath_mode_apply_to_int, self.ops

    def _must_be_open(self, what: str) -> None:
        if self._finalized:
            raise GraphError(f"{what}: the graph is finalized and takes no more changes; build a new graph")

    def _must_be_final(self, what: str) -> None:
        if not self._finalized:
            raise GraphError(f"{what}: the graph is not finalized; call finalize() first")


def _word(what: str, value: str, words: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in words:
        raise GraphError(f"{what} is {shown(value)}; it must be one of {', '.join(words)}")
    return value


def _collect_tensors(ops: Sequence[Op]) -> dict[int, LogicalTensor]:
    """Each tensor once; every use of an id must say the same of it."""
    first: dict[int, tuple[Op, LogicalTensor]] = {}
    for op in ops:
        for tensor in (*op.inputs, *op.outputs):
            user, known = first.setdefault(tensor.id, (op, tensor))
            if known != tensor:
                raise GraphError(
                    f"tensor {tensor.id} is described in two ways: {known.shape} {known.dtype} {known.layout_type} "
                    f"{known.strides} {known.property_type} in {user.label}, {tensor.shape} {tensor.dtype} "
                    f"{tensor.layout_type} {tensor.strides} {tensor.property_type} in {op.label}; make them equal"
                )
    return {id: tensor for id, (_, tensor) in first.items()}


def _collect_producers(ops: Sequence[Op]) -> dict[int, Op]:
    """Which operation makes a tensor; there can be only one."""
    producers: dict[int, Op] = {}
    for op in ops:
        for tensor in op.outputs:
            maker = producers.setdefault(tensor.id, op)
            if maker is not op or sum(tensor.id == other.id for other in op.outputs) > 1:
                raise GraphError(
                    f"tensor {tensor.id} is made twice, by {maker.label} and by {op.label}; give it one maker"
                )
    return producers


def _in_topological_order(ops: Sequence[Op], producers: Mapping[int, Op]) -> list[Op]:
    """Makers before readers, and otherwise the order in which the operations were added."""
    waits_for = {op.id: {producers[t.id].id for t in op.inputs if t.id in producers} for op in ops}
    readers: dict[int, list[int]] = {op.id: [] for op in ops}
    for reader, makers in waits_for.items():
        for maker in makers:
            readers[maker].append(reader)
    place = {op.id: i for i, op in enumerate(ops)}
    ready = [place[id] for id, makers in waits_for.items() if not makers]
    heapq.heapify(ready)
    order = []
    while ready:
        op = ops[heapq.heappop(ready)]
        order.append(op)
        for reader in readers[op.id]:
            waits_for[reader].discard(op.id)
            if not waits_for[reader]:
                heapq.heappush(ready, place[reader])
    if len(order) < len(ops):
        stuck = ", ".join(op.label for op in ops if waits_for[op.id])
        raise GraphError(f"the graph has a cycle through or before {stuck}; an operation cannot need its own result")
    return order
