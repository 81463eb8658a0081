"""A loader of ELF object files, so that a kernel from the disk cache runs without LLVM being loaded (60 ms saved).

It knows what LLVM writes for a module of plain functions and constants: position-independent code of the small code
model, for x86-64 and AArch64. Anything else raises `UnsupportedObject`, and the caller turns to LLVM's own loader.

Pages are written first and made executable after: never both at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from functools import cache

from convgrad.runtime.linking import PROT_READ, PROT_WRITE, lay_out, link
from convgrad.runtime.object_file import MACHINES, ObjectFile, UnsupportedObject

MAP_PRIVATE, MAP_ANONYMOUS = 2, 0x20  # of Linux


class Loaded:
    """An object in executable memory, which is given back when this value goes."""

    __slots__ = ("_base", "_size", "addresses")

    def __init__(self, data: bytes, symbols: tuple[str, ...]) -> None:
        """Load, link and look up; raises UnsupportedObject."""
        self._size = 0
        file = ObjectFile(data)
        if MACHINES.get(os.uname().machine.lower()) != file.machine:
            raise UnsupportedObject("an object for another architecture")
        layout = lay_out(file)
        self._base = _libc().mmap(None, layout.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if self._base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no memory for {layout.size} bytes of code: {os.strerror(ctypes.get_errno())}")
        self._size = layout.size
        ctypes.memmove(self._base, bytes(link(file, layout, self._base, external_address)), layout.size)
        for start, size, protection in layout.groups:
            if _libc().mprotect(self._base + start, size, protection):
                raise UnsupportedObject(f"the system refuses executable memory: {os.strerror(ctypes.get_errno())}")
        defined = {s.name: s for s in file.symbols if s.section in layout.sections}
        try:
            self.addresses = {
                name: self._base + layout.sections[defined[name].section] + defined[name].value for name in symbols
            }
        except KeyError as missing:
            raise UnsupportedObject(f"there is no symbol {missing} in the object") from None

    def __del__(self) -> None:
        """Unmap, unless the process is on its way out: another thread may still be inside."""
        if self._size and sys is not None and not sys.is_finalizing():  # modules may be gone by then
            _libc().munmap(self._base, self._size)


_library = cache(ctypes.CDLL)  # opened once: a symbol is found in a tenth of the time that opening takes


@cache
def external_address(name: str) -> int:
    """The address of a function of the C, mathematics or compiler support library."""
    for library in (None, "libm.so.6", "libgcc_s.so.1"):
        with contextlib.suppress(OSError, AttributeError):
            return ctypes.cast(getattr(_library(library), name), ctypes.c_void_p).value or 0
    raise UnsupportedObject(f"there is no function {name!r} to link with")


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, address, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype, libc.mmap.argtypes = address, [address, size, number, number, number, ctypes.c_long]
    libc.mprotect.argtypes = [address, size, number]
    libc.munmap.argtypes = [address, size]
    return libc
