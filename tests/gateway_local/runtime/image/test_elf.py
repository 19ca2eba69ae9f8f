import random
import sys
from pathlib import Path

import pytest

from gateway_local.runtime.base import find_libpython
from gateway_local.runtime.image.elf import MACHINES, MAX_STRING_BYTES, NO_VERSION, NotElf, read_elf
from tests.triton_images import LOADER, elf


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


def test_libraries_loader_and_folders_are_read(tmp_path):
    found = read_elf(write(tmp_path, elf(["liba.so.1", "libb.so"], loader=LOADER, runpath="$ORIGIN/../lib:/opt/x")))
    assert found.needed == ("liba.so.1", "libb.so")
    assert found.loader == LOADER
    assert found.search == ("$ORIGIN/../lib", "/opt/x")
    assert found.machine == MACHINES["x86_64"]


@pytest.mark.parametrize(
    ("names", "glibc"),
    [
        ([], NO_VERSION),
        (["GLIBC_2.2.5"], (2, 2)),
        (["GLIBC_2.4", "GLIBC_2.38", "GLIBC_2.9"], (2, 38)),
        (["GLIBC_2.34", "GLIBC_PRIVATE", "GLIBCXX_3.4.33", "CUDA_13.0"], (2, 34)),
        (["GLIBC_2.34", "GLIBC_ABI_DT_RELR"], (2, 36)),
    ],
)
def test_newest_needed_version_of_glibc_is_read(tmp_path, names, glibc):
    found = read_elf(write(tmp_path, elf(["libc.so.6"], glibc=names)))
    assert found.glibc == glibc
    assert found.defined_glibc == NO_VERSION


@pytest.mark.skipif(sys.platform != "linux", reason="reads a library of Linux")
def test_real_library_is_read():
    found = read_elf(find_libpython())
    assert "libc.so.6" in found.needed
    assert found.glibc > (2, 2)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(200)])
def test_other_files_are_not_elf(tmp_path, content):
    with pytest.raises(NotElf):
        read_elf(write(tmp_path, content))


def test_string_may_be_so_long_and_no_longer(tmp_path):
    assert read_elf(write(tmp_path, elf(["a" * (MAX_STRING_BYTES - 1)])))
    with pytest.raises(NotElf):
        read_elf(write(tmp_path, elf(["a" * MAX_STRING_BYTES])))


def test_damaged_files_raise_nothing_else(tmp_path):
    """Up to three bytes have other values, and half of the files are cut."""
    whole = elf(["liba.so"], loader=LOADER, runpath="/x", glibc=["GLIBC_2.34", "GLIBC_2.38"], defines=["GLIBC_2.39"])
    generator = random.Random(0)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(6, len(whole))] = generator.choice([0, 1, 0x7F, 0xFF, generator.randrange(256)])
        length = generator.choice([len(whole), generator.randrange(7, len(whole))])
        try:
            read_elf(write(tmp_path, bytes(damaged[:length])))
            outcomes["read"] += 1
        except NotElf:
            outcomes["refused"] += 1
    assert all(outcomes.values())
