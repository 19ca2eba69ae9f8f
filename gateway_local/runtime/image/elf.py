"""What a program or shared library for Linux needs to run: its loader, its libraries and the oldest glibc.

System V ABI, "Dynamic Linking"; Linux Standard Base, "Symbol Versioning". 64 bits, little-endian: x86-64 and arm64.
"""

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MACHINES = {"x86_64": 62, "aarch64": 183}
"""Values of e_machine by `platform.machine()`."""
MAX_ENTRIES = 65_536
"""Entries read of a table; a larger one is damaged."""
MAX_STRING_BYTES = 4096

_MAGIC = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 1, 5, 15, 29
_DT_VERDEF, _DT_VERNEED = 0x6FFFFFFC, 0x6FFFFFFE
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")
_RELATIVE_RELOCATIONS, _RELATIVE_RELOCATIONS_SINCE = b"GLIBC_ABI_DT_RELR", (2, 36)

Version = tuple[int, int]
NO_VERSION: Version = (0, 0)


class NotElf(ValueError):
    """The file is no ELF file of 64 bits, or it is damaged."""


@dataclass(frozen=True, slots=True)
class Elf:
    """One file. `search` are the folders of RUNPATH or RPATH, which may contain $ORIGIN, the file's own folder."""

    machine: int
    loader: str | None
    needed: tuple[str, ...]
    search: tuple[str, ...]
    glibc: Version
    """The oldest glibc with which it runs; (0, 0) if it needs none."""
    defined_glibc: Version
    """For glibc's own libc.so.6: its version; else (0, 0)."""


def read_elf(path: Path) -> Elf:
    """Read a file's headers; raises NotElf or OSError."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise NotElf(f"{path} is no ELF file of 64 bits")
        # Libraries have up to gigabytes, of which only the tables are read.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).read()
            except (struct.error, IndexError, OverflowError) as exc:
                raise NotElf(f"{path} is damaged: {exc}") from exc


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._segments: list[tuple[int, int, int]] = []
        """Address, offset in the file, and size of each loaded segment."""
        self._strings = 0

    def read(self) -> Elf:
        (machine,) = self._unpack("<H", 18)
        (table,) = self._unpack("<Q", 32)
        size, count = self._unpack("<HH", 54)
        loader: str | None = None
        dynamic: tuple[int, int] | None = None
        for index in range(count):
            kind, _, offset, address, _, in_file, _, _ = self._unpack("<IIQQQQQQ", table + index * size)
            if kind == _PT_LOAD:
                self._segments.append((address, offset, in_file))
            elif kind == _PT_DYNAMIC:
                dynamic = (offset, in_file)
            elif kind == _PT_INTERP:
                loader = self._text(offset)
        tags = list(self._dynamic(*dynamic)) if dynamic else []
        values = dict(tags)
        if _DT_STRTAB in values:
            self._strings = self._offset(values[_DT_STRTAB])
        search = [self._string(value) for tag, value in tags if tag in {_DT_RUNPATH, _DT_RPATH}]
        return Elf(
            machine=machine,
            loader=loader,
            needed=tuple(self._string(value) for tag, value in tags if tag == _DT_NEEDED),
            search=tuple(folder for folders in search for folder in folders.split(":") if folder),
            glibc=self._newest(self._needed_versions(values[_DT_VERNEED]) if _DT_VERNEED in values else ()),
            defined_glibc=self._newest(self._defined_versions(values[_DT_VERDEF]) if _DT_VERDEF in values else ()),
        )

    def _unpack(self, form: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(form, self._data, offset)

    def _offset(self, address: int) -> int:
        for start, offset, size in self._segments:
            if start <= address < start + size:
                return address - start + offset
        raise IndexError(f"no segment has the address {address:#x}")

    def _bytes(self, offset: int) -> bytes:
        end = self._data.find(b"\0", offset, offset + MAX_STRING_BYTES)
        if offset < 0 or end < 0:
            raise IndexError(f"no text ends after {offset:#x}")
        return self._data[offset:end]

    def _text(self, offset: int) -> str:
        return self._bytes(offset).decode("utf-8", "replace")

    def _string(self, index: int) -> str:
        return self._text(self._strings + index)

    def _dynamic(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        for index in range(min(size // 16, MAX_ENTRIES)):
            tag, value = self._unpack("<QQ", offset + index * 16)
            if tag == 0:
                return
            yield tag, value

    def _needed_versions(self, address: int) -> Iterator[bytes]:
        """The names in the table of needed versions: of each library, a chain of them."""
        at = self._offset(address)
        seen = 0
        while seen < MAX_ENTRIES:
            _, _, _, first, following = self._unpack("<HHIII", at)
            name_at = at + first
            while seen < MAX_ENTRIES:
                seen += 1
                _, _, _, name, next_name = self._unpack("<IHHII", name_at)
                yield self._bytes(self._strings + name)
                if not next_name:
                    break
                name_at += next_name
            if not following:
                return
            at += following

    def _defined_versions(self, address: int) -> Iterator[bytes]:
        at = self._offset(address)
        for _ in range(MAX_ENTRIES):
            _, _, _, _, _, first, following = self._unpack("<HHHHIII", at)
            (name,) = self._unpack("<I", at + first)
            yield self._bytes(self._strings + name)
            if not following:
                return
            at += following

    @staticmethod
    def _newest(names: Iterator[bytes] | tuple[()]) -> Version:
        newest = NO_VERSION
        for name in names:
            if name == _RELATIVE_RELOCATIONS:
                newest = max(newest, _RELATIVE_RELOCATIONS_SINCE)
            elif match := _GLIBC.fullmatch(name):
                newest = max(newest, (int(match[1]), int(match[2])))
        return newest
