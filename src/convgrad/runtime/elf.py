"""A loader of ELF object files, so that a kernel from the disk cache runs without LLVM being loaded (60 ms saved).

It knows what LLVM writes for a module of plain functions and constants: position-independent code of the small code
model, for x86-64 and AArch64. Anything else raises `UnsupportedObject`, and the caller turns to LLVM's own loader.

Pages are written first and made executable after: never both at once.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from dataclasses import dataclass
from functools import cache

EM_X86_64, EM_AARCH64 = 62, 183
MACHINES = {"x86_64": EM_X86_64, "amd64": EM_X86_64, "aarch64": EM_AARCH64, "arm64": EM_AARCH64}

SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL = 1, 2, 4, 8, 9
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 1, 2, 4, 0x400
SHN_UNDEF, SHN_ABS, SHN_COMMON = 0, 0xFFF1, 0xFFF2
PROT_READ, PROT_WRITE, PROT_EXEC = 1, 2, 4
MAP_PRIVATE, MAP_ANONYMOUS = 2, 0x20  # of Linux

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_STUBS = {  # jump to an address that lies anywhere; it follows the code
    EM_X86_64: bytes.fromhex("ff2500000000"),  # jmp [rip]
    EM_AARCH64: bytes.fromhex("5000005800021fd6"),  # ldr x16, .+8; br x16
}
_STUB_BYTES = 16
_SLOT_BYTES = 8  # of the table of addresses that code loads from (GOT)


class UnsupportedObject(Exception):
    """An object file that this loader does not take."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section header."""

    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int

    @property
    def loaded(self) -> bool:
        """Whether it takes memory. Unwind tables do not: no exception crosses a kernel."""
        return bool(self.flags & SHF_ALLOC) and self.size > 0 and not self.name.startswith((".eh_frame", ".note"))


@dataclass(frozen=True, slots=True)
class Symbol:
    """An entry of the symbol table."""

    name: str
    section: int
    value: int


class ObjectFile:
    """A parsed object: sections, symbols, relocations by section."""

    def __init__(self, data: bytes) -> None:
        """Parse; anything out of place raises UnsupportedObject."""
        self.data = data
        try:
            self._parse()
        except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
            raise UnsupportedObject(f"not a whole object file: {error}") from error

    def _parse(self) -> None:
        ident, kind, self.machine, _, _, _, table, _, _, _, _, size, count, names = _HEADER.unpack_from(self.data)
        if ident[:6] != b"\x7fELF\x02\x01" or kind != 1 or self.machine not in _STUBS or size != _SECTION.size:
            raise UnsupportedObject("not a relocatable 64-bit little-endian ELF file for x86-64 or AArch64")
        raw = [_SECTION.unpack_from(self.data, table + size * i) for i in range(count)]
        text = raw[names][4]
        self.sections = [
            Section(self._string(text + name), kind, flags, offset, size, link, info, align)
            for name, kind, flags, _, offset, size, link, info, align, _ in raw
        ]
        self.symbols = self._symbols()
        self.relocations = {
            section.info: list(_RELOCATION.iter_unpack(self._bytes(section)))
            for section in self.sections
            if section.type == SHT_RELA and self.sections[section.info].loaded
        }
        if any(s.type == SHT_REL or (s.loaded and s.flags & SHF_TLS) for s in self.sections):
            raise UnsupportedObject("sections of a kind that is not handled")

    def _bytes(self, section: Section) -> bytes:
        content = self.data[section.offset : section.offset + section.size]
        if len(content) != section.size:
            raise UnsupportedObject(f"section {section.name} is cut short")
        return content

    def _string(self, start: int) -> str:
        return self.data[start : self.data.index(b"\0", start)].decode()

    def _symbols(self) -> list[Symbol]:
        table = next((s for s in self.sections if s.type == SHT_SYMTAB), None)
        if table is None:
            return []
        strings = self.sections[table.link].offset
        entries = _SYMBOL.iter_unpack(self._bytes(table))
        return [Symbol(self._string(strings + name), section, value) for name, _, _, section, value, _ in entries]


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets from the base of the image; each group begins on a page of its own."""

    sections: dict[int, int]  # of a section by its number
    stubs: dict[str, int]  # of an external function
    slots: dict[str, int]  # of the table entry that holds the address of a symbol
    groups: tuple[tuple[int, int, int], ...]  # offset, size, protection
    size: int


def lay_out(file: ObjectFile) -> Layout:
    """Code with its stubs, then constants with the address table, then variables."""
    reached = {file.symbols[info >> 32].name for entries in file.relocations.values() for _, info, _ in entries}
    external = sorted({s.name for s in file.symbols if s.section == SHN_UNDEF and s.name} & reached)
    sections: dict[int, int] = {}
    stubs: dict[str, int] = {}
    slots: dict[str, int] = {}
    groups, end = [], 0
    for protection, flags in (
        (PROT_READ | PROT_EXEC, SHF_ALLOC | SHF_EXECINSTR),
        (PROT_READ, SHF_ALLOC),
        (PROT_READ | PROT_WRITE, SHF_ALLOC | SHF_WRITE),
    ):
        start = end = _up(end, _page_bytes())
        for number, section in enumerate(file.sections):
            if section.loaded and section.flags & (SHF_ALLOC | SHF_EXECINSTR | SHF_WRITE) == flags:
                sections[number] = _up(end, max(1, section.align))
                end = sections[number] + section.size
        if protection & PROT_EXEC:
            end = _up(end, _STUB_BYTES)
            stubs = {name: end + _STUB_BYTES * i for i, name in enumerate(external)}
            end += _STUB_BYTES * len(stubs)
        elif protection == PROT_READ:
            end = _up(end, _SLOT_BYTES)
            slots = {name: end + _SLOT_BYTES * i for i, name in enumerate(sorted(reached - {""}))}
            end += _SLOT_BYTES * len(slots)
        if end > start:
            groups.append((start, end - start, protection))
    return Layout(sections, stubs, slots, tuple(groups), _up(end, _page_bytes()))


def link(file: ObjectFile, layout: Layout, base: int, resolve) -> bytearray:
    """The image as it has to stand at address `base`; `resolve` gives the address of an external symbol."""
    image = bytearray(layout.size)
    for number, start in layout.sections.items():
        section = file.sections[number]
        if section.type != SHT_NOBITS:
            image[start : start + section.size] = file.data[section.offset : section.offset + section.size]
    externals = {name: resolve(name) for name in layout.stubs}
    for name, stub in layout.stubs.items():
        code = _STUBS[file.machine] + externals[name].to_bytes(8, "little")
        image[stub : stub + len(code)] = code

    def address_of(symbol: Symbol) -> int:
        if symbol.section == SHN_UNDEF:
            return externals[symbol.name]
        if symbol.section == SHN_ABS:
            return symbol.value
        if symbol.section not in layout.sections:
            raise UnsupportedObject(f"symbol {symbol.name!r} lies in a section that is not loaded")
        return base + layout.sections[symbol.section] + symbol.value

    for symbol in file.symbols:
        if symbol.name in layout.slots:
            struct.pack_into("<Q", image, layout.slots[symbol.name], address_of(symbol))
    apply = _apply_x86_64 if file.machine == EM_X86_64 else _apply_aarch64
    for number, entries in file.relocations.items():
        for offset, info, addend in entries:
            symbol, place = file.symbols[info >> 32], layout.sections[number] + offset
            near = layout.stubs.get(symbol.name) if symbol.section == SHN_UNDEF else None
            slot = layout.slots.get(symbol.name)
            apply(
                image,
                place,
                info & 0xFFFFFFFF,
                base=base,
                target=address_of(symbol) + addend,
                call=(address_of(symbol) if near is None else base + near) + addend,
                slot=None if slot is None else base + slot + addend,
            )
    return image


def _apply_x86_64(
    image: bytearray, place: int, kind: int, *, base: int, target: int, call: int, slot: int | None
) -> None:
    here = base + place
    if kind == 1:  # 64
        struct.pack_into("<Q", image, place, target & (1 << 64) - 1)
    elif kind == 24:  # PC64
        struct.pack_into("<q", image, place, target - here)
    elif kind == 2:  # PC32
        struct.pack_into("<i", image, place, _within(target - here, 32))
    elif kind == 4:  # PLT32
        struct.pack_into("<i", image, place, _within(call - here, 32))
    elif kind in (9, 41, 42) and slot is not None:  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
        struct.pack_into("<i", image, place, _within(slot - here, 32))
    else:
        raise UnsupportedObject(f"relocation {kind} of x86-64")


_AARCH64_LOW = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # ADD and LDST8 to LDST128: log2 of the access


def _apply_aarch64(
    image: bytearray, place: int, kind: int, *, base: int, target: int, call: int, slot: int | None
) -> None:
    here = base + place
    if kind == 257:  # ABS64
        struct.pack_into("<Q", image, place, target & (1 << 64) - 1)
        return
    if kind == 260:  # PREL64
        struct.pack_into("<q", image, place, target - here)
        return
    if kind == 261:  # PREL32
        struct.pack_into("<i", image, place, _within(target - here, 32))
        return
    (word,) = struct.unpack_from("<I", image, place)
    if kind in (311, 312):  # ADR_GOT_PAGE, LD64_GOT_LO12_NC: as 275 and 286, of the table entry
        if slot is None:
            raise UnsupportedObject("a table entry for a symbol without a name")
        kind, target = {311: 275, 312: 286}[kind], slot
    if kind == 275:  # ADR_PREL_PG_HI21
        pages = _within((target >> 12) - (here >> 12), 21) & 0x1FFFFF
        word |= (pages & 3) << 29 | pages >> 2 << 5
    elif kind in _AARCH64_LOW:
        word |= (target & 0xFFF) >> _AARCH64_LOW[kind] << 10
    elif kind in (282, 283):  # JUMP26, CALL26
        word |= _within(call - here >> 2, 26) & 0x3FFFFFF
    else:
        raise UnsupportedObject(f"relocation {kind} of AArch64")
    struct.pack_into("<I", image, place, word)


def _within(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise UnsupportedObject(f"a distance of {value} does not fit {bits} bits")
    return value


def _up(value: int, step: int) -> int:
    return (value + step - 1) // step * step


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


@cache
def external_address(name: str) -> int:
    """The address of a function of the C, mathematics or compiler support library."""
    for library in (None, "libm.so.6", "libgcc_s.so.1"):
        try:
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
    raise UnsupportedObject(f"there is no function {name!r} to link with")


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, address, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype, libc.mmap.argtypes = address, [address, size, number, number, number, ctypes.c_long]
    libc.mprotect.argtypes = [address, size, number]
    libc.munmap.argtypes = [address, size]
    return libc


@cache
def _page_bytes() -> int:
    return os.sysconf("SC_PAGESIZE")
