"""The paths of the log's files.

rows/MODEL/DAY/TIME-RANDOM.parquet      MODEL percent-encoded, `unknown` if no model has answered
feedback/DAY/TIME-RANDOM.parquet
images/DAY/SHA256.FORMAT                DAY is of the request, in UTC: 2026-01-31
"""

import re
import secrets
from datetime import UTC, date, datetime
from urllib.parse import quote, unquote

from gateway_plugins.shared.safe_path import SafePath, UnsafePath

ROWS, FEEDBACK, IMAGES = "rows", "feedback", "images"
NO_MODEL = "unknown"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def day_of(microseconds: int) -> str:
    """The day of a time in microseconds since 1970."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d")


def model_folder(name: str) -> str:
    """The folder of a model's rows."""
    if not name:
        return f"{ROWS}/{NO_MODEL}"
    quoted = quote(name, safe="")
    # Readers of Parquet skip folders that begin with a dot or an underscore.
    return f"{ROWS}/{quoted if quoted[0] not in '._' else f'%{ord(quoted[0]):02X}{quoted[1:]}'}"


def model_of(path: str) -> str:
    """The model of a file of rows."""
    folder = path.split("/")[1]
    return "" if folder == NO_MODEL else unquote(folder)


def new_rows(model: str, day: str, now: datetime) -> str:
    """A new path for rows of a model."""
    return f"{model_folder(model)}/{day}/{_new_name(now)}"


def new_feedback(day: str, now: datetime) -> str:
    """A new path for rows of feedback."""
    return f"{FEEDBACK}/{day}/{_new_name(now)}"


def image_path(day: str, sha256: str, image_format: str) -> str:
    """The path of an image."""
    suffix = re.sub(r"[^a-z0-9]", "", image_format.lower()) or "bin"
    return f"{IMAGES}/{day}/{sha256}.{suffix}"


def stored_image(path: str) -> SafePath:
    """The path of an image as a row has it; raises UnsafePath if it is no path below images/."""
    safe = SafePath(path)
    if safe.top != IMAGES:
        raise UnsafePath(f"{path!r} is not below {IMAGES}/")
    return safe


def day_in(path: str) -> date | None:
    """The day in a file's path."""
    return day_named(path.rsplit("/", 2)[-2]) if path.count("/") >= 2 else None


def day_named(folder: str) -> date | None:
    """The day that a folder is named after."""
    try:
        return date.fromisoformat(folder) if _DAY.fullmatch(folder) else None
    except ValueError:
        return None


def _new_name(now: datetime) -> str:
    return f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(6)}.parquet"
