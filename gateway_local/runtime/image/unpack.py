"""From an image's layers to a folder that Triton runs from: the server, the backends asked for, and their libraries.

    FOLDER/image.json      what it is, and what it needs: Record
    FOLDER/tritonserver/   the parts of the image's /opt/tritonserver, at the same places
    FOLDER/libraries/      the libraries of the image's distribution that these parts need
    FOLDER/system/         its C and C++ runtime, for machines whose own is older

The libraries are those that the files name (NEEDED, transitively), and those that one of them loads by name at run
time: libcudnn.so.9 loads libcudnn_ops.so.9.
"""

import json
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gateway_local.runtime.image.elf import MACHINES, NO_VERSION, Elf, NotElf, Version, read_elf
from gateway_local.runtime.image.errors import ImageError
from gateway_local.runtime.image.tree import File, Folder, ImageTree, Parts, split
from gateway_plugins.shared.safe_path import SafePath, UnsafePath

if TYPE_CHECKING:  # a start of Triton needs no HTTP client
    from gateway_local.runtime.image.registry import ContainerImage

SERVER: Parts = ("opt", "tritonserver")
SERVER_LIBRARIES: Parts = (*SERVER, "lib")
PROGRAM: Parts = ("bin", "tritonserver")
PYTHON = "python"
STUB: Parts = ("backends", PYTHON, "triton_python_backend_stub")
DEFAULT_BACKENDS = (PYTHON, "pytorch", "onnxruntime", "openvino")
"""The backends that are unpacked when none are asked for, as far as the image has them."""

RECORD = "image.json"
FORMAT = 1

SYSTEM = frozenset({
    "libBrokenLocale.so.1", "libanl.so.1", "libc.so.6", "libc_malloc_debug.so.0", "libdl.so.2", "libgcc_s.so.1",
    "libm.so.6", "libmvec.so.1", "libnsl.so.1", "libnss_compat.so.2", "libnss_dns.so.2", "libnss_files.so.2",
    "libpthread.so.0", "libresolv.so.2", "librt.so.1", "libstdc++.so.6", "libthread_db.so.1", "libutil.so.1",
})  # fmt: skip
"""The C and C++ runtime: files of one release of glibc, which do not mix with those of another, and of GCC."""
DRIVER = frozenset({"libcuda.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvidia-ml.so.1"})
"""Libraries of the GPU's driver, which only the machine itself can have."""

VARIABLES = ("UCX_MEM_EVENTS",)
"""The variables of the image's environment that its libraries need: without this one, UCX replaces malloc."""

_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}[A-Za-z0-9.+-]{0,32}")
_VALUE = re.compile(r"[A-Za-z0-9_.,-]*")
_LIBRARY = re.compile(r"[^/]+\.so(?:\.[0-9.]+)?")
_LIBPYTHON = re.compile(r"libpython(3\.[0-9]+)\.so(?:\.1\.0)?")
_NOT_FOR_RUNNING = frozenset({"cmake", "compat", "dist-packages", "pkgconfig", "site-packages", "stubs"})
"""Folders whose libraries the loader does not search: for building, for Python alone, or of a driver."""


@dataclass(frozen=True, slots=True)
class Record:
    """What an unpacked image is, and what it needs of the machine."""

    reference: str
    digest: str
    machine: str
    """As `platform.machine()` has it: x86_64 or aarch64."""
    version: str
    """Triton's, such as 2.75.0; "" if the image does not say."""
    backends: tuple[str, ...]
    available: tuple[str, ...]
    """All backends of the image, also those that are not unpacked."""
    python: str
    """The version of Python that the Python backend embeds, such as 3.12."""
    loader: str
    """The path of the dynamic loader, the same on each distribution."""
    needed_glibc: Version
    own_glibc: Version
    search: tuple[str, ...]
    """Folders in tritonserver/ that the image's LD_LIBRARY_PATH has."""
    variables: tuple[str, ...]
    """NAME=value of VARIABLES that the image sets."""
    stub_libraries: tuple[str, ...]
    """The files in libraries/ that the Python backend's processes need."""

    def write(self, folder: Path) -> None:
        """Write the record into the folder that it describes."""
        (folder / RECORD).write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The record of a folder; None if there is none, or it is another release's."""
        try:
            document: dict[str, Any] = json.loads((folder / RECORD).read_bytes())
            if document.pop("format") != FORMAT:
                return None
            values: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
            }
            return cls(**values)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None


def unpack(
    image: "ContainerImage",
    layers: Sequence[Path],
    target: Path,
    *,
    reference: str,
    backends: Sequence[str] | None = None,
    unpacked: Callable[[int], None] = lambda _: None,
) -> Record:
    """Unpack what Triton needs into the empty folder `target`; raises ImageError or OSError.

    `layers` are the image's, in its order; `unpacked` gets the size of each that has been read. The image must have all
    of `backends`; by default, those of DEFAULT_BACKENDS that it has are unpacked.
    """
    asked = tuple(backends) if backends is not None else DEFAULT_BACKENDS
    # Beside the target, so that contents are moved by links instead of copies.
    with tempfile.TemporaryDirectory(prefix=".contents-", dir=target.parent) as scratch:
        tree = ImageTree(Path(scratch), lambda parts: _may_be_needed(parts, asked))
        for layer in layers:
            tree.add(layer)
            unpacked(layer.stat().st_size)
        record = _Unpacking(tree, image, target).run(reference, _chosen(tree, asked, strict=backends is not None))
    record.write(target)
    return record


def _may_be_needed(parts: Parts, backends: Sequence[str]) -> bool:
    if parts[: len(SERVER)] == SERVER:
        return _is_part(parts[len(SERVER) :], backends)
    if parts[:2] == ("etc", "ld.so.conf.d"):
        return parts[-1].endswith(".conf")
    return bool(_LIBRARY.fullmatch(parts[-1])) and _NOT_FOR_RUNNING.isdisjoint(parts)


def _is_part(below: Parts, backends: Sequence[str]) -> bool:
    """Whether a file of /opt/tritonserver is unpacked."""
    match below:
        case ("bin", "tritonserver") | ("TRITON_VERSION",):
            return True
        case ("lib" | "lib64" | "caches", *rest):
            return _NOT_FOR_RUNNING.isdisjoint(rest)
        case ("backends", name, *_):
            return name in backends
        case (name,):
            return "LICENSE" in name.upper()
    return False


def _chosen(tree: ImageTree, asked: Sequence[str], *, strict: bool) -> tuple[str, ...]:
    if not isinstance(tree.find((*SERVER, *PROGRAM)), File):
        raise ImageError(f"the image has no /{'/'.join((*SERVER, *PROGRAM))}: it is not an image of Triton")
    there = _available(tree)
    have = f"the image has {', '.join(there) or 'no backends'}"
    if PYTHON not in asked or PYTHON not in there:
        raise ImageError(f"the backend {PYTHON} must be unpacked, since the preprocessor needs it; {have}")
    if strict and (missing := [name for name in asked if name not in there]):
        raise ImageError(f"the image has no backend {missing[0]}; {have}")
    return tuple(name for name in asked if name in there)


def _available(tree: ImageTree) -> tuple[str, ...]:
    """The backends that the image has."""
    folder = tree.find((*SERVER, "backends"))
    children = folder.children.items() if isinstance(folder, Folder) else ()
    return tuple(sorted(name for name, child in children if isinstance(child, Folder)))


class _Unpacking:
    """Writes the files of one image."""

    def __init__(self, tree: ImageTree, image: "ContainerImage", target: Path) -> None:
        self._tree = tree
        self._image = image
        self._target = target
        self._by_name = {
            parts[-1]: parts
            for parts, _ in tree.walk()
            if _LIBRARY.fullmatch(parts[-1]) and parts[: len(SERVER)] != SERVER and _NOT_FOR_RUNNING.isdisjoint(parts)
        }
        self._search = [
            *self._variable_folders(),
            *self._configured_folders(),
            *map(split, _default_folders()),
            SERVER_LIBRARIES,
        ]
        self._parts: dict[Parts, File] = {}
        """What is unpacked of /opt/tritonserver."""
        self._elves: dict[tuple[int, int], Elf | None] = {}
        self._placed: dict[str, Path] = {}
        """The files in libraries/ and system/ by the name that programs ask for."""
        self._needed_glibc = NO_VERSION

    def run(self, reference: str, backends: tuple[str, ...]) -> Record:
        """Write the server and what it needs; returns the record."""
        self._parts = {below: file for below, file in self._tree.walk(SERVER) if _is_part(below, backends)}
        parts = self._parts
        self._tree.fetch(parts.values())
        for below, file in parts.items():
            _place(self._tree.content(file), self._below("tritonserver", *below), executable=file.executable)
        program = self._elf(parts[PROGRAM]) if PROGRAM in parts else None
        if program is None or program.loader is None:
            raise ImageError("the image's tritonserver is not a program for this kind of machine")
        for below, file in parts.items():
            if below != STUB:
                self._add_libraries((*SERVER, *below), file)
        stub = parts.get(STUB)
        if stub is None:
            raise ImageError("the image's Python backend has no triton_python_backend_stub")
        stub_libraries, python = self._add_libraries((*SERVER, *STUB), stub, with_server=True)
        if python is None:
            raise ImageError("the image's Python backend embeds no shared library of Python 3")
        own_glibc = self._add_system(program.loader)
        machines = {number: name for name, number in MACHINES.items()}
        return Record(
            reference=reference,
            digest=self._image.digest,
            machine=machines.get(program.machine, f"machine {program.machine}"),
            version=self._version(),
            backends=backends,
            available=_available(self._tree),
            python=python,
            loader=program.loader,
            needed_glibc=self._needed_glibc,
            own_glibc=own_glibc,
            search=tuple(self._own_search()),
            variables=tuple(
                f"{name}={value}"
                for name in VARIABLES
                if (value := self._image.variable(name)) and _VALUE.fullmatch(value)
            ),
            stub_libraries=tuple(sorted(stub_libraries)),
        )

    def _add_libraries(self, path: Parts, file: File, *, with_server: bool = False) -> tuple[set[str], str | None]:
        """Write the libraries that a file needs; returns the names of those in libraries/, and the Python version.

        With `with_server` that folder gets the server's own libraries too, since the Python backend's processes do not
        search the server's folders.
        """
        names: set[str] = set()
        python = None
        seen = {path}
        pending = deque([(path, file)])
        while pending:
            path, file = pending.popleft()
            elf = self._elf(file)
            if elf is None:
                continue
            self._needed_glibc = max(self._needed_glibc, elf.glibc)
            for name in elf.needed:
                if match := _LIBPYTHON.fullmatch(name):
                    python = match[1]
                    continue
                if name in SYSTEM or name in DRIVER or name.startswith("ld-linux"):
                    continue
                for at, found in self._resolve(name, elf, path):
                    if at in seen:
                        continue
                    seen.add(at)
                    pending.append((at, found))
                    if with_server or at[: len(SERVER)] != SERVER or at[len(SERVER) :] not in self._parts:
                        self._place_library("libraries", at[-1], found)
                        names.add(at[-1])
        return names, python

    def _resolve(self, name: str, elf: Elf, user: Parts) -> list[tuple[Parts, File]]:
        """A library and those that it loads by name, as the image's loader would find them; [] if it is not there."""
        origin = "/".join(user[:-1])
        own = [split(re.sub(r"\$(?:ORIGIN|\{ORIGIN\})", lambda _: origin, folder)) for folder in elf.search]
        for folder in [*own, *self._search, self._by_name.get(name, ())[:-1]]:
            file = self._tree.find((*folder, name))
            if isinstance(file, File):
                break
        else:
            return []
        found: list[tuple[Parts, File]] = [((*_normal(folder), name), file)]
        parent, stem = self._tree.find(folder), name.partition(".so")[0]
        for other in sorted(parent.children) if isinstance(parent, Folder) else ():
            if other.startswith((f"{stem}_", f"{stem}-")) and _LIBRARY.fullmatch(other):
                file = self._tree.find((*folder, other))
                if isinstance(file, File):
                    found.append(((*_normal(folder), other), file))
        return found

    def _add_system(self, loader: str) -> Version:
        """Write the C and C++ runtime, and its loader; returns glibc's version."""
        program = self._tree.find(loader)
        if not isinstance(program, File):
            raise ImageError(f"the image has no {loader}, which its tritonserver is started by")
        self._place_library("system", loader.rpartition("/")[2], program)
        version = NO_VERSION
        for name in sorted(SYSTEM):
            for folder in self._search:
                file = self._tree.find((*folder, name))
                if isinstance(file, File):
                    self._place_library("system", name, file)
                    if name == "libc.so.6" and (elf := self._elf(file)):
                        version = elf.defined_glibc
                    break
        if version == NO_VERSION:
            raise ImageError("the image has no libc.so.6 of glibc")
        return version

    def _elf(self, file: File) -> Elf | None:
        if file.origin not in self._elves:
            self._tree.fetch([file])
            try:
                self._elves[file.origin] = read_elf(self._tree.content(file))
            except NotElf:
                self._elves[file.origin] = None
        return self._elves[file.origin]

    def _place_library(self, folder: str, name: str, file: File) -> None:
        if name not in self._placed:
            self._tree.fetch([file])
            self._placed[name] = self._below(folder, name)
            _place(self._tree.content(file), self._placed[name], executable=True)

    def _below(self, *parts: str) -> Path:
        """A path of the image, in the unpacked folder; raises ImageError if it would leave it."""
        try:
            return SafePath("/".join(parts)).below(self._target)
        except UnsafePath as exc:
            raise ImageError(f"the image has a path that cannot be unpacked: {exc}") from exc

    def _variable_folders(self) -> list[Parts]:
        folders = self._image.variable("LD_LIBRARY_PATH").split(":")
        return [split(folder) for folder in folders if folder.startswith("/")]

    def _own_search(self) -> list[str]:
        """The folders of LD_LIBRARY_PATH that are unpacked, relative to tritonserver/."""
        below = [folder[len(SERVER) :] for folder in self._variable_folders() if folder[: len(SERVER)] == SERVER]
        return ["/".join(folder) for folder in below if self._below("tritonserver", *folder).is_dir()]

    def _configured_folders(self) -> list[Parts]:
        """The folders of /etc/ld.so.conf.d, which is where packages of libraries add theirs."""
        files = sorted(self._tree.walk("etc/ld.so.conf.d"))
        self._tree.fetch(file for _, file in files)
        texts = [self._tree.content(file).read_text(errors="replace") for _, file in files]
        return [split(line.strip()) for text in texts for line in text.splitlines() if line.startswith("/")]

    def _version(self) -> str:
        version = self._image.variable("TRITON_SERVER_VERSION")
        if not version and (file := self._parts.get(("TRITON_VERSION",))):
            version = self._tree.content(file).read_text(errors="replace").strip()
        return version if _VERSION.fullmatch(version) else ""


def _default_folders() -> list[str]:
    """The loader's own folders on Debian and Ubuntu, and on others."""
    multiarch = [f"{top}lib/{name}-linux-gnu" for top in ("", "usr/") for name in MACHINES]
    return [*multiarch, "lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib"]


def _normal(folder: Parts) -> Parts:
    """A folder's path without ".."."""
    parts: list[str] = []
    for part in folder:
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return tuple(parts)


def _place(content: Path, path: Path, *, executable: bool) -> None:
    """Give a content a name in the unpacked folder. Two names of one content share it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    link_or_copy(content, path)
    if executable or not path.stat().st_mode & 0o111:
        path.chmod(0o755 if executable else 0o644)


def link_or_copy(source: str | Path, target: str | Path) -> str:
    """A hard link, or a copy where the file system has none; with the signature of shutil.copy2."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return str(target)
