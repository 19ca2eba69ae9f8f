"""Reads labels in common formats: one per line, id2label as JSON, or a table of numbers and names."""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.errors import UserError
from gateway_client.files import read_text
from gateway_models.networks.hub import numbered

MAX_LABELS_BYTES = 64 * 2**20
"""The size limit of a labels file: a thousand times the size that the largest data sets need."""
TABLES = {".csv": ",;", ".tsv": "\t"}
_NUMBERED = re.compile(r"(\d+)(?:\s*:\s*|\s+)(\S.*)")


class LabelsError(UserError):
    """A labels file cannot be parsed; the message names its assumed format and what is expected."""


def given_labels(path: Path) -> tuple[str, ...]:
    """Read the labels of a UTF-8 file in the order of the classes; raises LabelsError or HubError.

    JSON: a list, {"0": "cat"}, {"cat": 0}, or an object with these under id2label or label2id. A table: two columns,
    one of them with the numbers from 0, with or without a header, or one column. Otherwise one label per line, which
    may follow its number, as in "0 cat", if every line has a number.
    """
    try:
        # Not splitlines(), which also splits at characters that Triton keeps in a label. utf-8-sig drops a BOM.
        text = read_text(path, max_bytes=MAX_LABELS_BYTES, encoding="utf-8-sig").rstrip()
    except (OSError, UnicodeDecodeError) as exc:
        raise LabelsError(unreadable(path, exc)) from exc
    if not text:
        raise LabelsError(f"{path} contains no labels")
    if path.suffix == ".json" or text.startswith(("{", "[")):
        return _checked(_from_json(text, path), path, "entry")
    lines = [line.strip() for line in text.split("\n")]
    table = _from_table(text, path) or _from_numbered(lines)
    return _checked(lines if table is None else table, path, "line")


def unreadable(path: Path, exc: OSError | UnicodeDecodeError) -> str:
    """The message for a labels file that cannot be read: the reason and what to do."""
    if isinstance(exc, UnicodeDecodeError):
        return f"cannot read the labels: {path} is not UTF-8 text (invalid byte at {exc.start}): save it as UTF-8"
    return f"cannot read the labels: {path}: {exc.strerror or exc}"


def _from_json(text: str, path: Path) -> Sequence[str]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise LabelsError(f"{path} looks like JSON but cannot be parsed: {exc}") from exc
    if isinstance(values, Mapping):
        for key in ("id2label", "label2id"):
            if isinstance(values.get(key), Mapping):
                values = values[key]
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        return [value.strip() for value in values]
    if isinstance(values, Mapping) and values:
        if all(isinstance(value, int) for value in values.values()):
            values = {number: name for name, number in values.items()}
        return numbered(values, path)
    raise LabelsError(
        f'{path} has neither a list of labels nor {{"0": "cat", "1": "dog"}}, as id2label has them in config.json'
    )


def _from_table(text: str, path: Path) -> Sequence[str] | None:
    """The labels of a table; None if the file is a list, whose labels may contain commas."""
    named_so = path.suffix.lower() in TABLES
    for separator in TABLES.get(path.suffix.lower(), ",;\t"):
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=separator) if row]
        if any(len(row) != 2 for row in rows):
            continue
        for numbers, names in ((0, 1), (1, 0)):
            # The first row may be the names of the columns.
            for body in (rows, rows[1:]):
                found = {row[numbers].strip(): row[names].strip() for row in body}
                if body and set(found) == {str(number) for number in range(len(body))}:
                    return [found[str(number)] for number in range(len(body))]
        if named_so:
            break
    if named_so:
        column = [row for row in csv.reader(io.StringIO(text)) if row]
        if all(len(row) == 1 for row in column):
            return [row[0].strip() for row in column]
        raise LabelsError(
            f"{path} is a table, and its labels are not clear: two columns are expected, the numbers from 0 and their "
            "labels, or one label a line in a file named .txt"
        )
    return None


def _from_numbered(lines: Sequence[str]) -> Sequence[str] | None:
    """The labels of lines such as "0 cat" or "1: dog"; None unless the lines have the numbers from 0."""
    found = {match[1]: match[2] for line in lines if (match := _NUMBERED.fullmatch(line))}
    if len(lines) < 2 or len(found) < len(lines) or set(found) != {str(number) for number in range(len(lines))}:
        return None
    return [found[str(number)] for number in range(len(lines))]


def _checked(labels: Sequence[str], path: Path, what: str) -> tuple[str, ...]:
    for number, label in enumerate(labels, 1):
        if not label:
            raise LabelsError(f"{path} has no label on {what} {number}; every class needs one")
        if "\n" in label:
            raise LabelsError(f"{path} has a label of several lines on {what} {number}: {label!r}")
        # Terminals, logs and web pages show labels. A lone surrogate cannot be encoded.
        if any(unicodedata.category(character) in {"Cc", "Cs"} for character in label if character != "\t"):
            raise LabelsError(f"{path} has a control character in the label on {what} {number}: {label!r}")
    if not labels:
        raise LabelsError(f"{path} contains no labels")
    return tuple(labels)
