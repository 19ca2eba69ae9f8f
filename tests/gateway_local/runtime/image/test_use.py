"""An unpacked image is started by the right loader, and only where it runs."""

import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway_local.paths import DEFAULT_BACKENDS, default_cache_dir
from gateway_local.runtime.base import TritonRuntime, find_libpython
from gateway_local.runtime.chooser import ensure_runtime, is_fetched
from gateway_local.runtime.image.errors import ImageUnusable
from gateway_local.runtime.image.use import IN_USE, image_runtime, in_use, use
from gateway_local.runtime.wheel import TRITON_VERSION, WHEEL_VERSION
from tests.triton_images import LOADER, PYTHON, unpacked_image


def command(script: Path) -> list[str]:
    """The words of the command that a script becomes."""
    first, *_, line = script.read_text().splitlines()
    assert first == "#!/bin/sh"
    return shlex.split(line.removeprefix("exec "))


def folders(words: list[str]) -> list[str]:
    return words[2].removesuffix("${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}").split(":")


def test_newer_glibc_of_this_machine_runs_the_image(tmp_path, monkeypatch):
    """Python processes get only their own libraries: what they load needs this machine's versions, as of OpenSSL."""
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    image = unpacked_image(tmp_path)
    runtime = image_runtime(tmp_path, image, DEFAULT_BACKENDS)
    words = command(runtime.tritonserver)
    assert words[:2] == [LOADER, "--library-path"]
    assert folders(words) == [str(image.folder / "tritonserver" / "lib"), str(image.folder / "libraries")]
    assert words[3:] == [str(image.folder / "tritonserver" / "bin" / "tritonserver"), "$@"]
    assert runtime.library_path == ()
    words = command(runtime.backend_directory / "python" / "triton_python_backend_stub")
    (folder,) = folders(words)
    assert {path.name for path in Path(folder).iterdir()} == {find_libpython().name, "libcudart.so.13"}
    assert Path(words[3]).name == "triton_python_backend_stub"
    assert Path(words[3]).read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize(("host", "newer"), [("2.37", True), ("2.38", False), ("2.39", False), ("3.0", False)])
def test_image_with_a_newer_glibc_brings_its_own(tmp_path, monkeypatch, host, newer):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", host))
    image = unpacked_image(tmp_path, glibc="2.38")
    runtime = image_runtime(tmp_path, image, DEFAULT_BACKENDS)
    system = str(image.folder / "system")
    server = command(runtime.tritonserver)
    stub = command(runtime.backend_directory / "python" / "triton_python_backend_stub")
    assert server[0] == stub[0] == (f"{system}/ld-linux-x86-64.so.2" if newer else LOADER)
    assert (folders(server)[0] == system, folders(stub)[0] == system) == (newer, newer)


def test_backends_of_the_image_come_before_this_projects(tmp_path):
    image = unpacked_image(tmp_path)
    directory = image_runtime(tmp_path, image, DEFAULT_BACKENDS).backend_directory
    assert (directory / "pytorch" / "libtriton_pytorch.so").is_file()
    assert not (directory / "pytorch" / "model.py").exists()
    assert (directory / "onnxruntime" / "model.py").is_file()
    assert not any(path.is_symlink() for path in directory.rglob("*") if path.parent.name != "lib")
    assert image_runtime(tmp_path, image, DEFAULT_BACKENDS).backend_directory == directory
    assert len(list(tmp_path.glob("backends-image-*"))) == 1


def test_variables_of_the_image_are_defaults(tmp_path):
    image = unpacked_image(tmp_path)
    assert image.record.variables == ("UCX_MEM_EVENTS=no",)
    runtime = image_runtime(tmp_path, image, DEFAULT_BACKENDS)
    for script in (runtime.tritonserver, runtime.backend_directory / "python" / "triton_python_backend_stub"):
        _, line, _ = script.read_text().splitlines()
        for given, value in (({}, "no"), ({"UCX_MEM_EVENTS": "yes"}, "yes")):
            shell = ["/bin/sh", "-c", f"{line}; echo $UCX_MEM_EVENTS"]
            assert subprocess.run(shell, env=given, capture_output=True, text=True, check=True).stdout == f"{value}\n"


def test_image_in_use_is_started_instead_of_the_wheel(tmp_path):
    image = unpacked_image(tmp_path)
    use(tmp_path, image)
    assert in_use(tmp_path) == image
    assert is_fetched(tmp_path)
    assert ensure_runtime(tmp_path, pytest.fail) == image_runtime(tmp_path, image, DEFAULT_BACKENDS)
    use(tmp_path, None)
    assert in_use(tmp_path) is None
    assert not is_fetched(tmp_path)


@pytest.mark.parametrize("text", ["", "../..", "triton-image-", "triton-image-0123456789ab", "\xff"])
def test_damaged_choice_counts_as_none(tmp_path, text):
    (tmp_path / IN_USE).write_bytes(text.encode("latin-1"))
    assert in_use(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("machine", "aarch64", "needs Linux on x86_64, and this is Linux on aarch64"),
        ("system", "Darwin", "this is Darwin"),
        ("libc_ver", ("", ""), "needs a system with glibc"),
    ],
)
def test_image_for_another_machine_is_refused(tmp_path, monkeypatch, name, value, reason):
    image = unpacked_image(tmp_path)
    monkeypatch.setattr(platform, name, lambda: value)
    with pytest.raises(ImageUnusable, match=f"Triton 2.75.0 from registry.example/tritonserver:26.11-py3 .*{reason}"):
        image_runtime(tmp_path, image, DEFAULT_BACKENDS)


def test_image_for_another_python_is_refused_with_the_way_to_get_it(tmp_path):
    with pytest.raises(ImageUnusable, match=rf"embeds Python 3\.99, and this is Python {PYTHON}: .*uv venv.* 3\.99"):
        image_runtime(tmp_path, unpacked_image(tmp_path, python="3.99"), DEFAULT_BACKENDS)


@pytest.fixture
def cache(runtime: TritonRuntime, tmp_path: Path) -> Path:
    """A cache folder that has the wheel."""
    wheel = f"triton-{WHEEL_VERSION}"
    (tmp_path / wheel).symlink_to(default_cache_dir() / wheel)
    return tmp_path


@pytest.mark.parametrize(
    ("python", "spoil", "words"),
    [
        ("3.99", lambda _: None, ["embeds Python 3.99", f"using Triton {TRITON_VERSION} from the wheel"]),
        (PYTHON, shutil.rmtree, ["the image's Triton that {record} names is gone"]),
    ],
    ids=["that does not run", "that is gone"],
)
def test_wheel_is_used_with_a_warning_for_an_image(cache, python, spoil, words):
    said: list[str] = []
    image = unpacked_image(cache, python=python)
    use(cache, image)
    spoil(image.folder)
    assert ensure_runtime(cache, said.append).tritonserver.is_relative_to(cache / f"triton-{WHEEL_VERSION}")
    (warning,) = said
    assert all(each.format(record=cache / IN_USE) in warning for each in words)
