"""Deletes an image from a log: its file, its rows, and the feedback on them."""

import io
import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from gateway_models.predictions.layout import FEEDBACK, IMAGES, ROWS
from gateway_models.predictions.reader import LogReader, Row
from gateway_models.predictions.store import LogUnavailable

RESULT = ("request_id", "index")
"""The columns that identify a result."""
_HASH = re.compile(r"[0-9a-f]{64}")


def forget(log: LogReader, sha256: str) -> tuple[int, int, int]:
    """Delete an image by the SHA-256 of its file in hex; returns the numbers of rows, feedbacks and image files.

    Files with other rows are replaced by files without the image's rows. A running service may write rows meanwhile.
    Raises LogUnavailable if `sha256` is no hash.
    """
    sha256 = sha256.strip().lower()
    if not _HASH.fullmatch(sha256):
        raise LogUnavailable(f"{sha256!r} is not a SHA-256 in hex, which has 64 digits: sha256sum FILE prints it")
    rows = [
        row
        for path in log.files(ROWS)
        for row in _remove(log, path, ("sha256", *RESULT), lambda row: row["sha256"] == sha256)
    ]
    requests = {(row["request_id"], row["index"]) for row in rows}
    feedback = [
        row
        for path in (log.files(FEEDBACK) if requests else ())
        for row in _remove(log, path, RESULT, lambda row: (row["request_id"], row["index"]) in requests)
    ]
    images = [path for path in log.store.files(IMAGES) if path.rpartition("/")[2].partition(".")[0] == sha256]
    for path in images:
        log.store.delete(path)
    return len(rows), len(feedback), len(images)


def _remove(log: LogReader, path: str, columns: Sequence[str], is_chosen: Callable[[Row], bool]) -> list[Row]:
    """Replace a file by one without the chosen rows, and return them with these columns; [] if it was deleted."""
    try:
        # All columns, including unknown ones of a newer version.
        table = pq.ParquetFile(pa.BufferReader(log.store.read(path))).read()
    except FileNotFoundError:
        return []
    rows = table.select(columns).to_pylist()  # Python has no type for some values of others, such as the year 10000
    chosen = [row for row in rows if is_chosen(row)]
    if not chosen:
        return []
    if len(chosen) == len(rows):
        log.store.delete(path)
    else:
        data = io.BytesIO()
        pq.write_table(table.filter(pa.array([not is_chosen(row) for row in rows])), data, compression="zstd")
        log.store.write(path, data.getvalue())
    return chosen
