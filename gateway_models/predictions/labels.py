"""Logged results that people label: written as tasks for Label Studio, and read back with their labels.

label-studio.json     a task with a prediction for each image, for Label Studio's import
label-studio.xml      the labelling interface for them
images/               the images, if the log stores them

The JSON is Label Studio's own: https://labelstud.io/guide/task_format
"""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from gateway.errors import UserError
from gateway.values.safe_path import SafePath
from gateway.values.text_files import read_text
from gateway_models.predictions.layout import SAMPLE, order_of
from gateway_models.predictions.reader import LogReader, Row, key_of

TASKS, INTERFACE, IMAGES = "label-studio.json", "label-studio.xml", "images"
LOCAL_FILES = "/data/local-files/?d="
"""How Label Studio names a file below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
CHOICE = "choice"
"""The name of the interface's tag with the labels."""
MAX_FILE_BYTES = 2**28


def choose(
    log: LogReader,
    *,
    model: str | None = None,
    since: datetime | None = None,
    uncertain: int | None = None,
    drawn: int | None = None,
) -> list[Row]:
    """Results without feedback, each image once, with the column `drawn`; at most one of `uncertain` and `drawn`.

    `uncertain` is a number of images whose two best scores differ least, `drawn` one of images at random, independent
    of answers and of users' reports, and none that was drawn before.
    """
    columns = ["version", "labels", "class_ids", "scores", "margin", "sha256", "image"]
    rows = [row for row in log.results(model=model, since=since, columns=columns) if row["class_ids"]]
    if drawn is not None:
        rows = [row for row in rows if SAMPLE in row["reasons"]]
        rows.sort(key=lambda row: order_of(f"{row['request_id']}/{row['index']}"))
    elif uncertain is not None:
        # A result with one class has no margin, and is certain.
        rows.sort(key=lambda row: 1.0 if row["margin"] is None else row["margin"])
    known = log.labels()
    labelled = {
        row["sha256"] for row in rows if (given := known.get(key_of(row))) and (drawn is None or given["drawn"])
    }
    once: dict[str, Row] = {}
    for row in rows:
        if row["sha256"] not in labelled:
            once.setdefault(row["sha256"], row)
    count = uncertain if drawn is None else drawn
    return [{**row, "drawn": drawn is not None} for row in list(once.values())[:count]]


def export(log: LogReader, rows: Sequence[Row], folder: Path, *, image_url: str | None = None) -> None:
    """Write chosen results into the folder, which must be missing or empty; raises UserError.

    With `image_url` the images stay in the log, and are named by that URL and their path in the log.
    """
    if not rows:
        raise UserError(
            f"{log.url} has no such results: they may all be labelled, or none was logged; the last minute is "
            "written later"
        )
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    if image_url is None:
        copied = (_copy_image(log, row, folder) for row in rows)
        urls = [path and f"{LOCAL_FILES}{path}" for path in copied]
    else:
        urls = [row["image"] and f"{image_url.rstrip('/')}/{row['image']}" for row in rows]
    tasks = [_task(row, url) for row, url in zip(rows, urls, strict=True)]
    (folder / TASKS).write_text(json.dumps(tasks, indent=1), encoding="utf-8")
    labels = sorted({label for row in rows for label in row["labels"]})
    (folder / INTERFACE).write_text(interface(labels), encoding="utf-8")


def interface(labels: Sequence[str]) -> str:
    """Label Studio's labelling interface with one choice of labels for each image."""
    choices = "\n".join(f"    <Choice value={quoteattr(label)}/>" for label in labels)
    return f"""<View>
  <Image name="image" value="$image"/>
  <Choices name="{CHOICE}" toName="image" choice="single" showInline="true">
{choices}
  </Choices>
</View>
"""


def _copy_image(log: LogReader, row: Row, folder: Path) -> str | None:
    """Copy a row's image, if there is one; returns its path in the folder."""
    data = None if row["image"] is None else log.image(row["image"])
    if data is None:
        return None
    path = SafePath(f"{IMAGES}/{SafePath(row['image']).name}")
    (folder / IMAGES).mkdir(exist_ok=True)
    path.below(folder).write_bytes(data)
    return path


def _task(row: Row, url: str | None) -> dict[str, object]:
    result = {
        "id": row["sha256"][:10],
        "from_name": CHOICE,
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [row["labels"][0]]},
    }
    return {
        "data": {
            "image": url or "",
            **{name: row[name] for name in ("request_id", "index", "model", "sha256", "drawn")},
        },
        "predictions": [
            {"model_version": f"{row['model']} {row['version']}", "score": row["scores"][0], "result": [result]}
        ],
    }


def read_labels(path: Path) -> list[dict[str, object]]:
    """The bodies of POST /feedback for the images of a file that have a label; raises UserError."""
    try:
        text = read_text(path, max_bytes=MAX_FILE_BYTES)
    except OSError as exc:
        raise UserError(f"{path} cannot be read: {exc}") from exc
    try:
        return list(_from_tasks(json.loads(text)))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as exc:
        raise UserError(
            f"{path} is no JSON export of Label Studio (the format JSON, not JSON-MIN): {type(exc).__name__} {exc}"
        ) from exc


def _from_tasks(tasks: list[dict[str, Any]]) -> Iterator[dict[str, object]]:
    """The labels of the last annotation of each task that was not skipped."""
    for task in tasks:
        given = [each for each in task["annotations"] if not each.get("was_cancelled")]
        given.sort(key=lambda each: each.get("updated_at") or "")
        results = given[-1]["result"] if given else []
        labels = [label for each in results if each["from_name"] == CHOICE for label in each["value"]["choices"]]
        if labels:
            data = task["data"]
            body = {"request_id": data["request_id"], "index": int(data["index"]), "model": data["model"]}
            yield {**body, "label": labels[-1], **({"drawn": True} if data.get("drawn") is True else {})}
