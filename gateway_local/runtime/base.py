"""A Triton without Docker: its parts, its environment and its requirements of Python."""

import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import UserError
from gateway.machine.child_environment import NETWORKS, child_environment

Say = Callable[[str], None]


class TritonRuntimeError(UserError):
    """Triton cannot run here; the message is for users and includes what to do."""


class LibpythonMissing(TritonRuntimeError):
    """The running Python has no shared library, which Triton's Python backend loads."""


class RuntimeFetchFailed(TritonRuntimeError):
    """Triton could not be fetched, or the cache folder not be written."""


KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(64 * 2**20), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}
"""For glibc's malloc (mallopt(3)): memory freed by one request's tensors is kept for the next request, which then needs
no fresh pages. Without it, a third of the server's system time is page faults."""


@dataclass(frozen=True, slots=True)
class TritonRuntime:
    """A Triton that can be started: the paths of its parts and the environment that it needs."""

    tritonserver: Path
    cache_directory: Path
    backend_directory: Path
    library_path: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """The variables that networks may have, and the paths that the server and its Python stubs need."""
        library_path = [*map(str, self.library_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        # The stub embeds an isolated Python, which ignores PYTHONPATH and PYTHONHOME. It takes the first python3 in
        # PATH for its own executable, and so finds the virtual environment and the standard library.
        path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        return {
            **KEEP_FREED_MEMORY,
            **child_environment(*NETWORKS),
            "LD_LIBRARY_PATH": os.pathsep.join(library_path),
            "PATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
        }


def find_libpython() -> Path:
    """The running Python's shared library; raises LibpythonMissing with ways to get one."""
    name = f"libpython{python_version()}.so.1.0"
    # The interpreter's own folder first: it may have been built in another user's home.
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
        f"(Debian and Ubuntu: apt install libpython{python_version()}), or use a Python that brings it: "
        f"`uv venv --managed-python --python {python_version()}`, or pyenv with "
        f"PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install {python_version()}"
    )


def python_version() -> str:
    """The running Python's version, such as 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def backend_files(own: Path) -> list[Path]:
    """The files of the Python-based backends in a folder; raises TritonRuntimeError if it does not exist."""
    if not own.is_dir():
        raise TritonRuntimeError(
            f"there is no folder {own} with the project's Triton backends: reinstall the package or use a checkout"
        )
    return sorted(path for path in own.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
