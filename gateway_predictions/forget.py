"""Deletes an image from a log: its file, its rows, and the feedback on them."""

import io
import re
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway_predictions.layout import FEEDBACK, ROWS
from gateway_predictions.reader import LogReader
from gateway_predictions.requirements import LogUnavailable

PASSES = 5
"""Times that the log is read at most, until nothing of the image is left."""
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class Forgotten:
    """What was deleted."""

    rows: int = 0
    feedback: int = 0
    images: int = 0


def forget(log: LogReader, sha256: str) -> Forgotten:
    """Delete an image by the SHA-256 of its file in hex; raises LogUnavailable if that is no hash.

    Files with other rows are replaced by files without the image's rows. The log is read again until nothing is found:
    a running service may write rows meanwhile, and another command that replaces a file at the same moment may bring
    the rows back.
    """
    sha256 = sha256.strip().lower()
    if not _HASH.fullmatch(sha256):
        raise LogUnavailable(f"{sha256!r} is not a SHA-256 in hex, which has 64 digits: sha256sum FILE prints it")
    done = Forgotten()
    requests: set[tuple[str, int]] = set()
    for _ in range(PASSES):
        before = replace(done)
        _forget_once(log, sha256, requests, done)
        if done == before:
            break
    return done


def _forget_once(log: LogReader, sha256: str, requests: set[tuple[str, int]], done: Forgotten) -> None:
    """Delete what is there now; adds to the `requests` that had the image, and to what is `done`."""
    for path in [file.path for file in log.store.files(ROWS)]:
        table = _read(log, path)
        if table is None:
            continue
        hit = pc.equal(table["sha256"], sha256).fill_null(fill_value=False)
        if not pc.any(hit).as_py():
            continue
        gone = table.filter(hit)
        requests |= set(zip(gone["request_id"].to_pylist(), gone["index"].to_pylist(), strict=True))
        _replace(log, path, table.filter(pc.invert(hit)))
        done.rows += gone.num_rows
    for path in [file.path for file in log.store.files(FEEDBACK)] if requests else []:
        table = _read(log, path)
        if table is None:
            continue
        pairs = zip(table["request_id"].to_pylist(), table["index"].to_pylist(), strict=True)
        hit = pa.array([pair in requests for pair in pairs], pa.bool_())
        if count := pc.sum(hit).as_py():
            _replace(log, path, table.filter(pc.invert(hit)))
            done.feedback += count
    for path in [file.path for file in log.images()]:
        if path.rsplit("/", 1)[-1].partition(".")[0] == sha256:
            log.store.delete(path)
            done.images += 1


def _read(log: LogReader, path: str) -> pa.Table | None:
    """All columns of a file, also those of a newer version; None if it was deleted meanwhile."""
    try:
        return pq.ParquetFile(pa.BufferReader(log.store.read(path))).read()
    except FileNotFoundError:
        return None


def _replace(log: LogReader, path: str, table: pa.Table) -> None:
    if not table.num_rows:
        log.store.delete(path)
        return
    data = io.BytesIO()
    pq.write_table(table, data, compression="zstd")
    log.store.write(path, data.getvalue())
