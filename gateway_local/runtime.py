"""Triton without Docker: the server inside the wheel of nvidia-pytriton, in a cache folder.

Only the wheel's binaries are used: not its Python API, nor its dependencies, which hold numpy below 2. The server of an
image, which `gateway triton fetch --image` puts into the same folder, has its code in `triton_image/`.

    CACHE/triton-0.7.0/                 what the wheel holds, checked against its hash
    CACHE/backends-cp311-1a2b3c4d5e6f/  a backend directory for one Python version and one set of `triton_backends`
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import UserError
from gateway.files import locked_where_writable, whole_folder
from gateway_local.paths import DEFAULT_BACKENDS, DEFAULT_MODEL_REPOSITORY

WHEEL_VERSION = "0.7.0"
WHEEL_SHA256 = "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df"
WHEEL_PLATFORM = "manylinux_2_35_x86_64"
TRITON_VERSION = "2.51.0"

OLDEST_GLIBC = (2, 34)
"""The glibc that tritonserver and the stubs need; the wheel's tag has 2.35 for a libpython that is not used here."""
PYTHON_VERSIONS = ((3, 10), (3, 13))
"""First and last Python version that this project supports and the wheel has a stub for."""

__all__ = ["DEFAULT_BACKENDS", "DEFAULT_MODEL_REPOSITORY", "Runtime", "ensure_runtime"]

Say = Callable[[str], None]


class TritonRuntimeError(UserError):
    """Triton cannot run here; the message is for users and includes what to do."""


class UnsupportedPlatform(TritonRuntimeError):
    """The wheel's Triton does not run on this operating system, processor, C library or Python."""


class LibpythonMissing(TritonRuntimeError):
    """The running Python has no shared library, which Triton's Python backend loads."""


class RuntimeFetchFailed(TritonRuntimeError):
    """The wheel could not be fetched or does not hold what it should."""


KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(64 * 2**20), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}
"""For glibc's malloc (mallopt(3)): memory freed by one request's tensors is kept for the next request, which then needs
no fresh pages. Without it, a third of the server's system time is page faults."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Triton that can be started: the paths of its parts and the environment that it needs."""

    tritonserver: Path
    cache_directory: Path
    backend_directory: Path
    library_path: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """The environment of this process, with what the server and its Python stubs need to find."""
        library_path = [*map(str, self.library_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        # The stub embeds an isolated Python, which ignores PYTHONPATH and PYTHONHOME. It takes the first python3 in
        # PATH for its own executable, and so finds the virtual environment and the standard library.
        path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        return {
            **KEEP_FREED_MEMORY,
            **os.environ,
            "LD_LIBRARY_PATH": os.pathsep.join(library_path),
            "PATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
            # Triton treats bytecode in a model's folder as a change of the model, and loads it again with the next.
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def default_cache_dir() -> Path:
    """The folder for what can be fetched again: `triton-image-gateway` in $XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "triton-image-gateway"


def ensure_runtime(cache_dir: Path, say: Say, *, backends: Path = DEFAULT_BACKENDS) -> Runtime:
    """Fetch Triton into `cache_dir` unless it is there, and compose its backend directory.

    The Triton of an image that was put into use there is preferred, if it runs on this machine and this Python.
    `backends` holds Python-based backends, a folder each, that are added to the wheel's own; `say` gets a sentence for
    each step that takes time. Several processes may call this at once. Raises TritonRuntimeError.
    """
    cache_dir = cache_dir.expanduser().resolve()
    if (runtime := _image_runtime(cache_dir, say, backends)) is not None:
        return runtime
    check_platform()
    libpython = find_libpython()
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with locked_where_writable(cache_dir / ".lock", busy=lambda: _waiting(say)):
            wheel = _ensure_wheel(cache_dir / f"triton-{WHEEL_VERSION}", say)
            backend_directory = _ensure_backends(cache_dir, wheel, backends, libpython)
    except OSError as exc:
        raise RuntimeFetchFailed(f"cannot write Triton's runtime to {cache_dir}: {exc}") from exc
    server = wheel / "pytriton" / "tritonserver"
    return Runtime(
        tritonserver=server / "bin" / "tritonserver",
        cache_directory=server / "caches",
        backend_directory=backend_directory,
        library_path=(backend_directory / "lib", wheel / "nvidia_pytriton.libs"),
    )


def _image_runtime(cache_dir: Path, say: Say, backends: Path) -> Runtime | None:
    """The Triton of an image, if one is in use and it runs here; else None, for the wheel's."""
    # Imported here, since these modules build on this one.
    from gateway_local.triton_image.errors import ImageUnusable
    from gateway_local.triton_image.use import IN_USE, image_runtime, in_use

    image = in_use(cache_dir)
    if image is None:
        if (cache_dir / IN_USE).is_file():
            say(
                f"warning: the image's Triton that {cache_dir / IN_USE} names is gone or damaged; using Triton "
                f"{TRITON_VERSION} from the wheel: run `gateway triton fetch` with --image again, or without it"
            )
        return None
    try:
        with locked_where_writable(cache_dir / ".lock", busy=lambda: _waiting(say)):
            return image_runtime(cache_dir, image, backends)
    except ImageUnusable as exc:
        say(f"warning: {exc}; using Triton {TRITON_VERSION} from the wheel")
        return None
    except OSError as exc:
        raise RuntimeFetchFailed(f"cannot write Triton's runtime to {cache_dir}: {exc}") from exc


def is_fetched(cache_dir: Path) -> bool:
    """Whether Triton is in the cache, so that a start needs no package index."""
    from gateway_local.triton_image.use import in_use, runs_here

    image = in_use(cache_dir)
    return (image is not None and runs_here(image)) or not _missing_from(cache_dir / f"triton-{WHEEL_VERSION}")


def check_platform() -> None:
    """Raise UnsupportedPlatform unless the wheel's Triton runs on this machine and this Python."""
    advice = (
        "use a Triton in a container instead: docker compose up, or gateway serve with GATEWAY_TRITON_URL; or without "
        "Docker the Triton of a container's image: gateway triton fetch --image"
    )
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


def find_libpython() -> Path:
    """The running Python's shared library; raises LibpythonMissing with ways to get one."""
    name = f"libpython{_python_version()}.so.1.0"
    # The interpreter's own folder first: the one that it was built in may be in another user's home.
    folders = [f"{sys.base_prefix}/lib", sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders += [f"/usr/lib/{multiarch}", f"{sys.base_prefix}/lib/{multiarch}"]
    folders += ["/usr/lib64", "/usr/lib"]
    for folder in filter(None, folders):
        candidate = Path(folder) / name
        if candidate.is_file():
            return candidate.resolve()
    raise LibpythonMissing(
        f"Triton's Python backend loads {name}, and this Python ({sys.executable}) has none. Install it "
        f"(Debian and Ubuntu: apt install libpython{_python_version()}), or use a Python that brings it: "
        f"`uv venv --managed-python --python {_python_version()}`, or pyenv with "
        f"PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install {_python_version()}"
    )


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _waiting(say: Say) -> bool:
    say("waiting for another process that prepares Triton")
    return True


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
        f"{server}/python_backend_stubs/{_python_version()}/triton_python_backend_stub",
        "nvidia_pytriton.libs",
    ]
    return [part for part in parts if not (wheel / part).exists()]


def _pip_install(target: Path, destination: Path) -> None:
    """Install the wheel into a draft of what will be in `destination`; raises RuntimeFetchFailed."""
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
            capture_output=True,
            text=True,
        )
    if completed.returncode == 0:
        return
    if "No module named pip" in completed.stderr:
        raise RuntimeFetchFailed(f"{sys.executable} has no pip to fetch Triton with: run {sys.executable} -m ensurepip")
    reason = next(
        (line for line in reversed(completed.stderr.splitlines()) if line.startswith("ERROR")), completed.stderr.strip()
    )
    cause = "the package index does not answer" if "connection broken by" in completed.stderr else f"pip says: {reason}"
    raise RuntimeFetchFailed(
        f"pip could not fetch nvidia-pytriton {WHEEL_VERSION}: {cause}. The first start needs a package index within "
        f"reach (PIP_INDEX_URL and PIP_FIND_LINKS are honoured), or {destination} copied from a machine that has it: "
        "`gateway triton fetch` puts it there"
    )


def backend_files(own: Path) -> list[Path]:
    """The files of the Python-based backends in a folder; raises TritonRuntimeError if it does not exist."""
    if not own.is_dir():
        raise TritonRuntimeError(
            f"there is no folder {own} with the project's Triton backends: reinstall the package or use a checkout"
        )
    return sorted(path for path in own.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _ensure_backends(cache_dir: Path, wheel: Path, own: Path, libpython: Path) -> Path:
    """Compose a backend directory of copies: Triton refuses links that lead out of it."""
    sources = backend_files(own)
    digest = hashlib.sha256(f"{WHEEL_SHA256} {libpython}".encode())
    for source in sources:
        digest.update(f"{source.relative_to(own)}\0".encode() + source.read_bytes())
    version = _python_version()
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
        # The stub of 3.13 asks for libpython by the name that the wheel's packager gave to a copy of its own.
        (draft / "lib").mkdir()
        (draft / "lib" / libpython.name).symlink_to(libpython)
        for bundled in (wheel / "nvidia_pytriton.libs").glob(f"libpython3-*.{sys.version_info.minor}.so.1.0"):
            (draft / "lib" / bundled.name).symlink_to(libpython)
    return target
