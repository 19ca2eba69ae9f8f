"""Writes logged results to a folder, to be labelled by people: a CSV, the images, and tasks for Label Studio.

labels.csv            a row for each image with an empty column true_label; `gateway log import` reads it back
images/               the images, if the log stores them
label-studio.json     the same as tasks with predictions, for Label Studio's import
label-studio.xml      the labelling interface for them
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from xml.sax.saxutils import quoteattr

from gateway.errors import UserError
from gateway_client.csv_cells import csv_line
from gateway_plugins.shared.files import whole_file
from gateway_plugins.shared.safe_path import SafePath
from gateway_predictions.reader import LogReader, Row, key_of
from gateway_predictions.selection import most_uncertain

TABLE, TASKS, INTERFACE, IMAGES = "labels.csv", "label-studio.json", "label-studio.xml", "images"
COLUMNS = ("request_id", "index", "model", "version", "time", "sha256", "image", "label", "score", "margin", "entropy")
TRUE_LABEL = "true_label"


class ExportFailed(UserError):
    """Nothing can be exported; the message states the reason."""


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """Which results to export: with `unlabelled` those without feedback, with `count` the most uncertain ones."""

    model: str | None = None
    since: datetime | None = None
    unlabelled: bool = False
    count: int | None = None
    uncertainty: str = "margin"
    diverse: bool = True


def chosen(log: LogReader, wanted: ExportSelection) -> list[Row]:
    """The results to export."""
    columns = ["time", "version", "labels", "class_ids", "scores", "margin", "entropy", "sha256", "image", "format"]
    columns += ["embedding"] if wanted.diverse and wanted.count is not None else []
    rows = [row for row in log.results(model=wanted.model, since=wanted.since, columns=columns) if row["class_ids"]]
    if wanted.unlabelled:
        known = log.labels()
        labelled = {row["sha256"] for row in rows if key_of(row) in known}
        rows = [row for row in rows if row["sha256"] not in labelled]
    if wanted.count is None:
        return list({row["sha256"]: row for row in rows}.values())
    return most_uncertain(rows, wanted.count, wanted.uncertainty, diverse=wanted.diverse)


def export(log: LogReader, folder: Path, wanted: ExportSelection) -> int:
    """Write the folder, which must be missing or empty; returns the number of images. Raises ExportFailed."""
    rows = chosen(log, wanted)
    if not rows:
        raise ExportFailed(
            f"{log.url} has no such results: they may all be labelled, or none was logged; the last minute is "
            "written later"
        )
    if folder.exists() and any(folder.iterdir()):
        raise ExportFailed(f"{folder} is not empty: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [_write_image(log, row, folder) for row in rows]
    with whole_file(folder / TABLE) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        file.write(csv_line([*COLUMNS, TRUE_LABEL]))
        file.writelines(csv_line([*_cells(row, path), ""]) for row, path in zip(rows, paths, strict=True))
    tasks = [_task(row, path) for row, path in zip(rows, paths, strict=True)]
    with whole_file(folder / TASKS) as draft:
        draft.write_text(json.dumps(tasks, indent=1), encoding="utf-8")
    with whole_file(folder / INTERFACE) as draft:
        draft.write_text(interface(sorted({label for row in rows for label in row["labels"]})), encoding="utf-8")
    return len(rows)


def interface(labels: Iterable[str]) -> str:
    """Label Studio's labelling interface with one choice of labels for each image."""
    choices = "\n".join(f"    <Choice value={quoteattr(label)}/>" for label in labels)
    return f"""<View>
  <Image name="image" value="$image"/>
  <Choices name="choice" toName="image" choice="single" showInline="true">
{choices}
  </Choices>
</View>
"""


def _write_image(log: LogReader, row: Row, folder: Path) -> str:
    """Copy a row's image, if there is one; returns its path in the folder, or ""."""
    data = None if row["image"] is None else log.image(row["image"])
    if data is None:
        return ""
    path = SafePath(f"{IMAGES}/{SafePath(row['image']).name}")
    (folder / IMAGES).mkdir(exist_ok=True)
    path.below(folder).write_bytes(data)
    return path


def _cells(row: Row, path: str) -> Sequence[object]:
    known = {
        **row,
        "time": row["time"].isoformat(),
        "image": path,
        "label": row["labels"][0],
        "score": round(row["scores"][0], 6),
    }
    return ["" if known[name] is None else known[name] for name in COLUMNS]


def _task(row: Row, path: str) -> dict[str, object]:
    """A task for Label Studio (https://labelstud.io/guide/tasks: basic JSON format, with predictions)."""
    choice = {
        "from_name": "choice",
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [row["labels"][0]]},
    }
    return {
        "data": {
            "image": f"/data/local-files/?d={path}" if path else "",
            "request_id": row["request_id"],
            "index": row["index"],
            "model": row["model"],
            "sha256": row["sha256"],
        },
        "predictions": [
            {"model_version": f"{row['model']} {row['version']}", "score": row["scores"][0], "result": [choice]}
        ],
    }
