"""Deletes an image from a log: its file, its rows, and the feedback on them."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from gateway_models.predictions.layout import FEEDBACK, IMAGES, ROWS
from gateway_models.predictions.reader import LogReader
from gateway_models.predictions.store import LogUnavailable

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class Forgotten:
    """The numbers of deleted items."""

    rows: int = 0
    feedback: int = 0
    images: int = 0


def forget(log: LogReader, sha256: str) -> Forgotten:
    """Delete an image by the SHA-256 of its file in hex; raises LogUnavailable if that is no hash.

    Files with other rows are replaced by files without the image's rows. A running service may write rows meanwhile.
    """
    sha256 = sha256.strip().lower()
    if not _HASH.fullmatch(sha256):
        raise LogUnavailable(f"{sha256!r} is not a SHA-256 in hex, which has 64 digits: sha256sum FILE prints it")
    done = Forgotten()
    requests: set[tuple[str, int]] = set()
    for path in log.files(ROWS):
        gone = _remove(log, path, lambda table: [each == sha256 for each in table["sha256"].to_pylist()])
        requests.update(gone)
        done.rows += len(gone)
    for path in log.files(FEEDBACK) if requests else ():
        done.feedback += len(_remove(log, path, lambda table: [key in requests for key in _keys(table)]))
    for path in log.store.files(IMAGES):
        if path.rpartition("/")[2].partition(".")[0] == sha256:
            log.store.delete(path)
            done.images += 1
    return done


def _remove(log: LogReader, path: str, choose: Callable[[pa.Table], list[bool]]) -> list[tuple[str, int]]:
    """Replace a file by one without the chosen rows, and return their requests; [] if it was deleted meanwhile."""
    try:
        # All columns, including unknown ones of a newer version.
        table = pq.ParquetFile(pa.BufferReader(log.store.read(path))).read()
    except FileNotFoundError:
        return []
    chosen = choose(table)
    if not any(chosen):
        return []
    kept = table.filter(pa.array([not each for each in chosen]))
    if kept.num_rows:
        data = io.BytesIO()
        pq.write_table(kept, data, compression="zstd")
        log.store.write(path, data.getvalue())
    else:
        log.store.delete(path)
    return [key for key, is_chosen in zip(_keys(table), chosen, strict=True) if is_chosen]


def _keys(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["request_id"].to_pylist(), table["index"].to_pylist(), strict=True))
