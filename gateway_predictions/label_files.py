"""Reads the labels that people gave: the CSV of `gateway log export`, or what Label Studio exports (JSON)."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.errors import UserError
from gateway_client.csv_cells import restored
from gateway_client.files import read_text
from gateway_predictions.export import TRUE_LABEL

MAX_FILE_BYTES = 2**28


class LabelsUnreadable(UserError):
    """A file of labels cannot be read; the message states the reason."""


@dataclass(frozen=True, slots=True)
class GivenLabel:
    """The true label of one image of a request."""

    request_id: str
    index: int
    model: str
    label: str

    @property
    def feedback(self) -> dict[str, object]:
        """The body of POST /feedback."""
        return {"request_id": self.request_id, "index": self.index, "model": self.model, "label": self.label}


def read_labels(path: Path) -> list[GivenLabel]:
    """The labels of a file, without images that have none; raises LabelsUnreadable."""
    try:
        text = read_text(path, max_bytes=MAX_FILE_BYTES, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise LabelsUnreadable(f"{path} cannot be read: {exc}") from exc
    try:
        return list(_tasks(json.loads(text)) if path.suffix.lower() == ".json" else _table(text))
    except (KeyError, TypeError, ValueError) as exc:
        raise LabelsUnreadable(
            f"{path} is neither the labels.csv of gateway log export with a column {TRUE_LABEL}, nor a JSON export of "
            f"Label Studio: {type(exc).__name__} {exc}"
        ) from exc


def _table(text: str) -> Iterator[GivenLabel]:
    for row in csv.DictReader(text.splitlines(keepends=True)):
        cells = {name: restored(row[name] or "") for name in ("request_id", "index", "model", TRUE_LABEL)}
        if cells[TRUE_LABEL].strip():
            yield GivenLabel(cells["request_id"], int(cells["index"]), cells["model"], cells[TRUE_LABEL].strip())


def _tasks(tasks: list[dict[str, Any]]) -> Iterator[GivenLabel]:
    for task in tasks:
        data = task["data"]
        choices = [
            choice
            for annotation in task.get("annotations", [])
            if not annotation.get("was_cancelled")
            for result in annotation["result"]
            for choice in result["value"]["choices"]
        ]
        if choices:  # the last annotation counts
            yield GivenLabel(data["request_id"], int(data["index"]), data["model"], choices[-1])
