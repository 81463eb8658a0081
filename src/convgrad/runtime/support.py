"""Compiled code that is the same for all problems: from disk, else compiled for what every host of its kind has."""

from __future__ import annotations

from convgrad.plan.host import host_triple
from convgrad.plan.machine import Machine, machine_for
from convgrad.runtime import cache, jit


def support_machine() -> Machine:
    """The target of such code."""
    return machine_for("portable", triple=host_triple())


def support_code(what: str, ir: str, level: int = jit.CODEGEN_LEVEL) -> bytes:
    """The object code of a module; `what` names it in the cache on disk."""
    machine = support_machine()
    key = cache.key_of(what, ir, machine)
    entry = cache.read(key)
    if entry:
        return entry.objects
    objects = jit.compile_ir(ir, machine, level)
    cache.write(key, cache.Entry(objects, {"what": what}))
    return objects
