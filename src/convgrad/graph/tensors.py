"""Logical tensors: what is known of a tensor of a graph before there is memory for it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import islice
from math import prod
from typing import Any

from convgrad.errors import GraphError, shown
from convgrad.values import frozen, replace

DTYPES = {  # name: bytes of one element; None where the type is not a whole number of bytes or not known
    "f32": 4, "bf16": 2, "f16": 2, "f64": 8, "s32": 4, "s64": 8, "s8": 1, "u8": 1, "boolean": 1,
    "f8_e5m2": 1, "f8_e4m3": 1, "s4": None, "u4": None, "undef": None,
}  # fmt: skip
LAYOUT_TYPES = ("undef", "any", "strided", "opaque")
PROPERTY_TYPES = ("undef", "variable", "constant", "host_scalar")
MAX_RANK = 12
LARGEST = 2**63 - 1  # of an extent, a stride and the bytes of a tensor

Shape = tuple[int | None, ...]


@frozen
class LogicalTensor:
    """A tensor by its id, which is also what joins operations; two of the same id in one graph must be equal.

    `shape` is None while the rank is not known, and an extent in it is None while only that is not known. `strides`
    count elements; None leaves them to whoever makes the tensor, and means dense row-major for a tensor that is given.
    """

    id: int
    dtype: str = "f32"
    shape: Shape | None = None
    layout_type: str = "strided"
    strides: tuple[int, ...] | None = None
    property_type: str = "undef"

    def __post_init__(self) -> None:
        """Bring lists to tuples, fill in dense strides, and refuse what no memory could hold."""
        object.__setattr__(self, "id", natural("a tensor id", self.id))
        _check_word(self, "dtype", DTYPES)
        _check_word(self, "layout_type", LAYOUT_TYPES)
        _check_word(self, "property_type", PROPERTY_TYPES)
        shape = _extents(self.id, self.shape)
        object.__setattr__(self, "shape", shape)
        strides = _strides(self.id, self.strides, shape)
        object.__setattr__(self, "strides", strides if self.layout_type == "strided" and self.is_known else None)
        if self.is_known:
            _check_size(self)

    @property
    def is_known(self) -> bool:
        """Whether every extent is known."""
        return self.shape is not None and None not in self.shape

    @property
    def known_shape(self) -> tuple[int, ...] | None:
        """The shape if every extent is known, else None."""
        return self.shape if self.is_known else None  # pyright: ignore[reportReturnType]

    @property
    def element_bytes(self) -> int | None:
        """Bytes of one element, None where that is not a whole number."""
        return DTYPES[self.dtype]

    @property
    def memory_bytes(self) -> int:
        """Bytes from the first to the last element of a tensor whose shape is known; 0 if it is empty."""
        assert self.known_shape is not None
        strides = dense_strides(self.known_shape) if self.strides is None else self.strides
        return span(self.known_shape, strides) * (self.element_bytes or 1)

    def with_shape(self, shape: Sequence[int], strides: Sequence[int] | None = None) -> LogicalTensor:
        """The same tensor, strided, with its shape known."""
        return replace(
            self, shape=tuple(shape), layout_type="strided", strides=None if strides is None else tuple(strides)
        )

    def __str__(self) -> str:
        extents = "unknown rank" if self.shape is None else "x".join("?" if e is None else str(e) for e in self.shape)
        return f"tensor {self.id} ({self.dtype} {extents or 'scalar'})"


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements; an extent of 0 counts as 1, as oneDNN does."""
    return tuple(prod(max(1, extent) for extent in shape[axis + 1 :]) for axis in range(len(shape)))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory that a strided tensor covers; strides of axes of extent 1 do not matter."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * abs(stride) for extent, stride in zip(shape, strides, strict=True))


def _check_word(tensor: LogicalTensor, field: str, words: Sequence[str] | dict) -> None:
    value = getattr(tensor, field)
    if not isinstance(value, str) or value not in words:
        raise GraphError(f"tensor {tensor.id}: {field} is {shown(value)}; it must be one of {', '.join(words)}")


def whole(value: Any) -> int | None:
    """The value as an int, NumPy's integers too; None if it is no integer."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def natural(what: str, value: Any) -> int:
    """An id; anything else is refused."""
    id = whole(value)
    if id is None or not 0 <= id < 2**64:
        raise GraphError(f"{what} is {shown(value)}; it must be an integer from 0 to 2^64 - 1")
    return id


def _numbers(id: int, name: str, one: str, values: Any) -> Shape:
    """Extents, or strides, as ints; None stays None."""
    try:
        given = tuple(islice(values, MAX_RANK + 1))
    except TypeError:
        raise GraphError(f"tensor {id}: {name} are {shown(values)}; give a list of integers") from None
    if len(given) > MAX_RANK:
        raise GraphError(f"tensor {id}: more than {MAX_RANK} {name}; a tensor has at most {MAX_RANK} axes")
    numbers = [value if value is None else whole(value) for value in given]
    for number, value in zip(numbers, given, strict=True):
        if value is not None and (number is None or not 0 <= number <= LARGEST):
            raise GraphError(f"tensor {id}: {one} is {shown(value)}; {name} are integers from 0 to 2^63 - 1")
    return tuple(numbers)


def _extents(id: int, shape: Sequence[int | None] | None) -> Shape | None:
    if shape is None:
        return None
    shape = _numbers(id, "extents", "an extent", shape)
    return None if shape == (None,) else shape  # the file format spells both with the same list


def _strides(id: int, strides: Sequence[int] | None, shape: Shape | None) -> tuple[int, ...] | None:
    if strides is None:
        return None if shape is None or None in shape else dense_strides(shape)  # pyright: ignore[reportArgumentType]
    steps = _numbers(id, "strides", "a stride", strides)
    if None in steps:
        raise GraphError(f"tensor {id}: a stride is None; give every stride, or none of them")
    if shape is not None and len(steps) != len(shape):
        raise GraphError(f"tensor {id}: {len(steps)} strides for {len(shape)} axes; give one for each axis")
    return steps  # pyright: ignore[reportReturnType]


def _check_size(tensor: LogicalTensor) -> None:
    """Those of the dense strides too, which an empty tensor has without memory."""
    elements = prod(max(1, extent) for extent in tensor.known_shape or ())
    size = max(tensor.memory_bytes, elements * (tensor.element_bytes or 1))
    if size > LARGEST:
        raise GraphError(f"{tensor}: {size} bytes are more than any memory can be addressed with; check the shape")
