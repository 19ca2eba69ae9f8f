"""What is unpacked of an image laid out like NVIDIA's, and what its programs say that they need."""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway_local.runtime.base import find_libpython
from gateway_local.runtime.image.elf import MACHINES, MAX_STRING_BYTES, NO_VERSION, NotElf, read_elf
from gateway_local.runtime.image.errors import ImageError
from gateway_local.runtime.image.registry import ContainerImage
from gateway_local.runtime.image.unpack import Record, unpack
from tests.triton_images import LOADER, SERVER, elf, file, layer, link, triton_like_nvidias

VARIABLES = [
    "PATH=/usr/bin",
    "TRITON_SERVER_VERSION=2.75.0",
    f"LD_LIBRARY_PATH=/{SERVER}/backends/pytorch:/usr/local/x",
]


def unpacked(
    tmp_path: Path,
    layers: Sequence[bytes],
    *,
    backends: Sequence[str] | None = None,
    variables: Sequence[str] = VARIABLES,
) -> Record:
    files = [tmp_path / f"layer-{number}" for number in range(len(layers))]
    for path, content in zip(files, layers, strict=True):
        path.write_bytes(content)
    target = tmp_path / "image"
    target.mkdir()
    image = ContainerImage("sha256:" + "0" * 64, {"config": {"Env": list(variables)}}, ())
    return unpack(image, files, target, reference="registry.example/tritonserver:1", backends=backends)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_server_backends_and_needed_libraries_are_at_their_places(tmp_path):
    """With the libraries that libraries need or libcudnn loads by name; without the driver's, and CUDA's stub of it."""
    record = unpacked(tmp_path, triton_like_nvidias(python="3.13", glibc="2.38"))
    assert names(tmp_path / "image" / "tritonserver") == {
        "LICENSE",
        "TRITON_VERSION",
        "backends/python/libtriton_python.so",
        "backends/python/triton_python_backend_stub",
        "backends/python/triton_python_backend_utils.py",
        "backends/pytorch/libtorch.so",
        "backends/pytorch/libtriton_pytorch.so",
        "bin/tritonserver",
        "caches/local/libtritoncache_local.so",
        "lib/libtritonserver.so",
    }
    assert (tmp_path / "image" / "tritonserver" / "bin" / "tritonserver").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "image" / "tritonserver" / "LICENSE").stat().st_mode & 0o777 == 0o644
    assert record.backends == ("python", "pytorch")
    assert record.available == ("dali", "python", "pytorch")
    assert names(tmp_path / "image" / "libraries") == {
        "libcrypto.so.3", "libcudart.so.13", "libcudnn.so.9", "libcudnn_ops.so.9", "libssl.so.3",
    }  # fmt: skip
    assert record.stub_libraries == ("libcudart.so.13",)
    assert names(tmp_path / "image" / "system") == {
        "ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libstdc++.so.6",
    }  # fmt: skip
    assert (record.version, record.python, record.machine, record.loader) == ("2.75.0", "3.13", "x86_64", LOADER)
    assert (record.needed_glibc, record.own_glibc) == ((2, 38), (2, 39))
    assert record.search == ("backends/pytorch",)
    assert Record.read(tmp_path / "image") == record


def test_libraries_of_the_stub_may_lie_with_the_server(tmp_path):
    """In /opt/tritonserver/lib, which no variable and no RUNPATH names."""
    needed = elf(["libpython3.12.so.1.0", "libshared.so.1"], loader=LOADER)
    added = layer(
        file(f"{SERVER}/backends/python/triton_python_backend_stub", needed, mode=0o755),
        file(f"{SERVER}/lib/libshared.so.1", elf(["libc.so.6"])),
    )
    record = unpacked(tmp_path, [*triton_like_nvidias(), added])
    assert record.stub_libraries == ("libshared.so.1",)
    assert "libshared.so.1" in names(tmp_path / "image" / "libraries")
    assert "lib/libshared.so.1" in names(tmp_path / "image" / "tritonserver")


@pytest.mark.parametrize(
    ("variables", "version"),
    [
        ([], "2.75.0"),  # from a file
        *(([f"TRITON_SERVER_VERSION={text}"], "") for text in ("2", "²", "2.75.0\x1b[2J", "2.75" + "0" * 40)),
    ],
)
def test_version_is_that_of_a_variable_or_a_file(tmp_path, variables, version):
    assert unpacked(tmp_path, triton_like_nvidias(), variables=variables).version == version
    assert {path.name for path in tmp_path.iterdir()} == {"image", "layer-0", "layer-1", "layer-2"}


@pytest.mark.parametrize(
    ("above", "needed"),
    [
        (
            [
                file(f"{SERVER}/backends/dali/libx.so", elf(["libc.so.6"])),
                link(f"{SERVER}/backends/pytorch/libx.so", f"{SERVER}/backends/dali/libx.so", hard=True),
            ],
            ["libc.so.6"],
        ),
        (
            [link(f"{SERVER}/backends/pytorch/libx.so", "/lib/x86_64-linux-gnu/libssl.so.3")],
            ["libcrypto.so.3", "libc.so.6"],
        ),
    ],
    ids=["a hard link to a folder that is not unpacked", "a link out of the backend's folder, which Triton refuses"],
)
def test_links_are_unpacked_as_files(tmp_path, above, needed):
    unpacked(tmp_path, (*triton_like_nvidias(), layer(*above)))
    linked = tmp_path / "image" / "tritonserver" / "backends" / "pytorch" / "libx.so"
    assert not linked.is_symlink()
    assert linked.read_bytes() == elf(needed)


def test_only_the_backends_asked_for_are_unpacked(tmp_path):
    record = unpacked(tmp_path, triton_like_nvidias(), backends=("python", "dali"))
    assert record.backends == ("python", "dali")
    assert not (tmp_path / "image" / "tritonserver" / "backends" / "pytorch").exists()
    assert "libunused.so.1" in names(tmp_path / "image" / "libraries")


@pytest.mark.parametrize(
    ("member", "backends", "reason"),
    [
        (f"{SERVER}/.wh.bin", None, "it is not an image of Triton"),
        (f"{SERVER}/backends/.wh.python", None, "the backend python must be unpacked"),
        (f"{SERVER}/backends/python/.wh.triton_python_backend_stub", None, "has no triton_python_backend_stub"),
        ("usr/lib64/.wh.ld-linux-x86-64.so.2", None, "no /lib64/ld-linux-x86-64.so.2"),
        ("usr/lib/x86_64-linux-gnu/.wh.libc.so.6", None, "no libc.so.6"),
        (f"{SERVER}/bin/tritonserver", None, "not a program for this kind of machine"),
        ("any", ("python", "tensorrt"), "has no backend tensorrt; the image has dali, python, pytorch"),
        ("any", ("pytorch",), "the backend python must be unpacked"),
    ],
)
def test_image_that_cannot_be_unpacked_is_refused(tmp_path, member, backends, reason):
    """A layer above the image removes a part by a whiteout, or replaces it by a script."""
    layers = (*triton_like_nvidias(), layer(file(member, b"#!/bin/sh\n", mode=0o755)))
    with pytest.raises(ImageError, match=reason):
        unpacked(tmp_path, layers, backends=backends)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 2, "digest": "x"}'])
def test_damaged_record_counts_as_no_image(tmp_path, text):
    (tmp_path / "image.json").write_text(text)
    assert Record.read(tmp_path) is None


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
