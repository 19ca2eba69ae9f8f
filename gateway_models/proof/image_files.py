"""Image files on disk, as the gateway would send them to Triton."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gateway.environment import load_settings
from gateway.errors import ImageError, UserError
from gateway.ingest.image_info import SUFFIXES
from gateway.ingest.in_process import prepare
from gateway.ingest.prepare import DecodePolicy
from gateway.ingest.resizing import Resize, resize_of
from gateway.ingest.upload import Upload, file_too_large
from gateway_client.files import read_file
from gateway_models.repository.entry import Decode, Entry


class NoPictures(UserError):
    """There is no image where one was expected."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file: `payload` is what the gateway sends of it, or `reason` says why it sends nothing."""

    path: Path
    payload: bytes = field(repr=False)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A picture that was not compared, and why."""

    path: Path
    reason: str


def image_files(places: Iterable[Path]) -> list[Path]:
    """Files, and all images in folders and the folders in these, in order; raises NoPictures."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += sorted(path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        elif place.is_file():
            found.append(place)
        else:
            raise NoPictures(f"there is no file or folder {place}")
    if not found:
        raise NoPictures("there are no images in " + ", ".join(map(str, places)))
    return found


def resize_for(entry: Entry, decode: Decode | None = None) -> Resize | None:
    """What the gateway makes of large pictures for a model, which may be asked to decode them another way."""
    return resize_of(entry.preprocessing.parameters(), fast=(decode or entry.serving.decode) is Decode.FAST)


def reader(resize: Resize | None = None) -> Callable[[Path], ImageFile]:
    """Makes a file what the gateway sends of it to a model with such a resize, by this process's GATEWAY_ settings."""
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


def read_pictures(paths: Iterable[Path], resize: Resize | None = None) -> Iterator[ImageFile]:
    """Each file as `reader` makes it."""
    return map(reader(resize), paths)
