"""Reads image files and prepares them as the gateway does before it sends them to Triton."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gateway.decoder.in_process import prepare
from gateway.environment import load_settings
from gateway.errors import ImageError, UserError
from gateway.ingest.resizing import Resize, resize_of
from gateway.ingest.upload import UploadLimits
from gateway_client.files import files_below, read_file
from gateway_client.images import is_image_name
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Decode

T = TypeVar("T")
REFUSED_SHOWN = 20


@dataclass(frozen=True, slots=True)
class NotCompared:
    """An image that was not compared, and the reason."""

    path: Path
    reason: str


def parted(results: Iterable[T | NotCompared]) -> tuple[list[T], list[NotCompared]]:
    """The results of a run, and the images without one."""
    found: list[T] = []
    refused: list[NotCompared] = []
    for each in results:
        if isinstance(each, NotCompared):
            refused.append(each)
        else:
            found.append(each)
    return found, refused


def reasons(refused: Sequence[NotCompared]) -> Iterator[str]:
    """A line for each of the first images that were not compared, and how many more there are."""
    for each in refused[:REFUSED_SHOWN]:
        yield f"{each.path}: {each.reason}"
    if len(refused) > REFUSED_SHOWN:
        yield f"… and {len(refused) - REFUSED_SHOWN} more"


def image_files(sources: Iterable[Path]) -> list[Path]:
    """The files given, and all images in the folders given and their subfolders, in order; raises UserError."""
    found: list[Path] = []
    for source in sources:
        if source.is_dir():
            found += [path for path in files_below(source) if is_image_name(path.name)]
        elif source.is_file():
            found.append(source)
        else:
            raise UserError(f"there is no file or folder {source}")
    if not found:
        raise UserError("there are no images in " + ", ".join(map(str, sources)))
    return found


def resize_for(entry: Entry, decode: Decode | None = None) -> Resize | None:
    """How the gateway resizes large images for a model; `decode` replaces the model's own way of decoding."""
    return resize_of(entry.spec.prepared.parameters(), fast=(decode or entry.spec.serving.decode) is Decode.FAST)


def reader(resize: Resize | None = None) -> Callable[[Path], bytes | NotCompared]:
    """A function from a file to the gateway's bytes for Triton, with this process's GATEWAY_ settings."""
    limits = UploadLimits.from_settings(load_settings())

    def read(path: Path) -> bytes | NotCompared:
        try:
            data = read_file(path, limits.max_file_bytes)
            if len(data) > limits.max_file_bytes:
                raise limits.file_too_large()
            return prepare(data, limits, resize).payload
        except ImageError as exc:
            return NotCompared(path, str(exc))
        except OSError as exc:
            return NotCompared(path, exc.strerror or str(exc))

    return read
