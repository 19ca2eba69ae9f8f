"""Pictures beside a model, which the gateway's web page offers to try.

NAME/examples.json          [{"file": "example-1.jpg", "label": "poppy"}]; the label is null where it is not known
NAME/example-1.jpg, …       upright, without metadata, at most MAX_SIDE pixels on the longer side
"""

import io
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageOps

from gateway.errors import UserError
from gateway.values.files import whole_file
from gateway_plugins.page.model_examples import EXAMPLES_FILE, MAX_EXAMPLES

MAX_SIDE = 1024
"""Pixels of the longer side; larger pictures are scaled down."""
LOSSLESS_SIDE = 256
"""A picture with at most this longer side is stored as PNG, since each of its pixels counts for the network."""
MAX_FILE_BYTES = 64 * 2**20
JPEG_QUALITY = 90


class ExampleError(UserError):
    """A file cannot be an example; the message states the reason."""


@dataclass(frozen=True, slots=True)
class Example:
    """A picture as it is stored, and the name of the folder that it came from, which may be its label."""

    data: bytes = field(repr=False)
    suffix: str
    folder: str


def read_examples(paths: Sequence[Path]) -> list[Example]:
    """The pictures of some files; raises ExampleError."""
    if len(paths) > MAX_EXAMPLES:
        raise ExampleError(f"{len(paths)} examples are more than {MAX_EXAMPLES}: choose those that show the model best")
    return [_read(path) for path in paths]


def write_examples(examples: Sequence[Example], folder: Path, labels: Collection[str]) -> None:
    """Replace the examples in the folder of a model with these labels; without any, delete all of them."""
    old = sorted(folder.glob("example-*.*"))
    index = []
    for number, example in enumerate(examples, 1):
        name = f"example-{number}{example.suffix}"
        with whole_file(folder / name) as draft:
            draft.write_bytes(example.data)
        index.append({"file": name, "label": example.folder if example.folder in labels else None})
    if index:
        with whole_file(folder / EXAMPLES_FILE) as draft:
            draft.write_text(json.dumps(index, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        (folder / EXAMPLES_FILE).unlink(missing_ok=True)
    for path in old:
        if path.name not in {each["file"] for each in index}:
            path.unlink()


def _read(path: Path) -> Example:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ExampleError(f"{path} has more than {MAX_FILE_BYTES:,} bytes: use a smaller picture as an example")
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened)
            is_small = max(picture.size) <= LOSSLESS_SIDE
            if not is_small:
                picture.thumbnail((MAX_SIDE, MAX_SIDE))
            data = io.BytesIO()
            # A copy of the pixels alone: EXIF may have the place where a photograph was taken.
            pixels = Image.new("RGB", picture.size)
            pixels.paste(picture.convert("RGB"))
            if is_small:
                pixels.save(data, "PNG")
            else:
                pixels.save(data, "JPEG", quality=JPEG_QUALITY)
    except (OSError, ValueError, Image.DecompressionBombError) as exc:
        raise ExampleError(f"{path} cannot be used as an example: {exc}") from exc
    return Example(data.getvalue(), ".png" if is_small else ".jpg", path.resolve().parent.name)
