"""The files of an image, from its layers: OCI image specification, "Image Layer Filesystem Changeset".

The tree is kept in memory, and the contents that are wanted are kept in files whose names are numbers. No name, link or
device of a layer reaches this machine's file system, so that a layer cannot write anywhere else.
"""

import gzip
import io
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias, cast

from gateway_local.runtime.image.errors import ImageError

MAX_FILES = 500_000
"""The members of all layers together, and folders that only paths name; NVIDIA's images have about 100,000."""
MAX_TEXT = 64 * 2**20
"""Characters that are kept of all names and of what links lead to."""
MAX_STEPS = 20_000_000
"""Parts of paths looked up for all members together; a link counts as the most parts that its target can have."""
MAX_UNPACKED_BYTES = 128 * 2**30
"""The size of all layers together, uncompressed."""
MAX_HEADER_BYTES = 128 * 2**10
"""What describes one member: `tarfile` reads it into memory, and an archive may say that it has gigabytes."""
MAX_DEPTH = 128
"""Folders within folders."""
MAX_PATH_LENGTH = 4096
"""The longest path of a member, and of a link's target: Linux's PATH_MAX."""
MAX_LINKS = 40
"""Symbolic links followed for one path, as in Linux."""
BLOCK_BYTES = 2**20

WHITEOUT, OPAQUE, METADATA = ".wh.", ".wh..wh..opq", ".wh..wh."
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

Parts: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class File:
    """A file; `origin` is the layer and the number of the member with its content, which hard links share."""

    layer: int
    origin: tuple[int, int]
    size: int
    executable: bool


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link."""

    layer: int
    target: str


@dataclass(slots=True)
class Folder:
    """A folder; `layer` is the last layer that names it."""

    layer: int
    depth: int
    children: "dict[str, File | Symlink | Folder]" = field(default_factory=dict)


Node: TypeAlias = File | Symlink | Folder
MemberFilter: TypeAlias = Callable[[Parts], bool]
"""Whether the content of the file at a path may be needed."""


class ImageTree:
    """The files of an image. `contents` is an empty folder for their contents."""

    def __init__(self, contents: Path, wanted: MemberFilter) -> None:
        self._contents = contents
        self._wanted = wanted
        self._root = Folder(0, 0)
        self._layers: list[Path] = []
        self._kept: set[tuple[int, int]] = set()
        self._files = 0
        self._text = 0
        self._steps = 0
        self._unpacked_bytes = 0

    def add(self, layer: Path) -> None:
        """Add the next layer, a compressed or plain tar archive; raises ImageError or OSError."""
        number = len(self._layers)
        self._layers.append(layer)
        with _damage():
            for index, member, archive in self._members(layer):
                if max(len(member.name), len(member.linkname)) > MAX_PATH_LENGTH:
                    raise ImageError(f"the image has paths of more than {MAX_PATH_LENGTH} characters")
                parts = split(member.name)
                self._count_file("".join(parts[-1:]) + (member.linkname if member.issym() else ""))
                if ".." in parts or "\0" in member.name:
                    raise ImageError(f"a layer of the image has the path {member.name!r}, which leads out of it")
                if parts:
                    self._add(parts, member, (number, index), archive)

    def fetch(self, files: Iterable[File]) -> None:
        """Unpack contents that were not wanted at first, such as another name's of a hard link."""
        missing = {file.origin for file in files} - self._kept
        with _damage():
            for number in sorted({number for number, _ in missing}):
                for index, member, archive in self._members(self._layers[number]):
                    if (number, index) in missing:
                        self._keep((number, index), member, archive)

    def content(self, file: File) -> Path:
        """The file with a file's content; raises KeyError unless it was wanted or fetched."""
        if file.origin not in self._kept:
            raise KeyError(file)
        return self._path(file.origin)

    def find(self, path: str | Parts) -> File | Folder | None:
        """What is at a path, through symbolic links; None if nothing is, or a link leads nowhere or in a circle."""
        found = self._find(split(path) if isinstance(path, str) else path)
        return None if isinstance(found, Symlink) else found

    def walk(self, path: str | Parts = ()) -> Iterator[tuple[Parts, File]]:
        """The files below a folder, with their paths below it; follows links to files, but not links to folders."""
        top = split(path) if isinstance(path, str) else path
        pending: list[tuple[Parts, Node | None]] = [((), self.find(top))]
        while pending:
            below, node = pending.pop()
            if isinstance(node, Folder):
                pending += [((*below, name), child) for name, child in sorted(node.children.items(), reverse=True)]
            elif isinstance(node, Symlink):
                target = self._find((*top, *below))
                if isinstance(target, File):
                    yield below, target
            elif isinstance(node, File):
                yield below, node

    def _members(self, layer: Path) -> Iterator[tuple[int, tarfile.TarInfo, tarfile.TarFile]]:
        with (
            _uncompressed(layer, self._count) as stream,
            tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive,
        ):
            for index, member in enumerate(archive):
                stream.limit = archive.offset + MAX_HEADER_BYTES
                if member.issparse():
                    raise ImageError(
                        f"a layer of the image has the sparse file {member.name!r}, which is not supported"
                    )
                yield index, member, archive
                archive.members.clear()  # type: ignore[attr-defined]  # else each member stays in memory

    def _count_file(self, text: str) -> None:
        """Count a member, or a folder, and text that is kept of it."""
        self._files += 1
        if self._files > MAX_FILES:
            raise ImageError(f"the image has more than {MAX_FILES:,} files")
        self._text += len(text)
        if self._text > MAX_TEXT:
            raise ImageError(f"the image has names and links of more than {MAX_TEXT:,} characters")

    def _count_steps(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise ImageError("the image has links or folders that take too long to follow")

    def _count(self, size: int) -> None:
        self._unpacked_bytes += size
        if self._unpacked_bytes > MAX_UNPACKED_BYTES:
            raise ImageError(f"the image's layers have more than {MAX_UNPACKED_BYTES // 2**30} GiB")

    def _add(self, parts: Parts, member: tarfile.TarInfo, origin: tuple[int, int], archive: tarfile.TarFile) -> None:
        layer, name = origin[0], parts[-1]
        if name.startswith(METADATA) and name != OPAQUE:
            return
        if name.startswith(WHITEOUT):
            parent = self._find(parts[:-1])
            if isinstance(parent, Folder):
                self._hide(parent, layer, None if name == OPAQUE else name.removeprefix(WHITEOUT))
            return
        folder = self._folder(parts[:-1], layer)
        before = folder.children.get(name)
        if member.isdir():
            if isinstance(before, Folder):
                before.layer = layer
            else:
                folder.children[name] = _folder_in(folder, layer)
        elif member.issym():
            folder.children[name] = Symlink(layer, member.linkname)
        elif member.islnk():
            folder.children[name] = self._linked(member, layer)
        elif member.isreg():
            folder.children[name] = File(layer, origin, member.size, bool(member.mode & 0o111))
            if self._wanted(parts):
                self._keep(origin, member, archive)
        else:  # a device or a pipe, which no program here needs
            folder.children.pop(name, None)

    def _linked(self, member: tarfile.TarInfo, layer: int) -> File | Symlink:
        """The hard link of a member: another name of a file that came before."""
        target = split(member.linkname)
        found = None if ".." in target else self._find(target, follow_last=False)
        match found:
            case File(origin=origin, size=size, executable=executable):
                return File(layer, origin, size, executable)
            case Symlink(target=text):
                return Symlink(layer, text)
        raise ImageError(f"a layer of the image links {member.name!r} to {member.linkname!r}, which is no file of it")

    def _keep(self, origin: tuple[int, int], member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        source: IO[bytes] | None = archive.extractfile(member)
        if source is None:
            raise ImageError(f"a layer of the image is damaged: {member.name!r} has no content")
        with self._path(origin).open("wb") as target:
            shutil.copyfileobj(source, target, BLOCK_BYTES)
        self._kept.add(origin)

    def _path(self, origin: tuple[int, int]) -> Path:
        return self._contents / f"{origin[0]}-{origin[1]}"

    def _folder(self, parts: Parts, layer: int) -> Folder:
        """The folder at a path, through links; made if it does not exist."""
        found = self._find(parts)
        if isinstance(found, Folder):
            return found
        if len(parts) > MAX_DEPTH:
            raise ImageError(f"the image has paths of more than {MAX_DEPTH} parts")
        parent = self._folder(parts[:-1], layer)
        self._count_file(parts[-1])
        folder = parent.children[parts[-1]] = _folder_in(parent, layer)
        return folder

    def _hide(self, folder: Folder, layer: int, only: str | None = None) -> None:
        """Remove what lower layers have in a folder: everything, or the one name."""
        self._count_steps(len(folder.children) if only is None else 1)
        for name in [only] if only is not None else list(folder.children):
            child = folder.children.get(name)
            if child is None:
                continue
            if isinstance(child, Folder):
                self._hide(child, layer)
            if child.layer < layer and not (isinstance(child, Folder) and child.children):
                del folder.children[name]

    def _find(self, parts: Parts, *, follow_last: bool = True) -> Node | None:
        pending = list(reversed(parts))
        walked, links = [self._root], 0
        self._count_steps(len(parts))
        while pending:
            name = pending.pop()
            if name == "..":
                if len(walked) > 1:
                    walked.pop()
                continue
            child = walked[-1].children.get(name)
            match child:
                case Folder():
                    walked.append(child)
                case Symlink(target=target) if pending or follow_last:
                    links += 1
                    if links > MAX_LINKS:
                        return None
                    self._count_steps(len(target) // 2 + 1)
                    if target.startswith("/"):
                        del walked[1:]
                    pending += reversed(split(target))
                case _:
                    # A file, a link that is not followed, or nothing.
                    return None if pending else child
        return walked[-1]


def split(path: str) -> Parts:
    """The parts of a path, without "" and "."; ".." stays."""
    return tuple(part for part in path.split("/") if part not in {"", "."})


def _folder_in(parent: Folder, layer: int) -> Folder:
    if parent.depth >= MAX_DEPTH:
        raise ImageError(f"the image has folders more than {MAX_DEPTH} deep")
    return Folder(layer, parent.depth + 1)


class _Checked:
    """Reads from a stream up to `limit`: reports how much, and raises ImageError beyond it or where it is damaged."""

    def __init__(
        self, stream: IO[bytes] | io.BufferedIOBase, report: Callable[[int], None], damage: tuple[type[Exception], ...]
    ) -> None:
        self._stream = stream
        self._report = report
        self._damage = damage
        self._position = 0
        self.limit = MAX_HEADER_BYTES

    def read(self, size: int = -1, /) -> bytes:
        try:
            block = self._stream.read(size)
        except self._damage as exc:
            raise ImageError(f"a layer of the image is damaged: {exc}") from exc
        self._report(len(block))
        self._position += len(block)
        if self._position > self.limit + tarfile.RECORDSIZE:  # `tarfile` reads ahead by up to a record
            raise ImageError(
                f"a layer of the image has a member with headers of more than {MAX_HEADER_BYTES // 2**10} KiB"
            )
        return block


@contextmanager
def _uncompressed(path: Path, report: Callable[[int], None]) -> Iterator[_Checked]:
    """A layer's tar archive. The bytes tell how it is compressed: some builders write a wrong media type."""
    with path.open("rb") as file:
        start = file.read(len(_ZSTD))
        file.seek(0)
        if start.startswith(_GZIP):
            with gzip.GzipFile(fileobj=file) as stream:
                yield _Checked(stream, report, (zlib.error, gzip.BadGzipFile, EOFError))
        elif start == _ZSTD:
            try:
                from backports import zstd
            except ImportError as exc:
                raise ImageError(
                    "the image has a layer that is compressed by zstd: pip install backports.zstd"
                ) from exc
            with zstd.ZstdFile(file) as stream:
                yield _Checked(stream, report, (zstd.ZstdError, EOFError))
        else:
            yield _Checked(file, report, ())


@contextmanager
def _damage() -> Iterator[None]:
    """Turn what `tarfile` raises into ImageError."""
    try:
        yield
    except (tarfile.TarError, ValueError) as exc:
        raise ImageError(f"a layer of the image is damaged: {exc}") from exc
