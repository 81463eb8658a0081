"""Graph files as oneDNN writes them, and as older versions and other hands do."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from convgrad.errors import ConvError, FileFormatError
from convgrad.graph.graph import ENGINE_KINDS, Graph
from convgrad.graph.operations import LARGEST_F32, Op, canonical_kind, known_attributes
from convgrad.graph.tensors import DTYPES, LAYOUT_TYPES, PROPERTY_TYPES, LogicalTensor
from convgrad.settings import FPMATH_MODES

LARGEST_FILE = 16 << 20  # bytes; real graph files stay below one MiB
NOTES = {"partition_id", "backend"}  # attributes that oneDNN adds to a file only to be read by people

T = TypeVar("T")


def load(path: str | PathLike[str]) -> Graph:
    """The graph in a file, open for additions; OSError if there is no reading it."""
    path = Path(path)
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise FileFormatError(f"{path}: {size} bytes; a graph file has at most {LARGEST_FILE}")
    with path.open("rb") as file:
        text = file.read(LARGEST_FILE + 1)  # of a pipe or device, which tells no size
    if len(text) > LARGEST_FILE:
        raise FileFormatError(f"{path}: {len(text)} bytes and more; a graph file has at most {LARGEST_FILE}")
    try:
        return loads(text)
    except ConvError as error:
        raise type(error)(f"{path}: {error}") from error


def loads(text: str | bytes) -> Graph:
    """The graph in a text, open for additions."""
    top = _typed(_parse(text), dict, "the file")
    graph = Graph(
        _word(top, "engine_kind", ENGINE_KINDS, "cpu", "engine_kind"),
        fpmath_mode=_word(top, "fpmath_mode", FPMATH_MODES, "strict", "fpmath_mode"),
        fpmath_mode_apply_to_int=_truth(top.get("fpmath_mode_apply_to_int", False), "fpmath_mode_apply_to_int"),
    )
    if "graph" not in top:
        raise FileFormatError("the file has no 'graph', the list of operations")
    places: dict[int, str] = {}
    for place, entry in _entries(top["graph"], "graph"):
        op = _op(entry, place)
        if op.id in places:
            raise FileFormatError(f"{place}.id: {op.id} is the id of {places[op.id]} already; ids must differ")
        places[op.id] = place
        _at(place, lambda op=op: graph.add_op(op))
    if not places:
        raise FileFormatError("graph: the list of operations is empty")
    return graph


def _parse(text: str | bytes) -> Any:
    def refuse(word: str) -> None:
        raise FileFormatError(f"{word} is not a number of JSON; every number of a graph is finite")

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        return json.loads(text, parse_constant=refuse)
    except FileFormatError:
        raise
    except UnicodeDecodeError as error:
        raise FileFormatError(f"not a JSON text: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise FileFormatError(f"not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise FileFormatError("nested too deeply; a graph file has 6 levels") from error
    except ValueError as error:  # Python's limit on the digits of an integer
        raise FileFormatError("not a graph: an integer of thousands of digits") from error


def _op(entry: Any, place: str) -> Op:
    entry = _typed(entry, dict, place)
    for key in ("id", "kind"):
        if key not in entry:
            raise FileFormatError(f"{place}: an operation needs {key!r}")
    kind = canonical_kind(_typed(entry["kind"], str, f"{place}.kind"))
    return _at(
        place,
        lambda: Op(
            _integer(entry["id"], f"{place}.id"),
            kind,
            _typed(entry.get("name", ""), str, f"{place}.name"),
            _attributes(entry.get("attrs", {}), kind, f"{place}.attrs"),
            [_tensor(*item) for item in _entries(entry.get("inputs", []), f"{place}.inputs")],
            [_tensor(*item) for item in _entries(entry.get("outputs", []), f"{place}.outputs")],
        ),
    )


def _attributes(entries: Any, kind: str, place: str) -> dict[str, Any]:
    known = known_attributes(kind)
    attributes = {}
    for name, entry in _typed(entries, dict, place).items():
        if name in NOTES or (known is not None and name not in known):
            continue
        here = f"{place}.{name}"
        entry = _typed(entry, dict, here)
        if "value" not in entry:
            raise FileFormatError(f"{here}: an attribute needs a 'value'")
        kind_of_value = entry.get("type")
        read = _READ_VALUE.get(kind_of_value) if isinstance(kind_of_value, str) else None
        if read is None:
            raise FileFormatError(
                f"{here}.type is {_shown(entry.get('type'))}; it must be one of {', '.join(_READ_VALUE)}"
            )
        attributes[name] = read(entry["value"], f"{here}.value")
    return attributes


def _tensor(place: str, entry: Any) -> LogicalTensor:
    entry = _typed(entry, dict, place)
    if "id" not in entry:
        raise FileFormatError(f"{place}: a tensor needs an 'id'")
    id = _integer(entry["id"], f"{place}.id")
    dtype = _word(entry, "dtype", tuple(DTYPES), "undef", f"{place}.dtype")
    layout_type = _word(entry, "layout_type", LAYOUT_TYPES, "strided", f"{place}.layout_type")
    property_type = _word(entry, "property_type", PROPERTY_TYPES, "undef", f"{place}.property_type")
    shape = _shape(entry.get("shape"), f"{place}.shape")
    strides = _strides(entry.get("stride"), f"{place}.stride") if layout_type == "strided" else None
    return _at(place, lambda: LogicalTensor(id, dtype, shape, layout_type, strides, property_type))


def _shape(value: Any, place: str) -> tuple[int | None, ...] | None:
    """An extent below zero is an unknown one; oneDNN writes one such extent for a shape that is not all known."""
    if value is None:
        return None
    shape = tuple(None if extent < 0 else extent for extent in _integers(value, place))
    return None if shape == (None,) else shape


def _strides(value: Any, place: str) -> tuple[int, ...] | None:
    strides = None if value is None else _integers(value, place)
    return None if strides is None or -(2**63) in strides else strides


def _at(place: str, make: Callable[[], T]) -> T:
    """What `make` makes; a mistake it finds is told with the place in the file, once."""
    try:
        return make()
    except ConvError as error:
        text = str(error)
        raise type(error)(text if text.startswith(place) else f"{place}: {text}") from error


def _entries(value: Any, place: str) -> list[tuple[str, Any]]:
    return [(f"{place}[{i}]", entry) for i, entry in enumerate(_typed(value, list, place))]


def _typed(value: Any, kind: type[T], place: str) -> T:
    if not isinstance(value, kind):
        words = {dict: "an object", list: "a list", str: "a string"}
        raise FileFormatError(f"{place} is {_shown(value)}; it must be {words[kind]}")
    return value


def _integer(value: Any, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise FileFormatError(f"{place} is {_shown(value)}; it must be an integer")
    if not -(2**63) <= value < 2**64:
        raise FileFormatError(f"{place} is {_shown(value)}; it does not fit 64 bits")
    return value


def _integers(value: Any, place: str) -> tuple[int, ...]:
    return tuple(_integer(entry, here) for here, entry in _entries(value, place))


def _number(value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FileFormatError(f"{place} is {_shown(value)}; it must be a number")
    if abs(value) > LARGEST_F32 or not isfinite(value):
        raise FileFormatError(f"{place} is {_shown(value)}; it is not a finite f32 number")
    return float(value)


def _numbers(value: Any, place: str) -> tuple[float, ...]:
    return tuple(_number(entry, here) for here, entry in _entries(value, place))


def _truth(value: Any, place: str) -> bool:
    """Of 0, 1, true, false, or one of the two words in quotes."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool | int) and value in (0, 1):
        return bool(value)
    raise FileFormatError(f"{place} is {_shown(value)}; it must be true or false")


def _word(owner: dict, key: str, words: tuple[str, ...], default: str, place: str) -> str:
    """One of the words, in any letter case."""
    value = _typed(owner.get(key, default), str, place)
    if value.lower() not in words:
        raise FileFormatError(f"{place} is {_shown(value)}; it must be one of {', '.join(words)}")
    return value.lower()


def _shown(value: Any) -> str:
    """Short enough for one line, whatever it is."""
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) >= 2**64:
        return f"an integer of {value.bit_length()} bits"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."


_READ_VALUE: dict[str, Callable[[Any, str], Any]] = {
    "string": lambda value, place: _typed(value, str, place),
    "bool": _truth,
    "s64": _integer,
    "s64[]": _integers,
    "f32": _number,
    "f32[]": _numbers,
}
