"""An image laid out like NVIDIA's whose Triton runs: the wheel's server, and this machine's C and C++ runtime."""

import os
import platform
import sys
from pathlib import Path

from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.image.elf import read_elf
from gateway_local.runtime.image.unpack import SYSTEM
from tests.triton_images import SERVER, file, layer, link

LIB = "usr/lib/x86_64-linux-gnu"
VARIABLES = ["TRITON_SERVER_VERSION=2.51.0", "NVIDIA_TRITON_SERVER_VERSION=24.10"]


def real_layers(runtime: TritonRuntime) -> tuple[bytes, ...]:
    """The layers: the distribution's libraries, and the server."""
    server = runtime.tritonserver.parent.parent
    loader = read_elf(runtime.tritonserver).loader
    assert loader is not None
    distribution = [link("lib", "usr/lib"), link("lib64", "usr/lib64")]
    distribution.append(file(f"usr{loader}", Path(loader).read_bytes(), mode=0o755))
    for name in SYSTEM:
        if (path := _library(name)) is not None:
            distribution.append(file(f"{LIB}/{name}", path.read_bytes()))
    bundled = server.parent.parent / "nvidia_pytriton.libs"
    for path in sorted(bundled.iterdir()):
        if not path.name.startswith("libpython"):
            distribution.append(file(f"{LIB}/{path.name}", path.read_bytes()))
    stub = f"{SERVER}/backends/python/triton_python_backend_stub"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    members = [
        file(f"{SERVER}/bin/tritonserver", runtime.tritonserver.read_bytes(), mode=0o755),
        file(stub, (server / "python_backend_stubs" / version / "triton_python_backend_stub").read_bytes(), mode=0o755),
        file(f"{SERVER}/LICENSE", b"as in NVIDIA's image"),
    ]
    for folder in ("lib", "caches", "backends"):
        for path in sorted((server / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.name != "triton_python_backend_stub":
                members.append(file(f"{SERVER}/{path.relative_to(server)}", path.read_bytes()))
    return layer(*distribution), layer(*members)


def _library(name: str) -> Path | None:
    """Where this machine has a library of its C or C++ runtime."""
    multiarch = f"{platform.machine()}-linux-gnu"
    found = (Path(folder) / name for folder in (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64"))
    return next((path for path in found if path.is_file()), None)


def copy_without_cache(environment: dict[str, str], cache: Path) -> dict[str, str]:
    """An environment whose cache folder is another one, and which finds no wheel of Triton."""
    cache.mkdir(parents=True, exist_ok=True)
    return {**environment, "XDG_CACHE_HOME": str(cache), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": os.devnull}
