"""Operations of a graph: what they are called, what they take, and how their attributes are spelled in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convgrad.errors import AttributeRuleError, ConvError, GraphError, shown
from convgrad.graph.tensors import MAX_RANK, LogicalTensor, natural, whole
from convgrad.spec.attributes import parse_attributes
from convgrad.spec.schemas import ATTRIBUTE_ALIASES, OP_ALIASES, SCHEMAS, Schema

_KINDS = {name.lower(): name for name in (*SCHEMAS, *OP_ALIASES, "End", "Wildcard")}
LARGEST_F32 = 3.5e38  # of a number in a file, with room for one that was rounded to be written
_ABSENT_AS_ZEROS = {"output_padding", "dst_shape", "weights_shape"}
# oneDNN refuses the attribute where its schema does not have it, so a file carries it there only if it says something.
_ONEDNN_OUTPUT_PADDING = {"ConvTranspose", "ConvolutionBackwardData"}


class Op:
    """One operation: attributes and tensors can be appended until a graph has taken its copy."""

    def __init__(
        self,
        id: int,
        kind: str,
        name: str = "",
        attrs: Mapping[str, Any] | None = None,
        inputs: Iterable[LogicalTensor] = (),
        outputs: Iterable[LogicalTensor] = (),
    ) -> None:
        """An operation of any kind; a kind that convgrad does not know can be in a graph, but not run."""
        id = natural("an operation id", id)
        if not isinstance(kind, str) or not kind:
            raise GraphError(
                f"op {id}: kind is {shown(kind)}; it must be the name of an operation, such as ConvTranspose"
            )
        self.id = id
        self.kind = canonical_kind(kind)
        self.name = str(name)
        if attrs is not None and not isinstance(attrs, Mapping):
            raise GraphError(f"{self.label}: attrs is {shown(attrs)}; give values by the names of the attributes")
        self.attrs = dict(attrs or {})
        self.inputs = _tensors(self, "inputs", inputs)
        self.outputs = _tensors(self, "outputs", outputs)

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute a value."""
        self.attrs[name] = value

    def add_input(self, tensor: LogicalTensor) -> None:
        """Append an input."""
        self.inputs += _tensors(self, "inputs", (tensor,))

    def add_output(self, tensor: LogicalTensor) -> None:
        """Append an output."""
        self.outputs += _tensors(self, "outputs", (tensor,))

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"op {self.id} {self.name!r} ({self.kind})" if self.name else f"op {self.id} ({self.kind})"

    def __eq__(self, other: object) -> bool:
        """By everything that it is made of."""
        return self._key() == other._key() if isinstance(other, Op) else NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it grows

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        def ids(tensors: Iterable[LogicalTensor]) -> str:
            return ", ".join(map(str, tensors)) or "nothing"

        return f"{self.label}: {ids(self.inputs)} -> {ids(self.outputs)}"

    def _key(self) -> tuple:
        return self.id, self.kind, self.name, self.attrs, self.inputs, self.outputs


def _tensors(op: Op, side: str, given: Any) -> tuple[LogicalTensor, ...]:
    tensors = tuple(given) if hasattr(given, "__iter__") else (given,)
    for each in tensors:
        if not isinstance(each, LogicalTensor):
            raise GraphError(f"{op.label}: its {side} are given {shown(each)}; give a list of LogicalTensor")
    return tensors


def _kept_value(op: Op, name: str, value: Any) -> Any:
    """An attribute of an operation that is only kept: what a file can hold, and nothing else."""
    if isinstance(value, str | bool):
        return value
    many = isinstance(value, list | tuple)
    numbers = tuple(_kept_number(entry) for entry in (value if many else (value,)))
    if None in numbers:
        raise GraphError(
            f"{op.label}: {name} is {shown(value)}, which no file can hold; integers have 64 bits, other numbers are "
            "finite in f32"
        )
    return numbers if many else numbers[0]


def _kept_number(value: Any) -> int | float | None:
    if isinstance(value, float):
        return value if abs(value) <= LARGEST_F32 else None
    number = whole(value)
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


def canonical_kind(kind: str) -> str:
    """A kind in the letter case of the specification; what is not known stays as it is."""
    return _KINDS.get(kind.lower(), kind)


def schema_of(kind: str) -> Schema | None:
    """The schema of an operation by any of its names; None if convgrad cannot run it."""
    return SCHEMAS.get(OP_ALIASES.get(kind, kind))


def known_attributes(kind: str) -> set[str] | None:
    """Names under which an operation takes attributes; None if it is not known."""
    schema = schema_of(kind)
    if schema is None:
        return None
    names = {attribute.name for attribute in schema.attributes}
    return names | {old for old, new in ATTRIBUTE_ALIASES.items() if new in names}


def verified(op: Op) -> Op:
    """A copy under its present name, with every default filled in; GraphError if it breaks its schema."""
    schema = schema_of(op.kind)
    if schema is None:
        attrs = {name: _kept_value(op, name, value) for name, value in op.attrs.items()}
        return Op(op.id, op.kind, op.name, attrs, op.inputs, op.outputs)
    most = len(schema.inputs) + (schema.optional is not None)
    if not len(schema.inputs) <= len(op.inputs) <= most:
        names = ", ".join(schema.inputs) + (f" and, if you like, {schema.optional}" if schema.optional else "")
        raise GraphError(f"{op.label}: {len(op.inputs)} inputs; it takes {names}")
    if len(op.outputs) != 1:
        raise GraphError(f"{op.label}: {len(op.outputs)} outputs; it has one, {schema.output}")
    try:
        attrs = parse_attributes(op.kind, op.attrs)
    except AttributeRuleError as error:
        raise GraphError(str(in_op(op, error))) from error
    for pads in attrs.keys() & {"pads_begin", "pads_end"}:
        if attrs[pads] is None:  # files always have them
            attrs[pads] = (0,) * len(attrs["strides"])
    attrs = {name: value for name, value in attrs.items() if value is not None}
    return Op(op.id, schema.op, op.name, attrs, op.inputs, op.outputs)


def file_attributes(op: Op) -> dict[str, Any]:
    """Attributes as oneDNN spells them in a file, those included that were not given."""
    schema = schema_of(op.kind)
    if schema is None:
        return dict(op.attrs)
    attributes = {}
    for attribute in schema.attributes:
        value = op.attrs.get(attribute.name)
        if attribute.name == "auto_pad" and value == "NONE":
            value = "None"
        elif attribute.name in _ABSENT_AS_ZEROS and value is None:
            if attribute.name == "output_padding" and op.kind not in _ONEDNN_OUTPUT_PADDING:
                continue
            value = (0,) * MAX_RANK
        attributes[attribute.name] = value
    return attributes


def in_op(op: Op, error: ConvError) -> ConvError:
    """The same mistake, told with the operation it was found in."""
    return type(error)(f"{op.label}: {str(error).removeprefix(op.kind + ': ')}")
