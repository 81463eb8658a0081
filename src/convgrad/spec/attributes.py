"""Attributes of an operation: names, types, ranges and defaults."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from convgrad.errors import AttributeRuleError, shown
from convgrad.spec.schemas import ATTRIBUTE_ALIASES, DEFAULTS_OF_ALIASES, Attribute, Schema, schema_of

LARGEST = 2**62  # of an attribute, an extent, and the elements of a tensor: address arithmetic stays within 64 bits
MOST_ENTRIES = 128  # of a list: NumPy and PyTorch have tensors of at most 64 axes

_KINDS = {
    "ints": "a list of integers, one per spatial axis",
    "shape": "a list of integers, one per axis",
    "int": "an integer",
    "string": "a string",
}


def parse_attributes(op: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every attribute of the operation under its present name, checked, with defaults; lists become tuples.

    Strings come back in upper case. An attribute that is absent and has no default is None, and so is a list of
    zeros that stands for "not given" (output_padding, dst_shape, weights_shape).
    """
    schema = schema_of(op)
    values = {attribute.name: attribute.default for attribute in schema.attributes}
    values |= DEFAULTS_OF_ALIASES.get(op, {})
    seen: dict[str, str] = {}
    for spelled, value in given.items():
        attribute = _look_up(schema, spelled)
        if attribute.name in seen:
            raise AttributeRuleError(
                f"{schema.op}: {spelled} and {seen[attribute.name]} are two names of one attribute; give one of them"
            )
        seen[attribute.name] = spelled
        values[attribute.name] = _parse(schema.op, attribute, spelled, value)
    for attribute in schema.attributes:
        if attribute.required and attribute.name not in seen:
            raise AttributeRuleError(
                f"{schema.op}: the required attribute {attribute.name} is missing; give {_KINDS[attribute.kind]}"
            )
    return values


def integer(op: str, name: str, value: Any, *, least: int = 0) -> int:
    """The value as an int; what is not an integer, or out of range, is refused under the name of the attribute."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        raise AttributeRuleError(f"{op}: {name} holds {shown(value)}, which is a truth value; give an integer")
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError):  # of a number that PyTorch keeps no memory for
        kind = type(value).__name__
        raise AttributeRuleError(
            f"{op}: {name} holds {shown(value)}, which is of type {kind}; give an integer"
        ) from None
    if not least <= number < LARGEST:
        rule = f"at least {least}" if number < least else f"less than {LARGEST}"
        raise AttributeRuleError(f"{op}: {name} holds {shown(number)}, but must be {rule}")
    return number


def integers(op: str, name: str, value: Any, *, least: int = 0) -> tuple[int, ...]:
    """A list, tuple or one-dimensional array of integers, as a tuple."""
    # a mapping is told by its keys: asking whether a list is one takes 1 ms, the first time in a process
    sequence = hasattr(value, "__len__") and hasattr(value, "__getitem__") and not hasattr(value, "keys")
    if isinstance(value, str | bytes) or not sequence:
        raise AttributeRuleError(
            f"{op}: {name} is {shown(value)}, which is of type {type(value).__name__}; give a list of integers"
        )
    if getattr(value, "ndim", 1) != 1:
        raise AttributeRuleError(f"{op}: {name} has {value.ndim} axes, but must be one-dimensional")
    if len(value) > MOST_ENTRIES:  # before a list of millions is looked at
        raise AttributeRuleError(f"{op}: {name} has {len(value)} entries, more than any tensor has axes; give fewer")
    return tuple(integer(op, name, entry, least=least) for entry in value)


def _look_up(schema: Schema, spelled: str) -> Attribute:
    attribute = schema.attribute(ATTRIBUTE_ALIASES.get(spelled, spelled))
    if attribute is None:
        known = ", ".join(attribute.name for attribute in schema.attributes)
        raise AttributeRuleError(f"{schema.op}: there is no attribute {shown(spelled)}; the attributes are {known}")
    return attribute


def _parse(op: str, attribute: Attribute, spelled: str, value: Any) -> Any:
    match attribute.kind:
        case "int":
            return integer(op, spelled, value, least=attribute.least)
        case "string":
            return _choice(op, attribute, spelled, value)
        case _:
            numbers = integers(op, spelled, value, least=attribute.least)
            absent_when_zero = attribute.kind == "shape" or attribute.name == "output_padding"
            return None if absent_when_zero and not any(numbers) else numbers


def _choice(op: str, attribute: Attribute, spelled: str, value: Any) -> str:
    if not isinstance(value, str):
        kind = type(value).__name__
        raise AttributeRuleError(f"{op}: {spelled} is {shown(value)}, which is of type {kind}; give a string")
    if value.upper() not in attribute.values:
        raise AttributeRuleError(f"{op}: {spelled} is {shown(value)}, but must be one of {', '.join(attribute.values)}")
    return value.upper()
