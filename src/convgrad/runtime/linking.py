"""Where the sections of an object file go in memory, and what their code and constants hold there.

Position-independent code of the small code model, for x86-64 and AArch64. Whatever else needs an address raises
`UnsupportedObject`.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import NamedTuple

from convgrad.runtime.object_file import (
    EM_AARCH64,
    EM_X86_64,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_WRITE,
    SHN_ABS,
    SHN_UNDEF,
    SHT_NOBITS,
    ObjectFile,
    Symbol,
    UnsupportedObject,
)

PROT_READ, PROT_WRITE, PROT_EXEC = 1, 2, 4

_STUBS = {  # jump to an address that lies anywhere; it follows the code
    EM_X86_64: bytes.fromhex("ff2500000000"),  # jmp [rip]
    EM_AARCH64: bytes.fromhex("5000005800021fd6"),  # ldr x16, .+8; br x16
}
_STUB_BYTES = 16
_SLOT_BYTES = 8  # of the table of addresses that code loads from (GOT)


class Layout(NamedTuple):
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

    def address_of(symbol: Symbol) -> int | None:
        if symbol.section == SHN_UNDEF:
            return externals.get(symbol.name)
        if symbol.section == SHN_ABS:
            return symbol.value
        start = layout.sections.get(symbol.section)
        return None if start is None else base + start + symbol.value

    addresses = [address_of(symbol) for symbol in file.symbols]
    for symbol, address in zip(file.symbols, addresses, strict=True):
        if symbol.name in layout.slots and address is not None:
            struct.pack_into("<Q", image, layout.slots[symbol.name], address)
    apply = _apply_x86_64 if file.machine == EM_X86_64 else _apply_aarch64
    for number, entries in file.relocations.items():
        start = layout.sections[number]
        for offset, info, addend in entries:
            symbol, address = file.symbols[info >> 32], addresses[info >> 32]
            if address is None:
                raise UnsupportedObject(f"symbol {symbol.name!r} lies in a section that is not loaded")
            stub, slot = layout.stubs.get(symbol.name), layout.slots.get(symbol.name)
            apply(
                image,
                start + offset,
                info & 0xFFFFFFFF,
                base=base,
                target=address + addend,
                call=(address if stub is None else base + stub) + addend,
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


@cache
def _page_bytes() -> int:
    return os.sysconf("SC_PAGESIZE")
