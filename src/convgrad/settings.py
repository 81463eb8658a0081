"""The only reader of the environment. What a variable means is said in its function; docs/runtime.md lists them all.

Variables are read when asked for, not at import, so that a test or a notebook can set them before the first call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from convgrad.errors import SettingError, shown

ISAS = ("portable", "avx2", "avx512", "avx512_bf16_emulated", "avx512_bf16", "amx_emulated", "amx", "neon")
FPMATH_MODES = ("strict", "tf32", "bf16", "f16", "any")  # oneDNN's words

_mode: ContextVar[str | None] = ContextVar("fpmath_mode", default=None)
_order: ContextVar[str] = ContextVar("order", default="")
_AND = "\0"  # between a mode and an order, where a call says both in one word: it is in no word of either

_OFF = ("", "off", "0", "none")  # values of CONVGRAD_CACHE_DIR that switch the disk cache off


def isa() -> str | None:
    """CONVGRAD_ISA: the instruction set that kernels are compiled for; None is the best that the machine has."""
    return _choice("CONVGRAD_ISA", ISAS, default=None)


def fpmath_mode() -> str:
    """How far f32 arithmetic may be relaxed for speed: what `relaxed` says here, else CONVGRAD_FPMATH_MODE."""
    return _mode.get() or _choice("CONVGRAD_FPMATH_MODE", FPMATH_MODES, default="strict") or "strict"


def asked(mode: str | None) -> str | None:
    """A mode that was given, else the one of the surrounding `relaxed`, else None."""
    return _mode.get() if mode is None else mode


def with_order(mode: str | None) -> str | None:
    """A mode as it is, or in one word with the order of sums that `ordered` asks for: what a call is found by."""
    order = _order.get()
    return f"{mode or ''}{_AND}{order}" if order else mode


def arithmetic(mode: str | None) -> str | None:
    """What a call that gives this mode, or None, is found by."""
    return with_order(asked(mode))


def mode_and_order(word: str | None) -> tuple[str | None, str]:
    """Of what `with_order` gave; the order is "" where none was asked for."""
    if not isinstance(word, str):
        return word, ""
    mode, _, order = word.partition(_AND)
    return mode or (None if order else mode), order


@contextmanager
def ordered(order: str) -> Iterator[None]:
    """Calls of this thread, or task, inside the `with` add up their sums in an order, as far as they can.

    order is that of a plan; "" is whichever is fastest.
    """
    before = _order.set(order)
    try:
        yield
    finally:
        _order.reset(before)


@contextmanager
def relaxed(mode: str) -> Iterator[None]:
    """Calls of this thread, or task, inside the `with` may round the operands of f32 products as `mode` allows.

    mode is strict, tf32, bf16, f16 or any; an `fpmath_mode` that a call itself gives comes first. Raises SettingError
    for another word. Source: fpmath modes of the oneDNN Graph API.
    """
    if not isinstance(mode, str) or mode not in FPMATH_MODES:
        raise SettingError(f"fpmath_mode is {shown(mode)}; it takes one of {', '.join(FPMATH_MODES)}")
    before = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(before)


def num_threads() -> tuple[int, str] | None:
    """CONVGRAD_NUM_THREADS, else the first number of OMP_NUM_THREADS, with the name of the variable that decided.

    OMP_NUM_THREADS belongs to others: a value of it that OpenMP itself would ignore is ignored here too.
    """
    own = os.environ.get("CONVGRAD_NUM_THREADS", "").strip()
    if own:
        count = _count(own)
        if not count:
            raise SettingError(f"CONVGRAD_NUM_THREADS is {shown(own)}; it takes a whole number of threads, 1 or more")
        return count, "CONVGRAD_NUM_THREADS"
    count = _count(os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip())  # one number per level of nesting
    return (count, "OMP_NUM_THREADS") if count else None


def _count(text: str) -> int:
    """A whole number in decimal digits; 0 if it is none that Python would read."""
    try:
        return int(text) if text.isascii() and text.isdigit() else 0
    except ValueError:  # thousands of digits
        return 0


def cache_dir() -> str | None:
    """CONVGRAD_CACHE_DIR: where compiled kernels are kept, an absolute path; None switches the disk cache off.

    Unset, it is the cache directory of the platform: XDG_CACHE_HOME or ~/.cache on Linux. Not a Path: pathlib would be
    a tenth of the time that this package takes to import.
    """
    given = os.environ.get("CONVGRAD_CACHE_DIR")
    if given is not None:
        if given.strip().lower() in _OFF:
            return None
        if "\0" in given:  # cannot come from a shell, but from os.environ of a test or an embedding
            raise SettingError(f"CONVGRAD_CACHE_DIR is {shown(given)}; it takes a directory, or 'off'")
        path = os.path.expanduser(given)
        try:
            return os.path.abspath(path)
        except OSError:  # the directory that we are in was deleted; the cache will say that there is none
            return path
    return _platform_cache_dir()


def _platform_cache_dir() -> str | None:
    if sys.platform != "linux":
        from platformdirs import user_cache_dir

        return user_cache_dir("convgrad", appauthor=False)
    # The XDG rule itself, since importing a library for it would take as long as a first call from disk.
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = xdg if os.path.isabs(xdg) else os.path.expanduser("~/.cache")  # the standard ignores a relative one
    return os.path.join(base, "convgrad") if os.path.isabs(base) else None  # no home: nowhere to keep anything


def _choice(name: str, legal: tuple[str, ...], default: str | None) -> str | None:
    value = os.environ.get(name, "").strip().lower()
    if not value:
        return default
    if value not in legal:
        raise SettingError(f"{name} is {shown(value)}; it takes one of {', '.join(legal)}")
    return value
