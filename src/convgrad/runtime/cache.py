"""Compiled kernels on disk.

The cache may be shared by any number of processes and may be damaged at any time: a file is either whole, as its
checksum says, or it is compiled again. Nothing that goes wrong here fails a call; the reason is kept for `convgrad
doctor`. Since files hold code that will run, a directory or file that other users could have written to is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from convgrad import settings
from convgrad.plan.machine import Machine
from convgrad.runtime.jit import OPTIONS

FORMAT = 1  # of the files
MAGIC = b"convgrad"
SUFFIX = ".kernel"
LIMIT_BYTES = 256 << 20
SWEEP_EVERY = 64  # writes of one process between looks at the size of the cache

_HEADER = struct.Struct("<8sI32sII")  # magic, format, sha256 of key and rest, bytes of notes, bytes of object code
_SOURCES = ("dtypes.py", "problem", "plan", "codegen", "runtime")  # what decides the code of a kernel


@dataclass(frozen=True, slots=True)
class Entry:
    """What is kept of a kernel."""

    objects: bytes
    notes: dict[str, Any]  # JSON: stages and sizes, and what it is, for people


@dataclass(frozen=True, slots=True)
class State:
    """Where the cache is, or why there is none."""

    folder: Path | None
    refusal: str  # empty if the cache is in use


_writes = 0
_last_failure = ""


def key_of(kind: str, problem: object, machine: Machine) -> str:
    """Names everything that the code depends on."""
    text = "\n".join((kind, repr(problem), repr(machine), code_version()))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def code_version() -> str:
    """Of all that turns a problem into code: package version, sources of the compiler, and llvmlite with its LLVM.

    Sources are told by size and time of change, which is much faster than reading them and at worst too careful.
    Importing llvmlite itself costs next to nothing; its `binding` is what does.
    """
    import llvmlite

    root = os.path.dirname(os.path.dirname(__file__))
    marks = [mark for name in _SOURCES for mark in _marks_of(root, name)]
    digest = hashlib.sha256(repr(marks).encode()).hexdigest()[:16]
    version = getattr(sys.modules["convgrad"], "__version__", "")
    return f"convgrad {version} {digest}, llvmlite {llvmlite.__version__}, {OPTIONS}, format {FORMAT}"


def _marks_of(root: str, name: str) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of a file, or of all Python files in a folder; without pathlib, which takes 3 ms for them."""
    path = f"{root}/{name}"
    if not name.endswith(".py"):
        for each in sorted(os.listdir(path)):
            if each.endswith(".py") or ("." not in each and each != "__pycache__"):
                yield from _marks_of(root, f"{name}/{each}")
        return
    found = os.stat(path)
    yield name, found.st_size, found.st_mtime_ns


def state() -> State:
    """Look at the directory and say whether it can be used; it is made if it is missing."""
    folder = settings.cache_dir()
    return State(None, "switched off by CONVGRAD_CACHE_DIR") if folder is None else _inspect(folder)


@cache
def _inspect(folder: Path) -> State:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        refusal = _unsafe(folder.stat(), f"the directory {folder}")
        if not refusal and not os.access(folder, os.R_OK | os.X_OK):
            refusal = f"the directory {folder} cannot be read"
    except OSError as error:
        refusal = f"the directory {folder} cannot be used: {error.strerror}"
    return State(None if refusal else folder, refusal)


def _unsafe(found: os.stat_result, what: str) -> str:
    if os.name != "posix":
        return ""
    if found.st_uid != os.geteuid():
        return f"{what} belongs to another user (uid {found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{what} may be written by others (mode {stat.S_IMODE(found.st_mode):04o}); chmod go-w would repair it"
    return ""


def read(key: str) -> Entry | None:
    """The entry of a key, if there is a whole one that nobody else could have written."""
    folder = state().folder
    if folder is None:
        return None
    try:
        with open(folder / (key + SUFFIX), "rb", opener=_open_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or _unsafe(found, "the file"):
                return None
            return _decode(key, file.read())
    except OSError:
        return None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for a writer


def write(key: str, entry: Entry) -> None:
    """Keep an entry. Others see the old file or the new one, never half of one."""
    global _writes, _last_failure
    folder = state().folder
    if folder is None:
        return
    import tempfile  # and with it half a dozen modules that most processes never need

    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=folder)  # mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(_encode(key, entry))
        os.replace(temporary, folder / (key + SUFFIX))
    except OSError as error:
        _last_failure = f"{error.strerror} ({folder})"
        if temporary:
            _remove(Path(temporary))
        return
    _writes += 1
    if _writes % SWEEP_EVERY == 1:
        _sweep(folder, LIMIT_BYTES)


def _encode(key: str, entry: Entry) -> bytes:
    notes = json.dumps(entry.notes).encode()
    body = notes + entry.objects
    return _HEADER.pack(MAGIC, FORMAT, _digest(key, body), len(notes), len(entry.objects)) + body


def _decode(key: str, data: bytes) -> Entry | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, digest, notes, objects = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if (magic, version, len(body)) != (MAGIC, FORMAT, notes + objects) or _digest(key, body) != digest:
        return None
    return Entry(body[notes:], json.loads(body[:notes]))


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + body).digest()  # the key, so that a file under a wrong name is not taken


def _sweep(folder: Path, limit: int) -> None:
    """Delete the oldest files until the rest fits, and what crashed writers left behind."""
    files = _files(folder)
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            break
        _remove(path)
        total -= size
    newest = max((time for time, _, _ in files), default=0.0)
    for path in folder.glob(".writing-*"):
        try:
            if path.stat().st_mtime < newest - 3600:
                _remove(path)
        except OSError:
            continue  # its writer was alive after all


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """Time, size and path of every entry."""
    found = []
    try:
        for item in os.scandir(folder):
            if item.name.endswith(SUFFIX):
                status = item.stat()
                found.append((status.st_mtime, status.st_size, Path(item.path)))
    except OSError:
        pass  # deleted while we looked: another process sweeps too
    return found


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        return  # somebody else did, or nobody can


def size() -> tuple[int, int]:
    """Number of entries and their bytes."""
    folder = state().folder
    files = _files(folder) if folder else []
    return len(files), sum(size for _, size, _ in files)


def entries() -> list[dict[str, Any]]:
    """The notes of every whole entry, with its `bytes`, oldest first."""
    folder = state().folder
    listed = []
    for _, size, path in sorted(_files(folder)) if folder else []:
        entry = read(path.name.removesuffix(SUFFIX))
        if entry:
            listed.append({**entry.notes, "bytes": size})
    return listed


def clear() -> int:
    """Delete every entry; returns how many there were."""
    folder = state().folder
    files = _files(folder) if folder else []
    for _, _, path in files:
        _remove(path)
    return len(files)


def last_failure() -> str:
    """Why the last entry that could not be written was not; empty if all could."""
    return _last_failure
