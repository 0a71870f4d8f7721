"""What a cubin says about its kernels: names, registers, shared memory, and bytes of spilled
registers.

A cubin is an ELF file. A kernel ``k`` is a section ``.text.k``. The static shared memory of a block
is the size of the section ``.nv.shared.k``, 1 KiB of which belongs to the system from sm_90 on. The
section ``.nv.info`` has the registers and the stack of each kernel, by the number of the kernel's
symbol. So no tool of the CUDA toolkit is needed; ``cuobjdump --dump-resource-usage`` of CUDA 13.5
gives the same figures.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE: Final = 2
# An entry of .nv.info is (format, attribute, size of the value). The value of these two attributes
# is the number of a symbol, and a number.
_SIZED, _MIN_STACK_SIZE, _REGISTERS = 4, 0x12, 0x2F
_CUDA_MACHINE: Final = 190


@dataclass(frozen=True)
class Resources:
    """The resources that a kernel takes.

    Attributes:
        registers: registers of a thread, of 4 bytes each.
        shared_bytes: shared memory of a block.
        stack_bytes: stack of a thread in the GPU's memory, for values that registers don't hold.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    size: int
    data: bytes


def resources(cubin: bytes) -> dict[str, Resources]:
    """The resources of a cubin's kernels, by name.

    Raises:
        ValueError: this is no cubin.
    """
    try:
        sections = list(_sections(cubin))
        symbols = _symbols(sections)
        told = _told(sections, symbols)
        shared = {s.name.removeprefix(".nv.shared."): s.size for s in sections}
        return {
            name: Resources(
                told[_REGISTERS, name], shared.get(name, 0), told.get((_MIN_STACK_SIZE, name), 0)
            )
            for section in sections
            if (name := section.name.removeprefix(".text.")) != section.name
        }
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"no cubin: {error}") from error


def _sections(cubin: bytes) -> Iterator[_Section]:
    """The sections of an ELF file, with their names."""
    if cubin[:5] != b"\x7fELF\x02" or struct.unpack_from("<H", cubin, 18) != (_CUDA_MACHINE,):
        raise ValueError("no cubin: another kind of file")
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    rows = [_SECTION.unpack_from(cubin, start + n * size) for n in range(count)]
    names = cubin[rows[names_at][4] :]
    for row in rows:
        name = names[row[0] : names.index(b"\0", row[0])].decode()
        yield _Section(name, row[1], row[5], cubin[row[4] : row[4] + row[5]])


def _symbols(sections: list[_Section]) -> list[str]:
    table = next((s.data for s in sections if s.kind == _SYMBOL_TABLE), b"")
    texts = next((s.data for s in sections if s.name == ".strtab"), b"\0")
    starts = [row[0] for row in _SYMBOL.iter_unpack(table)]
    return [texts[at : texts.index(b"\0", at)].decode() for at in starts]


def _told(sections: list[_Section], symbols: list[str]) -> dict[tuple[int, str], int]:
    """The values in .nv.info, by attribute and kernel."""
    data = next((s.data for s in sections if s.name == ".nv.info"), b"")
    found, at = {}, 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            if attribute in (_MIN_STACK_SIZE, _REGISTERS):
                symbol, value = struct.unpack_from("<II", data, at)
                found[attribute, symbols[symbol]] = value
            at += size
    return found
