"""Reads labelled images: a folder for each class, or a CSV of paths and labels."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import UserError
from gateway.values.text_files import read_text
from gateway_client.csv_cells import restored
from gateway_client.files import is_hidden
from gateway_models.proof.image_files import image_files
from gateway_models.repository.class_names import ClassNames

SEPARATOR = ";"
HEADERS = ("path", "file", "filename", "image")
"""Names of the first column; a line that begins with one of them is not an image."""
MAX_TABLE_BYTES = 256 * 2**20
"""The size limit of a CSV: millions of rows."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An image file and its true classes, by number; exactly one except for multi-label models."""

    path: Path
    classes: frozenset[int]


def read_dataset(source: Path, labels: Sequence[str], *, multi_label: bool = False) -> list[Sample]:
    """The samples in a folder with a folder for each class, or in a CSV with a path and a label on each line.

    Classes are named as in `labels`, ignoring case, with _ for a space; or by number. In a CSV the paths are
    relative to it, a first line such as "path,label" is a header, and several labels are separated by ;.
    Raises UserError.
    """
    classes = ClassNames(labels)
    if source.is_dir():
        folders = sorted(folder for folder in source.iterdir() if folder.is_dir() and not is_hidden(folder.name))
        if not folders:
            raise UserError(f"{source} has no folders; there should be one for each class, named as the class")
        numbers = [_number(classes, folder.name, str(folder)) for folder in folders]
        return [
            Sample(path, frozenset({number}))
            for folder, number in zip(folders, numbers, strict=True)
            for path in image_files([folder])
        ]
    if not source.is_file():
        raise UserError(f"no folder or CSV file at {source}")
    samples = [_row(source, number, row, classes) for number, row in _rows(source)]
    if not samples:
        raise UserError(f"{source} has no lines")
    several = next((sample for sample in samples if len(sample.classes) != 1), None)
    if several is not None and not multi_label:
        raise UserError(f"{several.path} has {len(several.classes)} labels, and the model gives one for each image")
    return samples


def read_samples(source: Path, labels: Sequence[str], *, multi_label: bool = False) -> tuple[list[Sample], bool]:
    """The samples at a path, and whether their classes are known.

    A CSV, or a folder with a subfolder named after a class, is read by `read_dataset`; otherwise every image
    in the folder and its subfolders, or the one file, is a sample without classes. Raises UserError.
    """
    classes = ClassNames(labels)
    if source.is_dir():
        labelled = any(folder.name in classes for folder in source.iterdir() if folder.is_dir())
    else:
        labelled = source.suffix.lower() == ".csv"
    if labelled:
        return read_dataset(source, labels, multi_label=multi_label), True
    return [Sample(path, frozenset()) for path in image_files([source])], False


def _number(classes: ClassNames, name: str, where: str) -> int:
    found = classes.find(name)
    if found is None:
        raise UserError(f"{where}: the model has no class {name!r}; it has {classes.some}")
    return found


def _rows(source: Path) -> list[tuple[int, list[str]]]:
    try:
        file = io.StringIO(read_text(source, max_bytes=MAX_TABLE_BYTES, newline=""), newline="")
        rows = [(number, row) for number, row in enumerate(csv.reader(file), 1) if row]
    except (OSError, csv.Error) as exc:
        raise UserError(f"cannot read {source}: {exc}") from exc
    return rows[1:] if rows and rows[0][1][0].strip().lower() in HEADERS else rows


def _row(source: Path, number: int, row: list[str], classes: ClassNames) -> Sample:
    if len(row) < 2:
        raise UserError(f"{source}, line {number}: a path and a label are expected")
    path = source.parent / restored(row[0].strip())
    if not path.is_file():
        advice = "" if number > 1 or path.suffix else "; a header is path,label"
        raise UserError(f"{source}, line {number}: there is no file {path}{advice}")
    names = [name for name in restored(row[1]).split(SEPARATOR) if name.strip()]
    return Sample(path, frozenset(_number(classes, name, f"{source}, line {number}") for name in names))
