import errno
import os
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway_local.paths import DEFAULT_BACKENDS, default_cache_dir
from gateway_local.runtime import base
from gateway_local.runtime.base import (
    LibpythonMissing,
    RuntimeFetchFailed,
    TritonRuntimeError,
    find_libpython,
)
from gateway_local.runtime.wheel import WHEEL_VERSION, ensure_runtime

SERVER_FILES = (
    "bin/tritonserver",
    "backends/python/libtriton_python.so",
    "backends/python/triton_python_backend_utils.py",
    "caches/local/libtritoncache_local.so",
    f"python_backend_stubs/{sys.version_info.major}.{sys.version_info.minor}/triton_python_backend_stub",
)


class Pip:
    """Stands in for pip: unpacks a wheel of empty files, or fails with an error of pip."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.requirement = ""
        self.says, self.leaves_out = "", "nothing"

    def __call__(self, command, **options):
        self.commands.append(command)
        given = dict(argument.split("=", 1) for argument in command if "=" in argument)
        self.requirement = Path(given["--requirement"]).read_text()
        target = Path(given["--target"])
        if not self.says:
            (target / "nvidia_pytriton.libs").mkdir(parents=True)
            for name in SERVER_FILES:
                path = target / "pytriton" / "tritonserver" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if self.leaves_out not in name:
                    path.write_text(name)
        return subprocess.CompletedProcess(command, 1 if self.says else 0, "", self.says)


@pytest.fixture
def pip(monkeypatch) -> Pip:
    stand_in = Pip()
    monkeypatch.setattr(subprocess, "run", stand_in)
    return stand_in


def test_wheel_is_fetched_once_by_hash_without_dependencies(pip, tmp_path):
    """Several starts at once fetch it once, too."""
    said: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        (runtime,) = set(pool.map(lambda _: ensure_runtime(tmp_path, said.append), range(4)))
    (command,) = pip.commands
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(command)
    assert re.fullmatch(rf"nvidia-pytriton=={re.escape(WHEEL_VERSION)} --hash=sha256:[0-9a-f]{{64}}\n", pip.requirement)
    assert runtime.tritonserver.is_file()
    assert ensure_runtime(tmp_path, said.append) == runtime
    assert len(pip.commands) == 1
    assert len([line for line in said if "fetching Triton" in line]) == 1


def test_complete_cache_on_a_read_only_file_system_is_used(pip, tmp_path, monkeypatch):
    first = ensure_runtime(tmp_path, print)
    writable_open = os.open

    def read_only_open(path, flags, *arguments, **options):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return writable_open(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", read_only_open)  # root can write everywhere
    assert ensure_runtime(tmp_path, print) == first


def test_backend_directory_contains_copies_of_all_backends(pip, tmp_path):
    """A changed backend gets a new directory."""
    directory = ensure_runtime(tmp_path, print).backend_directory
    for name in ("libtriton_python.so", "triton_python_backend_utils.py", "triton_python_backend_stub"):
        assert (directory / "python" / name).is_file()
        assert not (directory / "python" / name).is_symlink()
    assert (directory / "pytorch" / "model.py").read_bytes() == (DEFAULT_BACKENDS / "pytorch" / "model.py").read_bytes()
    assert not (directory / "pytorch" / "model.py").is_symlink()
    ours = tmp_path / "ours"
    (ours / "other").mkdir(parents=True)
    (ours / "other" / "model.py").write_text("one = 1")
    before = ensure_runtime(tmp_path, print, backends=ours).backend_directory
    (ours / "other" / "model.py").write_text("one = 2")
    after = ensure_runtime(tmp_path, print, backends=ours).backend_directory
    assert before != after
    assert (after / "other" / "model.py").read_text() == "one = 2"


BROKEN = "after connection broken by 'NewConnectionError': /simple/nvidia-pytriton/"
FULL = "OSError: [Errno 28] No space left on device"
MISSING = "ERROR: No matching distribution found for nvidia-pytriton==0.7.0\n"


@pytest.mark.parametrize(
    ("says", "leaves_out", "reason"),
    [
        (f"WARNING: Retrying\n{MISSING}", "nothing", "No matching distribution.* package index within reach"),
        (f"Retrying (total=0) {BROKEN}\n{MISSING}", "nothing", "(?s)No matching distribution.*{}"),
        (f"ERROR: Exception:\nTraceback (most recent call last):\n{FULL}\n", "nothing", re.escape(FULL)),
        (f"{sys.executable}: No module named pip", "nothing", "No module named pip"),
        ("", "triton_python_backend_stub", "holds no .*triton_python_backend_stub"),
    ],
    ids=["no such wheel", "no network", "full disk", "no pip", "incomplete wheel"],
)
def test_failed_fetch_leaves_no_files_and_shows_the_reason(pip, tmp_path, says, leaves_out, reason):
    """Without a network, it explains how to copy the cache."""
    pip.says, pip.leaves_out = says, leaves_out
    copied = f"{tmp_path / f'triton-{WHEEL_VERSION}'} copied from a machine that has it"
    with pytest.raises(RuntimeFetchFailed, match=reason.replace("{}", re.escape(copied))):
        ensure_runtime(tmp_path, print)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_folder_that_cannot_be_used_is_named(pip, tmp_path):
    with pytest.raises(TritonRuntimeError, match=r"no folder .*/nowhere"):
        ensure_runtime(tmp_path, print, backends=tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeFetchFailed, match=r"cannot write .*/file/cache"):
        ensure_runtime(tmp_path / "file" / "cache", print)


def test_libpython_is_found_and_a_python_without_it_fails_with_advice(monkeypatch, tmp_path):
    assert find_libpython().name.startswith("libpython3")
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(base, "python_version", lambda: "3.99")
    with pytest.raises(
        LibpythonMissing, match=r"libpython3\.99\.so\.1\.0, .*apt install libpython3\.99.*uv venv.*--enable-shared"
    ):
        find_libpython()


def test_cache_folder_follows_xdg_and_ignores_relative_paths(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "triton-image-gateway"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir() == Path.home() / ".cache" / "triton-image-gateway"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "triton-image-gateway"
