"""The server inside the wheel of nvidia-pytriton, in a cache folder.

Only the wheel's binaries are used: not its Python API, nor its dependencies, which hold numpy below 2.

    CACHE/triton-0.7.0/                 the wheel's files, checked against its hash
    CACHE/backends-cp311-1a2b3c4d5e6f/  a backend directory for one Python version and one set of ../backends
"""

import errno
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.machine.child_environment import PIP, child_environment
from gateway.values.files import locked
from gateway_local.paths import DEFAULT_BACKENDS
from gateway_local.runtime.base import (
    RuntimeFetchFailed,
    Say,
    TritonRuntime,
    TritonRuntimeError,
    backend_files,
    find_libpython,
    python_version,
)

WHEEL_VERSION = "0.7.0"
WHEEL_SHA256 = "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df"
WHEEL_PLATFORM = "manylinux_2_35_x86_64"
TRITON_VERSION = "2.51.0"

OLDEST_GLIBC = (2, 34)
"""The glibc that tritonserver and the stubs need; the wheel's tag has 2.35 for a libpython that is not used here."""
PYTHON_VERSIONS = ((3, 11), (3, 13))
"""First and last Python version that the wheel has a stub for and this project supports."""


class UnsupportedPlatform(TritonRuntimeError):
    """The wheel's Triton does not run on this operating system, processor, C library or Python."""


def ensure_runtime(cache_dir: Path, say: Say, *, backends: Path = DEFAULT_BACKENDS) -> TritonRuntime:
    """Fetch Triton into `cache_dir` unless it is there, and compose its backend directory.

    `backends` holds Python-based backends, a folder each, that are added to Triton's own; `say` gets a sentence for
    each step that takes time. Several processes may call this concurrently. Raises TritonRuntimeError.
    """
    cache_dir = cache_dir.expanduser().resolve()
    check_platform()

    def waiting() -> bool:
        say("waiting for another process that prepares Triton")
        return True

    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with locked_where_writable(cache_dir / ".lock", busy=waiting):
            libpython = find_libpython()
            wheel = _ensure_wheel(_folder(cache_dir), say)
            backend_directory = _ensure_backends(cache_dir, wheel, backends, libpython)
    except OSError as exc:
        raise RuntimeFetchFailed(f"cannot write Triton's runtime to {cache_dir}: {exc}") from exc
    server = wheel / "pytriton" / "tritonserver"
    return TritonRuntime(
        tritonserver=server / "bin" / "tritonserver",
        cache_directory=server / "caches",
        backend_directory=backend_directory,
        library_path=(backend_directory / "lib", wheel / "nvidia_pytriton.libs"),
    )


def is_fetched(cache_dir: Path) -> bool:
    """Whether Triton is in the cache, so that a start needs no package index."""
    return not _missing_from(_folder(cache_dir))


def check_platform() -> None:
    """Raise UnsupportedPlatform unless the wheel's Triton runs on this machine and this Python."""
    advice = "run NVIDIA's image: docker compose up, or podman or apptainer and gateway serve --triton HOST:8001"
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise UnsupportedPlatform(f"the embedded Triton needs Linux on x86-64, this is {system} on {machine}: {advice}")
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < OLDEST_GLIBC:
        oldest = ".".join(map(str, OLDEST_GLIBC))
        found = f"glibc {version}" if libc == "glibc" else "another C library"
        raise UnsupportedPlatform(
            f"the embedded Triton needs glibc {oldest} or newer (Debian 12, Ubuntu 22.04, RHEL 9), "
            f"this system has {found}: {advice}"
        )
    first, last = PYTHON_VERSIONS
    if not first <= sys.version_info[:2] <= last:
        raise UnsupportedPlatform(
            f"the embedded Triton has stubs for Python 3.{first[1]} to 3.{last[1]}, "
            f"this is {platform.python_version()}: run it with one of those"
        )


def _folder(cache_dir: Path) -> Path:
    return cache_dir / f"triton-{WHEEL_VERSION}"


def _ensure_wheel(target: Path, say: Say) -> Path:
    if not _missing_from(target):
        return target
    say(f"fetching Triton {TRITON_VERSION} (nvidia-pytriton {WHEEL_VERSION}, 55 MB) into {target}")
    with whole_folder(target) as draft:
        _pip_install(draft, target)
        missing = _missing_from(draft)
        if missing:
            raise RuntimeFetchFailed(
                f"nvidia-pytriton {WHEEL_VERSION} holds no {missing[0]}: delete {target.parent} and try again"
            )
    return target


def _missing_from(wheel: Path) -> list[str]:
    server = "pytriton/tritonserver"
    parts = [
        f"{server}/bin/tritonserver",
        f"{server}/backends/python/libtriton_python.so",
        f"{server}/backends/python/triton_python_backend_utils.py",
        f"{server}/caches/local/libtritoncache_local.so",
        f"{server}/python_backend_stubs/{python_version()}/triton_python_backend_stub",
        "nvidia_pytriton.libs",
    ]
    return [part for part in parts if not (wheel / part).exists()]


def _pip_install(target: Path, destination: Path) -> None:
    """Install the wheel into a draft of `destination`; raises RuntimeFetchFailed."""
    requirement = f"nvidia-pytriton=={WHEEL_VERSION} --hash=sha256:{WHEEL_SHA256}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".txt", prefix="triton-") as requirements:
        requirements.write(requirement)
        requirements.flush()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        # Without --platform pip refuses the wheel on glibc 2.34, where the parts that are used do run.
        wheel_only = ["--no-deps", "--only-binary=:all:", f"--platform={WHEEL_PLATFORM}", "--require-hashes"]
        completed = subprocess.run(
            [*pip, *wheel_only, f"--target={target}", f"--requirement={requirements.name}"],
            check=False,
            env=child_environment(*PIP),
            capture_output=True,
            text=True,
        )
    if completed.returncode == 0:
        return
    # Behind "ERROR: Exception:" there is a traceback, whose last line has the reason.
    lines = [line for line in completed.stderr.splitlines() if line.strip() and not line.startswith("WARNING")] or [""]
    reason = next((line for line in reversed(lines) if line.startswith("ERROR") and line[-1] != ":"), lines[-1])
    raise RuntimeFetchFailed(
        f"pip could not fetch nvidia-pytriton {WHEEL_VERSION}: {reason}. The first start needs a package index within "
        f"reach (PIP_INDEX_URL and PIP_FIND_LINKS are honoured), or {destination} copied from a machine that has it: "
        "`gateway triton fetch` puts it there"
    )


def _ensure_backends(cache_dir: Path, wheel: Path, own: Path, libpython: Path) -> Path:
    """Compose a backend directory of copies: Triton refuses links that lead out of it."""
    sources = backend_files(own)
    digest = hashlib.sha256(f"{WHEEL_SHA256} {libpython}".encode())
    for source in sources:
        digest.update(f"{source.relative_to(own)}\0".encode() + source.read_bytes())
    version = python_version()
    target = cache_dir / f"backends-cp{version.replace('.', '')}-{digest.hexdigest()[:12]}"
    if target.is_dir():
        return target
    server = wheel / "pytriton" / "tritonserver"
    with whole_folder(target) as draft:
        shutil.copytree(server / "backends" / "python", draft / "python", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(server / "python_backend_stubs" / version / "triton_python_backend_stub", draft / "python")
        for source in sources:
            copy = draft / source.relative_to(own)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
        # The stub of 3.13 asks for libpython by the name that the wheel's packager gave to a copy.
        (draft / "lib").mkdir()
        (draft / "lib" / libpython.name).symlink_to(libpython)
        for bundled in (wheel / "nvidia_pytriton.libs").glob(f"libpython3-*.{sys.version_info.minor}.so.1.0"):
            (draft / "lib" / bundled.name).symlink_to(libpython)
    return target


@contextmanager
def locked_where_writable(path: Path, *, busy: Callable[[], bool]) -> Iterator[None]:
    """Like `locked`, but without a lock if the path is read-only: other processes cannot write either."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path, busy=busy))
        except OSError as exc:
            if exc.errno not in (errno.EACCES, errno.EROFS):
                raise
        yield


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `target` if the block ends without an error, and is deleted otherwise."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        draft = Path(scratch) / target.name
        draft.mkdir()
        yield draft
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
