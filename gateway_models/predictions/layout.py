"""The paths of the log's files, with partitions as in Hive, and the values of the column `reasons`.

rows/model=MODEL/day=DAY/TIME-RANDOM.parquet    MODEL percent-encoded, `unknown` if no model has answered
feedback/day=DAY/TIME-RANDOM.parquet
images/day=DAY/SHA256.FORMAT                    DAY is of the request, in UTC: 2026-01-31
"""

import hashlib
import re
import secrets
from datetime import UTC, date, datetime
from urllib.parse import quote

from gateway.values.safe_path import SafePath, UnsafePath

ROWS, FEEDBACK, IMAGES = "rows", "feedback", "images"
NO_MODEL = "unknown"
SAMPLE = "sample"
"""A row that was logged at random, by the model's share."""
LOW_SCORE, DISAGREEMENT, ERROR = "score", "disagreement", "error"
"""Rows by a rule: a low best score, a shadow version with another class, an error."""
_DAY = re.compile(r"day=(\d{4}-\d\d-\d\d)")


def day_of(microseconds: int) -> str:
    """The day of a time in microseconds since 1970."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d")


def model_folder(name: str) -> str:
    """The folder of a model's rows."""
    return f"{ROWS}/model={quote(name, safe='')}"


def new_file(folder: str, day: str) -> str:
    """A new path for rows of a day."""
    return f"{folder}/day={day}/{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(6)}.parquet"


def image_path(day: str, sha256: str, image_format: str) -> str:
    """The path of an image."""
    suffix = re.sub(r"[^a-z0-9]", "", image_format.lower()) or "bin"
    return f"{IMAGES}/day={day}/{sha256}.{suffix}"


def stored_image(path: str) -> SafePath:
    """The path of an image as a row has it; raises UnsafePath if it is not a path below images/."""
    safe = SafePath(path)
    if safe.top != IMAGES:
        raise UnsafePath(f"{path!r} is not below {IMAGES}/")
    return safe


def day_in(path: str) -> date | None:
    """The day of a file or folder, by its path."""
    match = _DAY.search(path)
    try:
        return date.fromisoformat(match[1]) if match else None
    except ValueError:
        return None


def order_of(text: str) -> bytes:
    """A key for a random order that is always the same."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
