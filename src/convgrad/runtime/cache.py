"""Compiled kernels on disk.

The cache may be shared by any number of processes and may be damaged at any time: a file is either whole, as its
checksum says, or it is compiled again. Nothing that goes wrong here fails a call; the reason is kept for `convgrad
doctor`. Since files hold code that will run, a directory or file that other users could have written to is refused.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from convgrad import settings
from convgrad.plan.machine import Machine
from convgrad.runtime.jit import OPTIONS

try:
    from _blake2 import blake2b  # the one of hashlib, which would load OpenSSL for it
except ImportError:
    from hashlib import blake2b

FORMAT = 2  # of the files
MAGIC = b"convgrad"
SUFFIX = ".kernel"
WRITING = ".writing-"  # how the names of files begin that are not whole yet
LIMIT_BYTES = 256 << 20
LOOK_EVERY = 64  # writes, of any process, between looks at the size of the cache, on average
SAMPLE = 100  # entries whose sizes stand for those of all
LEFT = 0.9  # of the limit, which a sweep leaves: one takes as long as several compilations
OLD = 3600.0  # seconds after which a file that is not whole is one that nobody writes any more

_HEADER = struct.Struct("<8sI32sII")  # magic, format, digest of key and rest, bytes of notes, bytes of object code
_SOURCES = ("dtypes.py", "problem", "plan", "codegen", "runtime")  # what decides the code of a kernel


class Entry(NamedTuple):
    """What is kept of a kernel."""

    objects: bytes
    notes: dict[str, Any]  # JSON: stages and sizes, and what it is, for people


class State(NamedTuple):
    """Where the cache is, or why there is none."""

    folder: str | None
    refusal: str  # empty if the cache is in use


_last_failure = ""


def key_of(kind: str, problem: object, machine: Machine) -> str:
    """Names everything that the code depends on."""
    text = "\n".join((kind, repr(problem), repr(machine), code_version()))
    return blake2b(text.encode(), digest_size=32).hexdigest()


@cache
def code_version() -> str:
    """Of all that turns a problem into code: package version, sources of the compiler, and llvmlite with its LLVM.

    Sources are told by size and time of change, which is much faster than reading them and at worst too careful.
    Importing llvmlite itself costs next to nothing; its `binding` is what does.
    """
    import llvmlite

    root = os.path.dirname(os.path.dirname(__file__))
    digest = blake2b(repr(_marks_of(root, *_SOURCES)).encode(), digest_size=8).hexdigest()
    version = getattr(sys.modules["convgrad"], "__version__", "")
    return f"convgrad {version} {digest}, llvmlite {llvmlite.__version__}, {OPTIONS}, format {FORMAT}"


def _marks_of(root: str, *names: str) -> list[tuple[str, int, int]]:
    """Name, size and time of files, and of all Python files in folders; without pathlib, which takes 3 ms for them."""
    marks = []
    for name in names:
        path = f"{root}/{name}"
        if name.endswith(".py"):
            found = os.stat(path)
            marks.append((name, found.st_size, found.st_mtime_ns))
        else:
            inside = [each for each in sorted(os.listdir(path)) if each.endswith(".py") or "." not in each]
            marks += _marks_of(root, *[f"{name}/{each}" for each in inside if each != "__pycache__"])
    return marks


def state() -> State:
    """Look at the directory and say whether it can be used; it is made if it is missing."""
    folder = settings.cache_dir()
    return State(None, "switched off by CONVGRAD_CACHE_DIR") if folder is None else _inspect(folder)


@cache
def _inspect(folder: str) -> State:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        refusal = _unsafe(os.stat(folder), f"the directory {folder}")
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


def path_of(folder: str, key: str) -> str:
    """The file of an entry."""
    return os.path.join(folder, key + SUFFIX)


def read(key: str) -> Entry | None:
    """The entry of a key, if there is a whole one that nobody else could have written."""
    folder = state().folder
    if folder is None:
        return None
    try:
        with open(path_of(folder, key), "rb", opener=_open_at_once) as file:
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
    global _last_failure
    folder = state().folder
    if folder is None:
        return
    number = os.urandom(8)  # tempfile takes 4 ms to import
    temporary = os.path.join(folder, WRITING + number.hex())
    try:
        with open(temporary, "xb", opener=_open_own) as file:
            file.write(_encode(key, entry))
        os.replace(temporary, path_of(folder, key))
    except OSError as error:
        _last_failure = f"{error.strerror} ({folder})"
        remove(temporary)
        return
    if number[0] % LOOK_EVERY == 0:  # by chance, since most processes write few
        _look_after(folder, LIMIT_BYTES)


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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
    """Of the key, too, so that a file under a wrong name is not taken."""
    return blake2b(key.encode() + body, digest_size=32).digest()


def _look_after(folder: str, limit: int) -> None:
    """Delete the oldest files if all seem to be more than the limit, and what crashed writers left behind.

    To ask for the sizes of thousands takes a fraction of a second: some stand for all until there seem to be too many.
    """
    names = _names(folder)
    entries = [name for name in names if name.endswith(SUFFIX)]
    some = [found for name in entries[:: len(entries) // SAMPLE + 1] for found in _found(folder, name)]
    if some and sum(size for _, size, _ in some) / len(some) * len(entries) > limit:
        _sweep(folder, int(LEFT * limit))
    newest = max((time for time, _, _ in some), default=0.0)
    for name in names:
        for time, _, path in _found(folder, name) if name.startswith(WRITING) else ():
            if time < newest - OLD:
                remove(path)


def _sweep(folder: str, limit: int) -> None:
    """Delete the oldest files until the rest fits."""
    kept = files(folder)
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= limit:
            break
        remove(path)
        total -= size


def files(folder: str, prefix: str = "") -> list[tuple[float, int, str]]:
    """Time, size and path of every entry whose name begins so."""
    names = [name for name in _names(folder) if name.startswith(prefix) and name.endswith(SUFFIX)]
    return [found for name in names for found in _found(folder, name)]


def _names(folder: str) -> list[str]:
    """Of all files; none if the folder is gone."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _found(folder: str, name: str) -> Iterator[tuple[float, int, str]]:
    """The same of one file, unless another process has deleted it."""
    path = os.path.join(folder, name)
    try:
        status = os.stat(path)
    except OSError:
        return
    yield status.st_mtime, status.st_size, path


def remove(path: str) -> bool:
    """Delete a file; returns whether this did it, not somebody else or nobody."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def size() -> tuple[int, int]:
    """Number of entries and their bytes."""
    folder = state().folder
    kept = files(folder) if folder else []
    return len(kept), sum(size for _, size, _ in kept)


def entries() -> list[dict[str, Any]]:
    """The notes of every whole entry, with its `bytes`, oldest first."""
    folder = state().folder
    listed = []
    for _, size, path in sorted(files(folder)) if folder else []:
        entry = read(os.path.basename(path).removesuffix(SUFFIX))
        if entry:
            listed.append({**entry.notes, "bytes": size})
    return listed


def clear() -> int:
    """Delete every entry; returns how many there were."""
    folder = state().folder
    kept = files(folder) if folder else []
    for _, _, path in kept:
        remove(path)
    return len(kept)


def last_failure() -> str:
    """Why the last entry that could not be written was not; empty if all could."""
    return _last_failure
