"""What an ONNX file says of its labels and images in its metadata, as Ultralytics' exporter writes it.

The metadata are read alone: the graph with its weights, which may be gigabytes, is skipped.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.hub import HubError, numbered
from gateway_models.repository.preprocessing import Preprocessing, PreprocessingError

METADATA_PROPS, KEY, VALUE = 14, 1, 2
"""Field numbers of ModelProto and StringStringEntryProto (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto)."""
MAX_PROPERTY_BYTES = 16 * 2**20
"""The size limit of one property: the names of a million classes."""
MAX_FIELDS = 10_000
CLASSIFY = "classify"
TASKS = {
    "detect": "finds objects by boxes",
    "obb": "finds objects by rotated boxes",
    "pose": "finds people by points",
    "segment": "finds objects by masks",
    "semantic": "gives a map of classes",
}
"""What Ultralytics' other tasks do."""


@dataclass(frozen=True, slots=True)
class Described:
    """What a file says of itself; () and None where it does not."""

    labels: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None


def described(path: Path) -> Described:
    """The labels and the preprocessing in an ONNX file's metadata; raises ModelFileError for another task."""
    try:
        found = metadata(path)
    except (OSError, ValueError):
        return Described()  # loading it reports what is wrong
    if found.get("author") != "Ultralytics" or "task" not in found:
        return Described()
    task = found["task"]
    if task != CLASSIFY:
        does = TASKS.get(task, f"is for the task {task!r}")
        raise ModelFileError(
            f"{path} is a YOLO model that {does}: only classifiers of whole images are served. Use one of "
            "Ultralytics' models that end in -cls"
        )
    return Described(_labels(found.get("names", ""), path), _preprocessing(found.get("imgsz", "")))


def metadata(path: Path) -> dict[str, str]:
    """The metadata properties of an ONNX file; raises OSError, or ValueError for another file."""
    found: dict[str, str] = {}
    with path.open("rb") as file:
        size = path.stat().st_size
        for _ in range(MAX_FIELDS):
            if file.tell() >= size:
                break
            number, kind = divmod(_varint(file), 8)
            if kind == 0:
                _varint(file)
            elif kind in {1, 5}:
                file.seek(8 if kind == 1 else 4, 1)
            elif kind == 2:
                length = _varint(file)
                if number == METADATA_PROPS and length <= MAX_PROPERTY_BYTES:
                    key, value = _property(file, length)
                    found[key] = value
                else:
                    file.seek(length, 1)
            else:
                raise ValueError(f"there is no wire type {kind}")
    return found


def _property(file: BinaryIO, length: int) -> tuple[str, str]:
    end, texts = file.tell() + length, {KEY: "", VALUE: ""}
    while file.tell() < end:
        number, kind = divmod(_varint(file), 8)
        if kind != 2 or (size := _varint(file)) > end - file.tell():
            raise ValueError("a property is damaged")
        texts[number] = file.read(size).decode()
    return texts[KEY], texts[VALUE]


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("a number is damaged")


def _labels(text: str, path: Path) -> tuple[str, ...]:
    """The labels of {0: 'cat', 1: 'dog'}; () where there are none, or only the numbers."""
    names = _literal(text)
    if not isinstance(names, Mapping):
        return ()
    try:
        labels = numbered(names, path)
    except HubError as exc:
        raise ModelFileError(str(exc)) from exc
    return () if all(label == f"class{number}" for number, label in enumerate(labels)) else labels


def _preprocessing(text: str) -> Preprocessing | None:
    """As classify_transforms in ultralytics/data/augment.py prepares images, with its defaults: mean 0 and std 1."""
    sides = _literal(text)
    if isinstance(sides, int):
        sides = [sides]
    if not isinstance(sides, (list, tuple)) or len(set(sides)) != 1 or not isinstance(sides[0], int):
        return None
    try:
        return Preprocessing((sides[0],), sides[0], "bilinear", (0.0,) * 3, (1.0,) * 3)
    except PreprocessingError:
        return None


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
