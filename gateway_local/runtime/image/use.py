"""An unpacked image as a Runtime: started by the machine's own loader, or by the image's where its glibc is newer.

Scripts start tritonserver and the Python backend's processes: they name the loader, and where it finds libraries. This
keeps the image's libraries out of LD_LIBRARY_PATH, which the shells and other programs that Triton starts inherit:
those are the machine's own, and run with its own libraries.

    CACHE/triton-image-0123456789ab/            an unpacked image
    CACHE/backends-image-0123456789ab/          a backend directory for one Python, one loader and one set of backends
    CACHE/triton-in-use                         the name of the unpacked image that is used instead of the wheel
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway_local.runtime.base import TritonRuntime, backend_files, find_libpython
from gateway_local.runtime.image.errors import ImageUnusable
from gateway_local.runtime.image.unpack import DRIVER, PROGRAM, PYTHON, STUB, Record, link_or_copy
from gateway_plugins.shared.files import whole_file, whole_folder

IN_USE = "triton-in-use"
CHECK_SECONDS = 60.0

_FOLDER = re.compile(r"triton-image-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class UnpackedImage:
    """A folder with an unpacked image."""

    folder: Path
    record: Record

    def __str__(self) -> str:
        return f"Triton {self.record.version or 'of an unknown version'} from {self.record.reference}"


def folder_name(digest: str) -> str:
    """The name, in the cache, of the image with a digest."""
    return f"triton-image-{digest.partition(':')[2][:12]}"


def open_image(folder: Path) -> UnpackedImage | None:
    """The unpacked image in a folder; None if there is none."""
    record = Record.read(folder)
    return UnpackedImage(folder, record) if record else None


def in_use(cache_dir: Path) -> UnpackedImage | None:
    """The image that is used instead of the wheel; None for the wheel."""
    try:
        name = (cache_dir / IN_USE).read_text().strip()
    except (OSError, ValueError):
        return None
    return open_image(cache_dir / name) if _FOLDER.fullmatch(name) else None


def use(cache_dir: Path, image: UnpackedImage | None) -> None:
    """Use an unpacked image from now on, or with None the wheel; raises OSError."""
    if image is None:
        (cache_dir / IN_USE).unlink(missing_ok=True)
        return
    with whole_file(cache_dir / IN_USE) as draft:
        draft.write_text(f"{image.folder.name}\n")


def image_runtime(cache_dir: Path, image: UnpackedImage, own: Path) -> TritonRuntime:
    """Compose the backend directory of an unpacked image; raises ImageUnusable, LibpythonMissing or OSError.

    `own` holds Python-based backends; those that the image has itself are left out.
    """
    check_machine(image)
    libpython = find_libpython()
    sources = backend_files(own)
    loading = _Loading.on_this_machine(image)
    digest = hashlib.sha256(f"{image!r} {libpython} {loading!r}".encode())
    for source in sources:
        digest.update(f"{source.relative_to(own)}\0".encode() + source.read_bytes())
    target = cache_dir / f"backends-image-{digest.hexdigest()[:12]}"
    if not target.is_dir():
        with whole_folder(target) as draft:
            _compose(draft, target, image, own, sources, libpython, loading)
    return TritonRuntime(
        tritonserver=target.joinpath(*PROGRAM),
        cache_directory=image.folder / "tritonserver" / "caches",
        backend_directory=target,
        library_path=(),
    )


def check_machine(image: UnpackedImage) -> None:
    """Raise ImageUnusable unless this machine and this Python can run an image's Triton."""
    record = image.record
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", record.machine):
        raise ImageUnusable(f"{image} needs Linux on {record.machine}, and this is {system} on {machine}")
    if platform.libc_ver()[0] != "glibc":
        raise ImageUnusable(f"{image} needs a system with glibc, and this one has another C library")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python != record.python:
        raise ImageUnusable(
            f"{image} embeds Python {record.python}, and this is Python {python}: run the gateway with that version "
            f"(`uv venv --managed-python --python {record.python}`)"
        )


def runs_here(image: UnpackedImage) -> bool:
    """Whether this machine and this Python can run an image's Triton."""
    try:
        check_machine(image)
    except ImageUnusable:
        return False
    return True


def unloadable(image: UnpackedImage) -> dict[str, list[str]]:
    """What the loader does not find for the server and for each backend, by their names; {} if all is there.

    The loader only lists the libraries. The program of the Python backend's processes has `stub_failure`.
    """
    loading = _Loading.on_this_machine(image)
    server = image.folder / "tritonserver"
    parts = {
        "tritonserver": [server.joinpath(*PROGRAM), *sorted((server / "caches").rglob("*.so"))],
        **{name: sorted((server / "backends" / name).glob("libtriton_*.so")) for name in image.record.backends},
    }
    missing = {name: [line for file in files for line in loading.missing(file)] for name, files in parts.items()}
    return {name: lines for name, lines in missing.items() if lines}


def stub_failure(runtime: TritonRuntime) -> str:
    """Why the program of the Python backend's processes does not start; "" if it does.

    Without arguments it ends with 1, by which Triton itself recognises that it can be started.
    """
    command = [str(runtime.backend_directory / PYTHON / STUB[-1])]
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False, env=runtime.environment()
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    text = completed.stderr.strip() or f"it ends with {completed.returncode}"
    return "" if completed.returncode == 1 else text.splitlines()[-1]


@dataclass(frozen=True, slots=True)
class _Loading:
    """A dynamic loader, and the folders in which it looks for libraries before the machine's own."""

    loader: Path
    server: tuple[Path, ...]
    stub: tuple[Path, ...]
    """As `server`, for the Python backend's processes, which also load libraries of this machine's Python."""

    @classmethod
    def on_this_machine(cls, image: UnpackedImage) -> "_Loading":
        record, folder = image.record, image.folder
        server = folder / "tritonserver"
        search = [*(server / name for name in ("lib", "lib64", *record.search)), folder / "libraries"]
        search = [path for path in search if path.is_dir()]
        if _glibc() >= record.needed_glibc:
            return cls(Path(record.loader), tuple(search), ())
        system = folder / "system"
        return cls(system / Path(record.loader).name, (system, *search), (system,))

    def missing(self, file: Path) -> list[str]:
        """What the loader does not find for a program or library."""
        command = [str(self.loader), "--library-path", ":".join(map(str, self.server)), str(file)]
        # As `ldd` asks. The loader's own --list ends at the first library that is missing, be it one of DRIVER.
        variables = {**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"}
        try:
            completed = subprocess.run(
                command, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False, env=variables
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            return [f"{self.loader}: {exc}"]
        lines = [line.strip() for line in (completed.stdout + completed.stderr).splitlines()]
        if completed.returncode != 0:
            return lines[-1:] or [f"{self.loader} ends with {completed.returncode}"]
        return [line for line in lines if "not found" in line and line.split()[0] not in DRIVER]


def _glibc() -> tuple[int, ...]:
    """The glibc of this machine, such as (2, 36)."""
    return tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])


def _compose(
    draft: Path,
    target: Path,
    image: UnpackedImage,
    own: Path,
    sources: Sequence[Path],
    libpython: Path,
    loading: _Loading,
) -> None:
    """Fill the backend directory `draft`, which will be `target`."""
    server = image.folder / "tritonserver"
    for name in image.record.backends:
        # Hard links: Triton refuses symbolic links that lead out of the directory, and a backend has gigabytes.
        shutil.copytree(server / "backends" / name, draft / name, copy_function=link_or_copy)
    for source in sources:
        below = source.relative_to(own)
        if below.parts[0] in image.record.backends:
            continue
        copy = draft / below
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)
    (draft / "lib").mkdir()
    (draft / "lib" / libpython.name).symlink_to(libpython)
    for name in image.record.stub_libraries:
        link_or_copy(image.folder / "libraries" / name, draft / "lib" / name)
    stub = draft / PYTHON / STUB[-1]
    (draft / "stub").mkdir()
    stub.rename(draft / "stub" / STUB[-1])
    # Libraries of this machine's Python must not get the image's version of what they need: only the stub's own.
    variables = image.record.variables
    _script(stub, loading.loader, (*loading.stub, target / "lib"), target / "stub" / STUB[-1], variables)
    (draft / PROGRAM[0]).mkdir()
    _script(draft.joinpath(*PROGRAM), loading.loader, loading.server, server.joinpath(*PROGRAM), variables)


def _script(path: Path, loader: Path, search: Sequence[Path], program: Path, variables: Sequence[str]) -> None:
    """Write a script that becomes a program, by a loader that looks for libraries in folders before the usual ones.

    `variables` are NAME=value, for those that the user does not set.
    """
    folders = shlex.quote(":".join(map(str, search)))
    lines = ["#!/bin/sh"]
    for variable in variables:
        name, _, value = variable.partition("=")
        lines.append(f'export {name}="${{{name}-{value}}}"')
    lines.append(
        f"exec {shlex.quote(str(loader))} --library-path {folders}"
        f'"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" {shlex.quote(str(program))} "$@"'
    )
    path.write_text("\n".join([*lines, ""]))
    path.chmod(0o755)
