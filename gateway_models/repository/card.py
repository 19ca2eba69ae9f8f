"""The web page's description of a model: a sentence, and pictures to try.

The sentence is an option of the record, and so a parameter of the ensemble. The pictures are next to the record:

NAME/examples.json          [{"file": "example-1.jpg", "label": "poppy"}]; the label is null where it is not known
NAME/example-1.jpg, …       JPEG or PNG
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from gateway.errors import UserError
from gateway.values.files import whole_file
from gateway_client.files import files_below

MAX_EXAMPLES, MAX_EXAMPLE_BYTES = 8, 4 * 2**20
MAX_CHARACTERS = 300
MAX_README_BYTES = 256 * 1024
_MAGIC = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png"}
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture to try; `label` is what it shows, None if that is not known."""

    data: bytes
    suffix: str
    label: str | None


def read_description(text: str) -> str:
    """Check the sentence that a user gave; raises UserError."""
    if len(text) > MAX_CHARACTERS or not text.isprintable():
        raise UserError(f"--description is one line of at most {MAX_CHARACTERS} characters")
    return text.strip()


def first_sentence(text: str) -> str:
    """The first sentence of prose in a text in Markdown, "" if there is none that is short enough."""
    text = re.sub(r"\A---\n.*?\n---\n|<!--.*?-->", "", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", re.sub(r"^(?:#|```|[|>!<*-]).*$", "\n", text, flags=re.MULTILINE)):
        words = " ".join(_LINK.sub(r"\1", block).replace("**", "").replace("`", "").split())
        sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z])", words)[0]
        if sentence:
            return sentence if len(sentence) <= MAX_CHARACTERS and sentence.isprintable() else ""
    return ""


def readme_sentence(folder: Path) -> str:
    """The first sentence of a folder's README.md, "" without one."""
    try:
        with (folder / "README.md").open("rb") as file:
            return first_sentence(file.read(MAX_README_BYTES).decode(errors="replace"))
    except OSError:
        return ""


def read_pictures(paths: Sequence[Path], labels: Collection[str]) -> list[Picture]:
    """The pictures of files and folders, at most MAX_EXAMPLES; of a folder with a folder for each class, one of each.

    The label is the name of the picture's folder, if the model has it. Raises UserError.
    """
    files = [file for path in paths for file in ([path] if path.is_file() else _one_of_each(path))]
    if len(files) > MAX_EXAMPLES and all(path.is_file() for path in paths):
        raise UserError(f"--example: {len(files)} pictures are more than {MAX_EXAMPLES}")
    pictures = []
    for file in files[:MAX_EXAMPLES]:
        try:
            with file.open("rb") as opened:
                data = opened.read(MAX_EXAMPLE_BYTES + 1)
        except OSError as exc:
            raise UserError(f"--example: cannot read {file}: {exc.strerror}") from exc
        suffix = next((suffix for magic, suffix in _MAGIC.items() if data.startswith(magic)), None)
        if suffix is None or len(data) > MAX_EXAMPLE_BYTES:
            raise UserError(f"--example: {file} must be a JPEG or PNG of at most {MAX_EXAMPLE_BYTES >> 20} MiB")
        name = file.absolute().parent.name
        pictures.append(Picture(data, suffix, name if name in labels else None))
    return pictures


def _one_of_each(folder: Path) -> list[Path]:
    """The pictures of a folder: the first one of each folder in it, then the second ones."""
    by_folder: dict[Path, list[Path]] = {}
    for file in sorted(files_below(folder)) if folder.is_dir() else ():
        if file.suffix.lower() in {".jpg", ".jpeg", ".png"}:
            by_folder.setdefault(file.parent, []).append(file)
    if not by_folder:
        raise UserError(f"--example: {folder} has no JPEG or PNG")
    return [file for file in chain(*zip_longest(*by_folder.values())) if file is not None]


def write_pictures(folder: Path, pictures: Sequence[Picture]) -> None:
    """Replace the pictures in a model's folder, unless there are none; raises OSError."""
    if not pictures:
        return
    index = [{"file": f"example-{n}.{each.suffix}", "label": each.label} for n, each in enumerate(pictures, 1)]
    for old in folder.glob("example-*.*"):
        old.unlink()
    for each, picture in zip(index, pictures, strict=True):
        (folder / str(each["file"])).write_bytes(picture.data)
    with whole_file(folder / "examples.json", mode=0o644) as draft:
        draft.write_text(json.dumps(index))
