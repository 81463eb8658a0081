"""Graph files in the form that oneDNN writes and its benchmark reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from convgrad.errors import GraphError
from convgrad.graph.graph import Graph
from convgrad.graph.operations import Op, file_attributes
from convgrad.graph.tensors import LogicalTensor

VERSION = "3.14.0"  # of the form; readers take it as a note
UNKNOWN = -(2**63)


def save(graph: Graph, path: str | PathLike[str]) -> None:
    """Write a graph to a file."""
    Path(path).write_text(dumps(graph), encoding="utf-8")


def dumps(graph: Graph) -> str:
    """The text of a graph file; reading it gives an equal graph."""
    inputs, outputs = _ports(graph.ops)
    top = {
        "version": VERSION,
        "engine_kind": graph.engine_kind,
        "fpmath_mode": graph.fpmath_mode,
        "fpmath_mode_apply_to_int": "true" if graph.fpmath_mode_apply_to_int else "false",
        "input_ports": inputs,
        "output_ports": outputs,
        "graph": [_op(op) for op in graph.ops],
    }
    return json.dumps(top, indent=2, ensure_ascii=False) + "\n"


def _ports(ops: Iterable[Op]) -> tuple[list[int], list[int]]:
    """Ids of what nobody makes, once for each reading, and of what nobody but an End operation reads."""
    made = {tensor.id for op in ops for tensor in op.outputs}
    read = {tensor.id for op in ops if op.kind != "End" for tensor in op.inputs}
    marked = {tensor.id for op in ops if op.kind == "End" for tensor in op.inputs}
    inputs = [tensor.id for op in ops for tensor in op.inputs if tensor.id not in made]
    outputs = [t.id for op in ops for t in op.outputs if t.id not in read or t.id in marked]
    return inputs, outputs


def _op(op: Op) -> dict[str, Any]:
    return {
        "id": op.id,
        "name": _plain(op.name, op),
        "kind": _plain(op.kind, op),
        "attrs": {_plain(name, op): _attribute(value, op) for name, value in file_attributes(op).items()},
        "inputs": [_tensor(tensor) for tensor in op.inputs],
        "outputs": [_tensor(tensor) for tensor in op.outputs],
    }


def _plain(text: str, op: Op) -> str:
    """benchdnn decodes no escapes, so a text that would need one has no place in a file."""
    needs_escape = json.dumps(text, ensure_ascii=False) != f'"{text}"'
    if needs_escape or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise GraphError(
            f"{op.label}: {text!r} cannot be written; quotes, backslashes, control characters and lone surrogates "
            "are not read by others"
        )
    return text


def _attribute(value: Any, op: Op) -> dict[str, Any]:
    match value:
        case bool():
            return {"type": "bool", "value": int(value)}
        case int():
            return {"type": "s64", "value": value}
        case float():
            return {"type": "f32", "value": value}
        case str():
            return {"type": "string", "value": _plain(value, op)}
        case _:
            is_float = any(isinstance(entry, float) for entry in value)
            return {"type": "f32[]" if is_float else "s64[]", "value": list(value)}


def _tensor(tensor: LogicalTensor) -> dict[str, Any]:
    shape = [UNKNOWN] if tensor.shape is None else [UNKNOWN if e is None else e for e in tensor.shape]
    return {
        "id": tensor.id,
        "dtype": tensor.dtype,
        "shape": shape,
        "stride": [UNKNOWN] if tensor.strides is None else list(tensor.strides),
        "layout_type": tensor.layout_type,
        "property_type": tensor.property_type,
    }
