"""Container images laid out like NVIDIA's, and a real registry on loopback that has them."""

import gzip
import hashlib
import io
import json
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gateway_local.children import is_ok
from gateway_local.hosts import LOOPBACK
from gateway_local.runtime.image.registry import INDEX_TYPES, LAYER_TYPES, MANIFEST_TYPES, ContainerImage
from gateway_local.runtime.image.unpack import unpack
from gateway_local.runtime.image.use import UnpackedImage, folder_name, open_image
from tests.processes import free_port, wait_for

PROGRAM = shutil.which("docker-registry")
needs_registry = pytest.mark.skipif(
    PROGRAM is None,
    reason="needs docker-registry, which no Python package brings (Debian: apt-get install docker-registry)",
)
REPOSITORY = "nvidia/tritonserver"
SERVER = "opt/tritonserver"
LOADER = "/lib64/ld-linux-x86-64.so.2"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def file(name: str, content: bytes = b"", *, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a layer: a file."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    return member, content


def link(name: str, target: str, *, hard: bool = False) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a layer: a symbolic or hard link."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.LNKTYPE if hard else tarfile.SYMTYPE, target
    return member, b""


def special(name: str, kind: bytes = tarfile.DIRTYPE) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a layer: a folder, or with another `kind` a device or pipe."""
    member = tarfile.TarInfo(name)
    member.type, member.mode = kind, 0o755
    return member, b""


def layer(*members: tuple[tarfile.TarInfo, bytes], compression: str = "gzip") -> bytes:
    """A layer: a tar archive, compressed by gzip, zstd or not at all ("")."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    match compression:
        case "gzip":
            return gzip.compress(archive.getvalue(), compresslevel=1)
        case "zstd":
            zstd = pytest.importorskip("backports.zstd")
            return zstd.compress(archive.getvalue())
    return archive.getvalue()


def digest(content: bytes) -> str:
    """The digest by which registries name content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class StoredImages:
    """What a registry has: blobs and manifests by their digests, and tags."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Media type and content by digest, and by tag."""

    def add_blob(self, content: bytes, media_type: str) -> dict[str, object]:
        """Add a blob; returns its descriptor."""
        self.blobs[digest(content)] = content
        return {"mediaType": media_type, "digest": digest(content), "size": len(content)}

    def add_manifest(self, document: dict[str, object], tag: str | None = None) -> dict[str, object]:
        """Add a manifest or an index, with a tag if one is given; returns its descriptor."""
        content = json.dumps(document).encode()
        media_type = str(document["mediaType"])
        for name in (digest(content), *([tag] if tag else [])):
            self.manifests[name] = (media_type, content)
        return {"mediaType": media_type, "digest": digest(content), "size": len(content)}

    def add_image(
        self,
        *layers: bytes,
        tag: str | None = "26.11-py3",
        architecture: str = "amd64",
        variables: Sequence[str] = (),
        docker: bool = False,
        layer_type: str = LAYER_TYPES[2],
    ) -> dict[str, object]:
        """Add an image for one architecture; returns the descriptor of its manifest."""
        config = {"os": "linux", "architecture": architecture, "config": {"Env": list(variables)}}
        return self.add_manifest(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPES[docker],
                "config": self.add_blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
                "layers": [self.add_blob(each, LAYER_TYPES[0] if docker else layer_type) for each in layers],
            },
            tag,
        )

    def add_index(self, images: dict[str, dict[str, object]], *, docker: bool = False) -> dict[str, object]:
        """Add an index of images by architecture; returns its descriptor."""
        entries = [
            {**image, "platform": {"os": "linux", "architecture": architecture}}
            for architecture, image in images.items()
        ]
        return self.add_manifest(
            {"schemaVersion": 2, "mediaType": INDEX_TYPES[docker], "manifests": entries}, "26.11-py3"
        )


@contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Run Debian's docker-registry over a folder while the context is open; yields its host and port."""
    assert PROGRAM is not None
    port = free_port()
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\n"
        "log: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    process = subprocess.Popen([PROGRAM, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: is_ok(LOOPBACK, port, "/v2/", timeout_seconds=5))
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def push(images: StoredImages, host: str) -> None:
    """Push all that is stored to a registry, as `docker push` does."""
    base = f"http://{host}/v2/{REPOSITORY}"
    with httpx.Client(timeout=60, trust_env=False) as client:
        for name, content in images.blobs.items():
            begun = client.post(f"{base}/blobs/uploads/").raise_for_status()
            location = httpx.URL(base).join(begun.headers["location"]).copy_merge_params({"digest": name})
            client.put(location, content=content).raise_for_status()
        # An index is refused before the images that it lists.
        in_order = sorted(images.manifests.items(), key=lambda item: item[1][0] in INDEX_TYPES)
        for name, (media_type, content) in in_order:
            headers = {"Content-Type": media_type}
            client.put(f"{base}/manifests/{name}", content=content, headers=headers).raise_for_status()


def elf(
    needed: Sequence[str] = (),
    *,
    loader: str | None = None,
    runpath: str = "",
    glibc: Sequence[str] = (),
    defines: Sequence[str] = (),
    machine: int = 62,
) -> bytes:
    """The headers of a program or library that needs libraries, and symbols of versions such as GLIBC_2.34."""
    strings = bytearray(b"\0")

    def text(value: str) -> int:
        at = len(strings)
        strings.extend(value.encode() + b"\0")
        return at

    dynamic = [(1, text(name)) for name in needed]
    if runpath:
        dynamic.append((29, text(runpath)))
    names, loader_at = [text(name) for name in glibc], text(loader or "")
    defined = [text(name) for name in defines]
    start = 64 + 3 * 56
    strings_at = start + 16 * (len(dynamic) + 4)
    table = bytearray()
    if names:
        table += struct.pack("<HHIII", 1, len(names), text("libc.so.6"), 16, 0)
        for index, name in enumerate(names):
            table += struct.pack("<IHHII", 0, 0, 2, name, 16 if index + 1 < len(names) else 0)
    needs_at = strings_at + len(strings)
    defines_at = needs_at + len(table)
    for index, name in enumerate(defined):
        table += struct.pack("<HHHHIII", 1, 0, 1, 1, 0, 20, 28 if index + 1 < len(defined) else 0)
        table += struct.pack("<II", name, 0)
    dynamic.append((5, strings_at))
    if names:
        dynamic.append((0x6FFFFFFE, needs_at))
    if defined:
        dynamic.append((0x6FFFFFFC, defines_at))
    body = b"".join(struct.pack("<QQ", *entry) for entry in dynamic).ljust(strings_at - start, b"\0")
    body += bytes(strings) + bytes(table)
    size = start + len(body)

    def segment(kind: int, offset: int, length: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, 4, offset, offset, offset, length, length, 1)

    segments = segment(1, 0, size) + segment(2, start, strings_at - start)
    segments += segment(3, strings_at + loader_at, len(loader or "") + 1) if loader else segment(0, 0, 0)
    header = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0)
    return b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + header + segments + body


def triton_like_nvidias(python: str = "3.12", glibc: str = "2.34") -> tuple[bytes, ...]:
    """The layers of an image laid out like NVIDIA's, of programs that cannot run: only their headers are there."""
    lib = "usr/lib/x86_64-linux-gnu"
    program = elf(["libtritonserver.so", "libssl.so.3"], loader=LOADER, glibc=[f"GLIBC_{glibc}"])
    pytorch = elf(["libtorch.so", "libcudnn.so.9"], runpath="$ORIGIN")
    distribution = layer(
        link("lib", "usr/lib"),
        link("lib64", "usr/lib64"),
        file(f"usr{LOADER}", elf(), mode=0o755),
        file(f"{lib}/libc.so.6", elf(["ld-linux-x86-64.so.2"], defines=["GLIBC_2.2.5", "GLIBC_2.39", "GLIBC_PRIVATE"])),
        file(f"{lib}/libm.so.6", elf(["libc.so.6"])),
        file(f"{lib}/libstdc++.so.6.0.33", elf(["libc.so.6"])),
        link(f"{lib}/libstdc++.so.6", "libstdc++.so.6.0.33"),
        file(f"{lib}/libssl.so.3", elf(["libcrypto.so.3", "libc.so.6"])),
        file(f"{lib}/libcrypto.so.3", elf(["libc.so.6"])),
        file(f"{lib}/libunused.so.1", elf(["libc.so.6"])),
        file("etc/ld.so.conf.d/cuda.conf", b"# CUDA\n/usr/local/cuda/lib64\n"),
        file("usr/bin/python3", b"#!/bin/sh\n", mode=0o755),
    )
    cuda = layer(
        link("usr/local/cuda", "cuda-13"),
        file("usr/local/cuda-13/lib64/libcudart.so.13", elf(["libc.so.6"])),
        file("usr/local/cuda-13/lib64/libcudnn.so.9", elf(["libc.so.6"])),
        file("usr/local/cuda-13/lib64/libcudnn_ops.so.9", elf(["libc.so.6"])),
        file("usr/local/cuda-13/lib64/stubs/libcuda.so.1", elf()),
    )
    server = layer(
        file(f"{SERVER}/TRITON_VERSION", b"2.75.0\n"),
        file(f"{SERVER}/LICENSE", b"BSD"),
        file(f"{SERVER}/bin/tritonserver", program, mode=0o755),
        file(f"{SERVER}/lib/libtritonserver.so", elf(["libcudart.so.13", "libcuda.so.1", "libstdc++.so.6"])),
        file(f"{SERVER}/lib/stubs/libtritonserver.so", elf()),
        file(f"{SERVER}/caches/local/libtritoncache_local.so", elf(["libc.so.6"])),
        file(f"{SERVER}/backends/python/libtriton_python.so", elf(["libc.so.6"])),
        file(f"{SERVER}/backends/python/triton_python_backend_utils.py", b"# utils"),
        file(
            f"{SERVER}/backends/python/triton_python_backend_stub",
            elf([f"libpython{python}.so.1.0", "libcudart.so.13"], loader=LOADER),
            mode=0o755,
        ),
        file(f"{SERVER}/backends/pytorch/libtriton_pytorch.so", pytorch),
        file(f"{SERVER}/backends/pytorch/libtorch.so", elf(["libc.so.6"])),
        file(f"{SERVER}/backends/dali/libtriton_dali.so", elf(["libunused.so.1"])),
    )
    return distribution, cuda, server


def unpacked_image(cache: Path, *, python: str = PYTHON, glibc: str = "2.34", version: str = "2.75.0") -> UnpackedImage:
    """An unpacked image of such layers in a cache folder."""
    files = []
    for number, content in enumerate(triton_like_nvidias(python, glibc)):
        files.append(cache / f"layer-{number}")
        files[-1].write_bytes(content)
    name = digest(f"{python} {glibc} {version}".encode())
    folder = cache / folder_name(name)
    folder.mkdir()
    variables = {"config": {"Env": [f"TRITON_SERVER_VERSION={version}", "UCX_MEM_EVENTS=no"]}}
    unpack(ContainerImage(name, variables, ()), files, folder, reference="registry.example/tritonserver:26.11-py3")
    for path in files:
        path.unlink()
    found = open_image(folder)
    assert found is not None
    return found
