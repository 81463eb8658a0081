"""What XLA knows a problem by: a target with a name, made when a program is lowered, and kept for good."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import re
import threading
from typing import Any

import jax

from convgrad.errors import FileFormatError
from convgrad.jax.handler import Buffer, Handler
from convgrad.jax.layouts import given_names, shape_of
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.runtime import kernel_for

PREFIX = "convgrad_"
_LOCK = threading.Lock()
_handlers: dict[str, Handler] = {}


def target_of(problem: ConvProblem) -> str:
    """The name of the target that solves a problem, registered with XLA if it was not yet."""
    name = name_of(problem)
    if name not in _handlers:
        with _LOCK:
            if name not in _handlers:
                _handlers[name] = _register(name, problem)
    return name


def name_of(problem: ConvProblem) -> str:
    """The same for equal problems, in every process and on every machine."""
    digest = hashlib.sha256(text_of(problem).encode()).hexdigest()[:20]
    return f"{PREFIX}{problem.solved}_{problem.out_dtype}_{digest}"


def text_of(problem: ConvProblem) -> str:
    """A problem as JSON, in which a lowered program carries it; what is as usual is left out."""
    usual = {field.name: field.default for field in dataclasses.fields(problem)}
    told = {name: value for name, value in dataclasses.asdict(problem).items() if value != usual[name]}
    return json.dumps(told | {"unknown": problem.solved}, separators=(",", ":"))


def problem_of(text: str) -> ConvProblem:
    """The problem of a text of `text_of`."""
    try:
        fields = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(text).items()}
        problem = ConvProblem(**fields | {"unknown": Unknown(fields["unknown"])})
        problem.validate()
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"the program carries a problem that this version does not read ({error!r}): {text}"
        ) from None
    return problem


def register_targets(program: Any) -> tuple[str, ...]:
    """Prepare this process to run a program that was lowered in another one, and return the names of its targets.

    `program` is a `jax.export.Exported`, or the text of its StableHLO. The kernels are compiled for this machine.
    Raises FileFormatError if the text carries a problem that cannot be read. In the process that traced the program
    there is nothing to do.
    """
    text = program if isinstance(program, str) else program.mlir_module()
    found = re.findall(rf'@({PREFIX}\w+)\(.*?problem = "((?:[^"\\]|\\.)*)"', text)
    for name, escaped in dict(found).items():
        problem = problem_of(re.sub(r"\\([0-9A-F]{2})", lambda code: chr(int(code[1], 16)), escaped))
        if name_of(problem) != name:
            raise FileFormatError(
                f"the program calls {name}, but its problem belongs to {name_of(problem)}; it was altered, or lowered "
                "by another version: lower it again"
            )
        target_of(problem)
    return tuple(dict(found))


def _register(name: str, problem: ConvProblem) -> Handler:
    names = given_names(problem)
    inputs = [Buffer(name=n, shape=shape_of(problem, n), dtype=problem.dtype) for n in names]
    if problem.bias:
        inputs.append(Buffer(name="bias", shape=(problem.bias_length,), dtype=problem.dtype))
    unknown = problem.solved
    results = [Buffer(name=unknown, shape=shape_of(problem, unknown), dtype=problem.out_dtype)]
    if problem.bias_gradient:
        results.append(Buffer(name="bias", shape=(problem.bias_length,), dtype=problem.out_dtype))
    handler = Handler(name, kernel_for(problem), inputs, results)
    jax.ffi.register_ffi_target(name, _capsule(handler.address), platform="cpu")
    return handler


def _capsule(address: int) -> Any:
    """The form in which XLA takes an address; the name is one that it asks for."""
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(("PyCapsule_New", ctypes.pythonapi))(address, None, None)
