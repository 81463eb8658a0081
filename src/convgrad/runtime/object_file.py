"""ELF object files as LLVM writes them, read: sections, symbols and relocations."""

from __future__ import annotations

import struct
from typing import NamedTuple

EM_X86_64, EM_AARCH64 = 62, 183
MACHINES = {"x86_64": EM_X86_64, "amd64": EM_X86_64, "aarch64": EM_AARCH64, "arm64": EM_AARCH64}

SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL = 1, 2, 4, 8, 9
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 1, 2, 4, 0x400
SHN_UNDEF, SHN_ABS, SHN_COMMON = 0, 0xFFF1, 0xFFF2

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")


class UnsupportedObject(Exception):
    """An object file that this loader does not take."""


class Section(NamedTuple):
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


class Symbol(NamedTuple):
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
        if (
            ident[:6] != b"\x7fELF\x02\x01"
            or kind != 1
            or self.machine not in MACHINES.values()
            or size != _SECTION.size
        ):
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
