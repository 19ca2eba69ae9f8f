"""Example pictures of a model, next to its files in Triton's repository, where the gateway can read it.

NAME/examples.json          [{"file": "example-1.jpg", "label": "poppy"}]; the label is null where it is not known
NAME/example-1.jpg, …       JPEG or PNG
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

EXAMPLES_FILE = "examples.json"
MAX_EXAMPLES = 8
MAX_INDEX_BYTES = 64 * 1024
MAX_EXAMPLE_BYTES = 4 * 2**20
_MODEL = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)
_FILE = re.compile(r"example-\d{1,3}\.(jpg|png)", re.ASCII)
_TYPES = {"jpg": "image/jpeg", "png": "image/png"}


class _Entry(BaseModel):
    """A line of examples.json."""

    model_config = ConfigDict(extra="ignore", strict=True)

    file: str
    label: str | None = None


_INDEX = TypeAdapter(list[_Entry])


@dataclass(frozen=True, slots=True)
class Example:
    """A picture to try; `label` is what it shows, None if that is not known."""

    path: Path = field(repr=False)
    label: str | None
    media_type: str


def examples_of(repository: Path, model_name: str) -> list[Example]:
    """The examples of a model, at most MAX_EXAMPLES; [] if there are none, or they cannot be read."""
    if not _MODEL.fullmatch(model_name):
        return []
    folder = repository / model_name
    try:
        with (folder / EXAMPLES_FILE).open("rb") as file:
            entries = _INDEX.validate_json(file.read(MAX_INDEX_BYTES))
    except (OSError, ValidationError):
        return []
    found = []
    for entry in entries[:MAX_EXAMPLES]:
        name = _FILE.fullmatch(entry.file)
        if name is not None:
            found.append(Example(folder / entry.file, entry.label, _TYPES[name[1]]))
    return found


def read_example(example: Example) -> bytes | None:
    """The file of an example; None if it is missing or has more than MAX_EXAMPLE_BYTES."""
    try:
        with example.path.open("rb") as file:
            data = file.read(MAX_EXAMPLE_BYTES + 1)
    except OSError:
        return None
    return data if len(data) <= MAX_EXAMPLE_BYTES else None
