"""What there is to know about this process when something is slow or refused, as plain data."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from convgrad import settings
from convgrad.errors import SettingError
from convgrad.plan import host, machine
from convgrad.runtime import cache, memory
from convgrad.runtime.threads import num_threads, openmp_in_process, team

PACKAGES = ("convgrad", "numpy", "ml_dtypes", "llvmlite")


def report() -> dict[str, dict[str, Any]]:
    """Sections of names and values. A setting that means nothing is reported where it would have counted."""
    return {
        "machine": _or_error(_machine),
        "instruction sets": _instruction_sets(),
        "threads": _or_error(_threads),
        "cache": _or_error(_cache),
        "settings": _or_error(_settings),
        "versions": _versions(),
    }


def _or_error(section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return section()
    except SettingError as error:
        return {"error": str(error)}


def _machine() -> dict[str, Any]:
    here = machine.current_machine()
    caches = zip(("L1", "L2", "L3"), (here.l1_bytes, here.l2_bytes, here.l3_bytes), strict=True)
    return {
        "instruction set": here.isa,
        "target": here.triple,
        "LLVM cpu": here.cpu,
        "LLVM features": here.features,
        "vector": f"{here.registers} registers of {here.lanes_f32} f32",
        "fused multiply-add": here.has_fma,
        "caches planned for": ", ".join(f"{name} {size >> 10} KiB" for name, size in caches),
    }


def _instruction_sets() -> dict[str, Any]:
    return {isa: machine.why_not(isa) or "available" for isa in machine.LEVELS}


def _threads() -> dict[str, Any]:
    count = num_threads()
    loaded = openmp_in_process()
    route = team.route.name if team.parallel else "serial"
    found: dict[str, Any] = {"threads": count, "decided by": team.source, "run by": route}
    if team.count > count:
        found["limited by"] = "omp_get_max_threads of the OpenMP runtime"
    found["OpenMP in this process"] = loaded.path if loaded else "none"
    cpus, limit = host.available_cpus()
    found["cores"] = f"{cpus}, from {limit}"
    return found


def _cache() -> dict[str, Any]:
    state = cache.state()
    if state.folder is None:
        return {"status": f"not in use: {state.refusal}"}
    entries, size = cache.size()
    return {
        "status": "in use",
        "directory": state.folder,
        "kernels": entries,
        "bytes": size,
        "limit": cache.LIMIT_BYTES,
        "last failure": cache.last_failure() or "none",
        "workspace held": memory.held_bytes(),
    }


def _settings() -> dict[str, Any]:
    return {
        "CONVGRAD_ISA": settings.isa() or "not set",
        "CONVGRAD_FPMATH_MODE": settings.fpmath_mode(),
        "CONVGRAD_CACHE_DIR": settings.cache_dir() or "off",
        "threads": "{} by {}".format(*(settings.num_threads() or ("not set", "default"))),
    }


def _versions() -> dict[str, Any]:
    from convgrad.runtime import jit

    found: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = getattr(sys.modules.get(package), "__version__", "not installed")
    found["LLVM"] = jit.llvm_version()
    return found
