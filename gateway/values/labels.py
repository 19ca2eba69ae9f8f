"""Reads files of labels. Every command and setting that takes such a file uses this grammar.

- **Lines**: one label per line, in the order of the classes; or each with its number from 0, as in `0 cat`, `0: cat` or
  `0) cat`. Quotes around every line are none of the label.
- **A table** of two columns, separated by commas, semicolons or tabs: the numbers from 0 and the labels, in any order,
  with or without a header. A .csv or .tsv is such a table, or has one column.
- **JSON, or a Python literal**: a list of labels, {"0": "cat"}, {"cat": 0}, or an object that has one of these as
  `id2label`, `label2id`, `names`, `labels` or `classes`. A label may be a pair of a WordNet number and a name, as in
  ["n02123045", "tabby"].
- **YAML** with `names:`, as in Ultralytics' data.yaml.

A file that can be read in two ways is refused.
"""

import ast
import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import UserError
from gateway.values.text_files import read_text
from gateway.values.validation import shown
from gateway.values.yaml_files import YamlError, parse_yaml

MAX_LABELS_BYTES = 64 * 2**20
"""The size limit of a labels file: a thousand times the size that the largest data sets need."""
SHOWN = 3
FORMS = 'use one label per line, or JSON: ["cat", "dog"] or {"0": "cat", "1": "dog"}'
TABLES = (".csv", ".tsv")
SEPARATORS = ",;\t"
_YAML = (".yaml", ".yml")
_NUMBER = re.compile(r"[0-9]{1,9}")
_NUMBERED = re.compile(r"([0-9]{1,9})(?:\s*:\s*|\s*[-.)=]\s+|\s+)(\S.*)")
_QUOTED = re.compile(r"""(["'])(.+)\1""")
_HEADERS = frozenset({"category", "class", "class_name", "classes", "label", "labels", "name", "names"})
"""The names of a table's only column."""
_MARKED = re.compile(rf"[0-9]+\s*[:{SEPARATORS}].*")
_MARKED_LAST = re.compile(rf".*[:{SEPARATORS}]\s*([0-9]{{1,9}})")
_WORDNET = re.compile(r"n[0-9]{8}")
_NAMES = re.compile(r"^names\s*:(\s|$)", re.MULTILINE)


class LabelsError(UserError):
    """A labels file cannot be parsed; the message names its assumed format and the expected content."""


@dataclass(frozen=True, slots=True)
class LabelFile:
    """The labels of a file in the order of the classes, and the form in which they were found."""

    labels: tuple[str, ...]
    form: str

    def __str__(self) -> str:
        some = ", ".join(self.labels[:SHOWN]) + (", …" if len(self.labels) > SHOWN else "")
        return f"{len(self.labels)} label{'s' * (len(self.labels) != 1)} from {self.form}: {some}"


class _Pairs(list[tuple[object, object]]):
    """The members of an object in JSON, Python or YAML, which may have a name twice."""


def read_labels(path: Path) -> tuple[str, ...]:
    """The labels of a file in the order of the classes; raises LabelsError."""
    return read_label_file(path).labels


def read_label_file(path: Path) -> LabelFile:
    """Read a file of labels in one of the forms above; raises LabelsError."""
    text = label_text(path)
    suffix = path.suffix.lower()
    if suffix in _YAML or _NAMES.search(text):
        return _checked(_from_values(_yaml(text, path), path), "the names in YAML", path, "entry")
    if suffix == ".json" or text.startswith(("{", "[")):
        values, form = _json(text, path)
        return _checked(_from_values(values, path), form, path, "entry")
    lines = [line.strip() for line in text.split("\n")]
    if table := _from_table(text, path, named_so=suffix in TABLES) or _from_numbered(lines, path):
        return _checked(*table, path, "row")
    _check_list(lines, path)
    quoted = [match for line in lines if (match := _QUOTED.fullmatch(line))]
    if len({match[1] for match in quoted}) == 1 and len(quoted) == len(lines):
        return _checked([match[2] for match in quoted], "quoted lines", path, "line")
    return _checked(lines, "lines", path, "line")


def label_text(path: Path) -> str:
    """The text of a labels file without the blank lines at its end; raises LabelsError."""
    try:
        text = read_text(path, max_bytes=MAX_LABELS_BYTES).rstrip()
    except OSError as exc:
        raise LabelsError(f"cannot read the labels: {path}: {exc.strerror or exc}") from exc
    if not text:
        raise LabelsError(f"{path} contains no labels")
    return text


def numbered(members: Iterable[tuple[object, object]], path: Path) -> tuple[str, ...]:
    """The labels of {"0": "cat", "1": "dog"} in the order of the numbers; raises LabelsError if one is missing."""
    found: dict[int, str] = {}
    for key, value in members:
        if isinstance(key, bool) or not _NUMBER.fullmatch(str(key)):
            raise LabelsError(f"{path} has labels under names that are not numbers: {shown(key)}")
        number = int(str(key))
        if number in found:
            raise LabelsError(f"{path} has two labels for class {number}")
        found[number] = _label(value, number, path)
    missing = [number for number in range(len(found)) if number not in found]
    if missing:
        raise LabelsError(
            f"{path} has {len(found)} label{'s' * (len(found) != 1)}, and none for class {missing[0]}: the numbers "
            "begin with 0, without a gap"
        )
    return tuple(found[number] for number in range(len(found)))


def _label(value: object, number: int, path: Path) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    match value:
        case [str(first), str(name)] if _WORDNET.fullmatch(first):
            return name.strip()
    raise LabelsError(f"{path} has no text as the label of class {number}, but {json.dumps(value, default=str)[:60]}")


def _json(text: str, path: Path) -> tuple[object, str]:
    try:
        return json.loads(text, object_pairs_hook=_Pairs), "JSON"
    except (ValueError, RecursionError) as exc:
        fault = exc
    try:
        return _python(ast.parse(text, mode="eval").body), "a Python literal"
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise LabelsError(f"{path} looks like JSON but cannot be parsed: {fault}; {FORMS}") from fault


def _python(node: ast.expr) -> object:
    if isinstance(node, ast.Dict):
        return _Pairs(
            (ast.literal_eval(key), _python(value))
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        )
    value: object = ast.literal_eval(node)
    return list(value) if isinstance(value, tuple) else value


def _yaml(text: str, path: Path) -> object:
    try:
        root = parse_yaml(text)
    except ImportError as exc:
        raise LabelsError(f"{path} is YAML, which needs PyYAML: pip install pyyaml, or {FORMS}") from exc
    except YamlError as exc:
        raise LabelsError(f"{path} cannot be read as YAML: {exc}; {FORMS}") from exc
    if not isinstance(root, dict) or "names" not in root:
        raise LabelsError(f"{path} is YAML without `names:`, which data.yaml has; {FORMS}")
    names = root["names"]
    return _Pairs(names.items()) if isinstance(names, dict) else names


def _from_values(values: object, path: Path) -> Sequence[str]:
    if isinstance(values, _Pairs):
        for key, value in values:
            if key in {"id2label", "label2id", "names", "labels", "classes"} and isinstance(value, list):
                values = value
                break
    if isinstance(values, _Pairs) and values:
        return _from_pairs(values, path)
    if isinstance(values, list):
        if values and all(isinstance(value, _Pairs) for value in values):
            raise LabelsError(f"{path} has a list of objects: {FORMS}")
        return [_label(value, number, path) for number, value in enumerate(values)]
    raise LabelsError(
        f'{path} has neither a list of labels nor {{"0": "cat", "1": "dog"}}, as id2label has them in config.json'
    )


def _from_pairs(pairs: Sequence[tuple[object, object]], path: Path) -> Sequence[str]:
    """The labels of pairs whose numbers are on the left, or whole numbers on the right."""
    turned = [(value, key) for key, value in pairs]
    if not all(type(value) is int for _, value in pairs):
        return numbered(pairs, path)
    if all(_NUMBER.fullmatch(str(key)) for key, _ in pairs):
        readings = [labels for each in (pairs, turned) if (labels := _whole(each)) is not None]
        if len(set(readings)) > 1 or (readings and len(set(readings[0])) < len(pairs)):
            raise _two_numbers(path)
        if readings:
            return readings[0]
    return numbered(turned, path)


def _whole(pairs: Sequence[tuple[object, object]]) -> tuple[str, ...] | None:
    """The second of each pair, in the order of the first, if these are the numbers from 0; otherwise None."""
    keys = [str(key).strip() for key, _ in pairs]
    if not all(map(_NUMBER.fullmatch, keys)):
        return None
    found = {int(key): str(value).strip() for key, (_, value) in zip(keys, pairs, strict=True)}
    if len(found) < len(pairs) or set(found) != set(range(len(pairs))):
        return None
    return tuple(found[number] for number in range(len(found)))


def _two_numbers(path: Path) -> LabelsError:
    return LabelsError(f"{path} has two numbers for each class, and it is not clear which one is the label: {FORMS}")


def _from_table(text: str, path: Path, *, named_so: bool) -> tuple[Sequence[str], str] | None:
    """The labels of a table; None if the file is a list, whose labels may contain commas."""
    for separator in SEPARATORS:
        rows = _rows(text, separator, path)
        if not rows or any(len(row) != 2 for row in rows):
            continue
        # The first row may be the names of the columns, which are not numbers.
        has_header = not any(_NUMBER.fullmatch(cell) for cell in rows[0])
        pairs = [(left, right) for left, right in (rows[1:] if has_header else rows)]
        turned = [(right, left) for left, right in pairs]
        columns = ((2, _whole(pairs)), (1, _whole(turned)))
        readings = {column: labels for column, labels in columns if labels}
        if not readings:
            continue
        labels = next(iter(readings.values()))
        if all(map(_NUMBER.fullmatch, labels)):
            # In a list, 0,5 may be a number with a decimal comma.
            is_table = named_so or has_header
            if not is_table or len(set(readings.values())) > 1 or len(set(labels)) < len(labels):
                raise _two_numbers(path)
        return labels, f"column {next(iter(readings))} of a table"
    if not named_so:
        return None
    rows = _rows(text, ",", path)
    if all(len(row) == 1 for row in rows):
        column = [row[0] for row in rows][rows[0][0].lower() in _HEADERS :]
        _check_list(column, path)
        return column, "the column of a table"
    raise LabelsError(
        f"{path} is a table, and its labels are not clear: two columns are expected, the numbers from 0 and their "
        "labels, or one label a line in a file named .txt"
    )


def _rows(text: str, separator: str, path: Path) -> list[tuple[str, ...]]:
    try:
        rows = csv.reader(io.StringIO(text), delimiter=separator)
        return [tuple(cell.strip() for cell in row) for row in rows if row]
    except csv.Error as exc:
        raise LabelsError(f"{path} cannot be read as a table: {exc}") from exc


def _from_numbered(lines: Sequence[str], path: Path) -> tuple[Sequence[str], str] | None:
    """The labels of lines such as "0 cat" or "1: dog"; None unless the lines have the numbers from 0."""
    pairs = [(match[1], match[2]) for line in lines if (match := _NUMBERED.fullmatch(line))]
    if len(lines) < 2 or len(pairs) < len(lines):
        return None
    labels = _whole(pairs)
    if labels is None:
        if any(int(number) == 0 for number, _ in pairs):
            raise _unclear(path)
        return None
    if all(map(_NUMBER.fullmatch, labels)) and len(set(labels)) < len(labels):
        raise _two_numbers(path)
    return labels, "numbered lines"


def _check_list(lines: Sequence[str], path: Path) -> None:
    """Refuse lines that all have a number and a separator, and are not the numbers from 0 and a label."""
    last = [int(match[1]) for line in lines if (match := _MARKED_LAST.fullmatch(line))]
    if len(lines) > 1 and (all(map(_MARKED.fullmatch, lines)) or (len(last) == len(lines) >= max(last))):
        raise _unclear(path)


def _unclear(path: Path) -> LabelsError:
    return LabelsError(
        f"every line of {path} has a number, but they are not the numbers from 0, each with one label: {FORMS}"
    )


def _checked(labels: Sequence[str], form: str, path: Path, what: str) -> LabelFile:
    for number, label in enumerate(labels, 1):
        if not label:
            raise LabelsError(f"{path} has no label on {what} {number}; every class needs one")
        if "\n" in label:
            raise LabelsError(f"{path} has a label of several lines on {what} {number}: {shown(label)}")
        # Terminals, logs and web pages show labels. A lone surrogate cannot be encoded.
        if any(unicodedata.category(character) in {"Cc", "Cs"} for character in label if character != "\t"):
            raise LabelsError(f"{path} has a control character in the label on {what} {number}: {shown(label)}")
    if not labels:
        raise LabelsError(f"{path} contains no labels")
    return LabelFile(tuple(labels), form)
