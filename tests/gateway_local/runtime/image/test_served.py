"""From a real registry to an answered picture: an image laid out like NVIDIA's, with the wheel's Triton in it."""

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gateway_local import paths
from gateway_local.children import is_ok
from gateway_local.hosts import LOOPBACK
from gateway_local.paths import DEFAULT_BACKENDS, SHIPPED_EXAMPLES, default_cache_dir
from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.image.elf import read_elf
from gateway_local.runtime.image.use import UnpackedImage, image_runtime, in_use, stub_failure, unloadable
from tests.processes import environment, free_port, python, wait_for
from tests.real_image import VARIABLES, copy_without_cache, real_layers
from tests.triton_images import REPOSITORY, StoredImages, needs_registry, push, running_registry
from tests.tritons import running_triton, stub_processes

pytestmark = [
    needs_registry,
    pytest.mark.long,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheel's Triton is for x86-64"),
    # The wheel's program for 3.13 asks for its packager's own copy of libpython.
    pytest.mark.skipif(sys.version_info >= (3, 13), reason="the wheel's Python backend for 3.13 is not NVIDIA's"),
]


@pytest.fixture(scope="module")
def registry(runtime: TritonRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that has the image, in an index for two architectures."""
    images = StoredImages()
    layers = real_layers(runtime)
    images.add_index(
        {
            "arm64": images.add_image(layers[0], tag=None, architecture="arm64"),
            "amd64": images.add_image(*layers, tag=None, variables=VARIABLES),
        }
    )
    with running_registry(tmp_path_factory.mktemp("registry")) as host:
        push(images, host)
        yield host


@pytest.fixture(scope="module")
def cache(registry: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder into which the command has fetched the image."""
    folder = tmp_path_factory.mktemp("cache")
    command = ("-m", "gateway_cli", "triton", "fetch", "--image", f"{registry}/{REPOSITORY}:26.11-py3")
    completed = python(*command, env=copy_without_cache(environment(), folder))
    assert "gateway up uses Triton 2.51.0" in completed.stderr
    return folder / default_cache_dir().name


@pytest.fixture(scope="module")
def image(cache: Path) -> UnpackedImage:
    """The fetched image."""
    found = in_use(cache)
    assert found is not None
    return found


def test_gateway_up_answers_a_picture_with_the_images_triton(image, light_repository):
    port = free_port()
    command = [sys.executable, "-m", "gateway_cli", "up", f"--port={port}", f"--model-repository={light_repository}"]
    variables = copy_without_cache(environment(), image.folder.parent.parent)
    process = subprocess.Popen(command, env=variables, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: is_ok(LOOPBACK, port, "/health/ready", timeout_seconds=5), process=process)
        content = (SHIPPED_EXAMPLES / paths.SAMPLE).read_bytes()
        reply = httpx.post(f"http://127.0.0.1:{port}/predict", files={"files": content}, timeout=60)
        assert reply.status_code == 200
        (result,) = reply.json()["results"]
        assert result["status"] == "ok"
        assert result["predictions"]
    finally:
        process.terminate()
        log, _ = process.communicate(timeout=60)
    assert "warning: Triton" not in log


def test_triton_runs_with_the_glibc_of_its_image(image, light_repository, monkeypatch):
    """As on a machine with an older one: the server and the Python processes map no C library but the image's."""
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.17"))
    runtime = image_runtime(image.folder.parent, image, DEFAULT_BACKENDS)
    with running_triton(runtime, light_repository) as server:
        stubs = [process.pid for process in stub_processes(server, "preprocessor")]
        assert stubs
        for pid in (server.pid, *stubs):
            maps = Path(f"/proc/{pid}/maps").read_text()
            mapped = {line.split()[-1] for line in maps.splitlines() if line.endswith("/libc.so.6")}
            assert mapped == {str(image.folder / "system" / "libc.so.6")}


def test_all_that_the_image_needs_is_unpacked(image):
    assert unloadable(image) == {}
    assert stub_failure(image_runtime(image.folder.parent, image, DEFAULT_BACKENDS)) == ""


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    """A file of the image with another content."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def test_missing_library_is_named_and_damaged_program_refused(image):
    """Libraries of a GPU's driver are not missing: only machines with a GPU have them."""
    (library,) = (image.folder / "libraries").glob("libb64*.so*")
    program = image.folder / "tritonserver" / "bin" / "tritonserver"
    content, name = program.read_bytes(), library.name.encode()
    with changed(program, content.replace(name, b"libcuda.so.1".ljust(len(name), b"\0"))):
        assert "libcuda.so.1" in read_elf(program).needed
        assert unloadable(image) == {}
    with changed(program, content.replace(name, b"libxyz.so.1".ljust(len(name), b"\0"))):
        assert unloadable(image) == {"tritonserver": ["libxyz.so.1 => not found"]}
    with changed(program, content[: len(content) // 2]):
        assert list(unloadable(image)) == ["tritonserver"]
