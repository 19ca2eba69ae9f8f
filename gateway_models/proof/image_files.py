"""Reads image files and prepares them as the gateway does before it sends them to Triton."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.decoder.in_process import prepare
from gateway.environment import load_settings
from gateway.errors import ImageError, UserError
from gateway.ingest.image_formats import SUFFIXES
from gateway.ingest.inspection import DecodePolicy
from gateway.ingest.resizing import Resize, resize_of
from gateway.ingest.upload import Upload, file_too_large
from gateway_client.files import files_below, read_file
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Decode

REFUSED_SHOWN = 20


class NoImages(UserError):
    """No images were found or could be read."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file: `payload` is what the gateway would send to Triton, `reason` why it would send nothing."""

    path: Path
    payload: bytes = field(repr=False)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NotCompared:
    """An image that was not compared, and the reason."""

    path: Path
    reason: str


def reasons(refused: Sequence[NotCompared]) -> Iterator[str]:
    """A line for each of the first images that were not compared, and how many more there are."""
    for each in refused[:REFUSED_SHOWN]:
        yield f"{each.path}: {each.reason}"
    if len(refused) > REFUSED_SHOWN:
        yield f"… and {len(refused) - REFUSED_SHOWN} more"


def image_files(sources: Iterable[Path]) -> list[Path]:
    """The files given, and all images in the folders given and their subfolders, in order; raises NoImages."""
    found: list[Path] = []
    for source in sources:
        if source.is_dir():
            found += [path for path in files_below(source) if path.suffix.lower() in SUFFIXES]
        elif source.is_file():
            found.append(source)
        else:
            raise NoImages(f"there is no file or folder {source}")
    if not found:
        raise NoImages("there are no images in " + ", ".join(map(str, sources)))
    return found


def resize_for(entry: Entry, decode: Decode | None = None) -> Resize | None:
    """How the gateway resizes large images for a model; `decode` replaces the model's own way of decoding."""
    return resize_of(entry.preprocessing.parameters(), fast=(decode or entry.serving.decode) is Decode.FAST)


def reader(resize: Resize | None = None) -> Callable[[Path], ImageFile]:
    """A function that prepares a file as the gateway does, with this resize and this process's GATEWAY_ settings."""
    policy = DecodePolicy.from_settings(load_settings())

    def read(path: Path) -> ImageFile:
        try:
            data = read_file(path, policy.limits.max_file_bytes)
            if len(data) > policy.limits.max_file_bytes:
                raise file_too_large(policy.limits)
            return ImageFile(path, prepare(Upload(0, path.name, data), policy, resize).payload)
        except ImageError as exc:
            return ImageFile(path, b"", str(exc))
        except OSError as exc:
            return ImageFile(path, b"", exc.strerror or str(exc))

    return read


def read_image_files(paths: Iterable[Path], resize: Resize | None = None) -> Iterator[ImageFile]:
    """Prepare each file with `reader`."""
    return map(reader(resize), paths)
