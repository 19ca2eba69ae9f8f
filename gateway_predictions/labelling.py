"""The queue of logged images to label, in a process of its own: the service reads no Parquet.

`python -m gateway_predictions.labelling URL` reads requests and writes responses, each a line of JSON:

    {"do": "next", "model": NAME}      an image that nobody else has, with what the model answered; null if none is left
    {"do": "image", "model": NAME, "path": PATH}
                                       {"data": BASE64}; null if it was deleted, or is not in the model's queue
    {"do": "overview", "model": NAME}  how many images are labelled, and the accuracy and the drift by day

It ends with its input. An error is a line {"error": TEXT}.
"""

import base64
import heapq
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow.compute as pc

from gateway.errors import UserError
from gateway_predictions.accuracy import drawn
from gateway_predictions.drift.distances import MOST_NAMES, psi
from gateway_predictions.drift.sample import order_of
from gateway_predictions.layout import stored_image
from gateway_predictions.leases import Leases
from gateway_predictions.reader import Labelled, LogReader, Row, key_of
from gateway_predictions.reasons import SAMPLE
from gateway_predictions.selection import CERTAINTY, most_uncertain
from gateway_predictions.shares import Proportion

DAYS = 30.0
"""Older images are not offered."""
QUEUE_IMAGES = 200
"""Uncertain images that are chosen at a time, each as different from the others as possible."""
POOL_IMAGES = 2_000
"""The most uncertain images of the log, among which they are chosen; and the random ones that are kept."""
RANDOM_SHARE = 0.25
"""Share of images that are chosen at random, whatever their answers: their labels give the accuracy of the service."""
REFRESH_SECONDS = 30.0
"""Time after which the log is read again."""
LEAST_REFERENCE = 50
"""Random images of the first days, with which each later day is compared."""
BOOTSTRAPS = 200
_COLUMNS = (
    "time",
    "request_id",
    "index",
    "model",
    "version",
    "reasons",
    "error",
    "labels",
    "class_ids",
    "scores",
    "margin",
    "entropy",
    "sha256",
    "image",
    "shadow_version",
)


@dataclass(slots=True)
class Work:
    """What one reading of the log found for a model."""

    read_at: float
    uncertain: list[Row] = field(default_factory=list)
    random: list[Row] = field(default_factory=list)
    waiting: int = 0
    """Images without a label."""
    labelled: list[Labelled] = field(default_factory=list)
    classes: dict[str, Counter[int]] = field(default_factory=dict)
    """How often each class was the best one of a random image, by day."""
    images: frozenset[str] = frozenset()
    """Paths of the images that may be offered, by any process that reads the log."""


class LabelQueue:
    """Offers the images of a log one after the other."""

    def __init__(
        self,
        log: LogReader,
        leases: Leases | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._log = log
        self._leases = Leases(log.store) if leases is None else leases
        self._clock = clock
        self._chance = chance
        self._work: dict[str, Work] = {}

    def next(self, model: str) -> dict[str, object] | None:
        """The next image of a model, leased; None if there is none that nobody else has."""
        work = self._current(model)
        order = [(work.random, True), (work.uncertain, False)]
        if self._chance() >= RANDOM_SHARE:
            order.reverse()
        for rows, is_drawn in order:
            while rows:
                row = rows.pop(0)
                if self._leases.take(row["sha256"]):
                    return _offer(row, is_drawn=is_drawn)
        return None

    def image(self, model: str, path: str) -> dict[str, str] | None:
        """A stored image of a model's queue: who may use one model must not see the images of another."""
        if path not in self._current(model).images:
            return None
        data = self._log.image(stored_image(path))
        return None if data is None else {"data": base64.b64encode(data).decode()}

    def overview(self, model: str) -> dict[str, object]:
        """The progress, and the curves."""
        work = self._current(model)
        return {
            "labelled": len(work.labelled),
            "waiting": work.waiting,
            "accuracy": _accuracy_by_day(drawn(work.labelled)),
            "reported": _accuracy_by_day(work.labelled),
            "drift": drift_by_day(work.classes),
        }

    def _current(self, model: str) -> Work:
        work = self._work.get(model)
        if work is None or self._clock() - work.read_at > REFRESH_SECONDS:
            work = self._work[model] = self._read(model)
        return work

    def _read(self, model: str) -> Work:
        """Read the log file by file: only the images that may be offered, and the labelled ones, stay in memory."""
        work = Work(self._clock())
        labels = self._log.labels()
        pool = _Pool(CERTAINTY["margin"])
        sample = _Pool(lambda row: int.from_bytes(order_of(f"{row['request_id']}/{row['index']}")))
        since = datetime.now(UTC) - timedelta(days=DAYS)
        waiting, classes = set(), defaultdict[str, Counter[int]](Counter)
        known = {row["sha256"] for row in self._rows(model, since) if key_of(row) in labels}
        for row in self._rows(model, since):
            label = labels.get(key_of(row))
            is_random = SAMPLE in row["reasons"]
            if is_random:
                classes[f"{row['time']:%Y-%m-%d}"][row["class_ids"][0]] += 1
            if label is not None:
                work.labelled.append(Labelled(row, label["label"], label["class_id"], label["drawn"]))
            if not row["image"]:
                continue
            # An image that a user reported may still be drawn: else the random ones would lack the reported mistakes.
            if is_random and not (label and label["drawn"]):
                sample.add(row)
            if row["sha256"] not in known:
                waiting.add(row["sha256"])
                pool.add(row)
        held = self._leases.held()
        free = [row for row in self._with_embeddings(model, since, pool.rows()) if row["sha256"] not in held]
        work.uncertain = most_uncertain(free, QUEUE_IMAGES)
        work.random = [row for row in sample.rows() if row["sha256"] not in held]
        work.waiting = len(waiting)
        work.classes = dict(classes)
        work.images = frozenset(row["image"] for row in (*pool.rows(), *sample.rows()))
        return work

    def _rows(self, model: str, since: datetime) -> Iterable[Row]:
        """The results without an error; additional rows of shadow versions are left out."""
        for table in self._log.tables(model=model, since=since, columns=_COLUMNS):
            for row in table.to_pylist():
                if (
                    row["error"] is None
                    and row["shadow_version"] is None
                    and row["class_ids"]
                    and row["model"] == model
                ):
                    yield row

    def _with_embeddings(self, model: str, since: datetime, rows: list[Row]) -> list[Row]:
        """These rows with the embeddings of their images, where the log has them."""
        hashes = pc.SetLookupOptions(value_set=pc.unique(_strings(row["sha256"] for row in rows)))
        found: dict[str, list[float]] = {}
        for table in self._log.tables(model=model, since=since, columns=["sha256", "embedding"]):
            chosen = table.filter(pc.and_(pc.is_in(table["sha256"], options=hashes), pc.is_valid(table["embedding"])))
            found.update({row["sha256"]: row["embedding"] for row in chosen.to_pylist()})
        return [{**row, "embedding": found.get(row["sha256"])} for row in rows]


class _Pool:
    """The POOL_IMAGES rows with the smallest keys, each image once."""

    def __init__(self, key: Callable[[Row], float]) -> None:
        self._key = key
        self._heap: list[tuple[float, str, Row]] = []
        self._inside: set[str] = set()

    def add(self, row: Row) -> None:
        """Add a row, unless its image is inside or it has a larger key than all of a full pool."""
        if row["sha256"] in self._inside:
            return
        item = (-self._key(row), str(row["sha256"]), row)
        if len(self._heap) < POOL_IMAGES:
            heapq.heappush(self._heap, item)
        else:
            _, gone, _ = heapq.heappushpop(self._heap, item)
            self._inside.discard(gone)
            if gone == item[1]:
                return
        self._inside.add(item[1])

    def rows(self) -> list[Row]:
        """The rows by their keys."""
        return [row for _, _, row in sorted(self._heap, key=lambda item: (-item[0], item[1]))]


def drift_by_day(classes: dict[str, Counter[int]], *, seed: int = 0) -> list[dict[str, object]]:
    """The population stability index of each day's classes, compared with those of the first days.

    The first days are those that together have LEAST_REFERENCE random images. `low` and `high` are the interval of 95 %
    by bootstrap; `chance` is the index that 95 % of days of as many images would stay below without any drift.
    """
    days = sorted(classes)
    reference: Counter[int] = Counter()
    while days and sum(reference.values()) < LEAST_REFERENCE:
        reference += classes[days.pop(0)]
    names = [name for name, _ in reference.most_common(MOST_NAMES)]
    expected = _counts(reference, names)
    rng, found = np.random.default_rng(seed), []
    for day in days:
        counts = _counts(classes[day], names)
        total = int(counts.sum())
        again = rng.multinomial(total, counts / total, BOOTSTRAPS)
        likely = (expected + 0.5) / (expected + 0.5).sum()
        chance = [psi(expected, each) for each in rng.multinomial(total, likely, BOOTSTRAPS).astype(float)]
        low, high = np.quantile([psi(expected, each) for each in again.astype(float)], [0.025, 0.975])
        found.append(
            {
                "day": day,
                "images": total,
                "value": psi(expected, counts),
                "low": float(low),
                "high": float(high),
                "chance": float(np.quantile(chance, 0.95)),
            }
        )
    return found


def _counts(classes: Counter[int], names: list[int]) -> np.ndarray:
    """How often each of these classes occurs, and all others together."""
    known = [classes[name] for name in names]
    return np.array([*known, sum(classes.values()) - sum(known)], np.float64)


def _accuracy_by_day(known: list[Labelled]) -> list[dict[str, object]]:
    by_day: defaultdict[str, list[bool]] = defaultdict(list)
    for each in known:
        by_day[f"{each.row['time']:%Y-%m-%d}"].append(each.is_correct)
    found: list[dict[str, object]] = []
    for day in sorted(by_day):
        share = Proportion(sum(by_day[day]), len(by_day[day]))
        low, high = share.interval
        found.append({"day": day, "images": share.count, "value": share.value, "low": low, "high": high})
    return found


def _offer(row: Row, *, is_drawn: bool) -> dict[str, object]:
    answers = zip(row["labels"], row["class_ids"], row["scores"], strict=True)
    return {
        **{name: row[name] for name in ("request_id", "index", "model", "version", "image")},
        "time": row["time"].isoformat(),
        "drawn": is_drawn,
        "predictions": [{"label": label, "class_id": number, "score": score} for label, number, score in answers],
    }


def _strings(values: Iterable[str]) -> object:
    import pyarrow as pa

    return pa.array(list(values), pa.string())


def main(url: str) -> None:
    """Answer requests until the input ends."""
    queue = LabelQueue(LogReader(url))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "image":
                answer: object = queue.image(request["model"], request["path"])
            elif request["do"] == "next":
                answer = queue.next(request["model"])
            else:
                answer = queue.overview(request["model"])
        except (UserError, OSError) as exc:
            answer = {"error": str(exc)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
