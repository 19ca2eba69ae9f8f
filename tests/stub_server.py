"""`python -m tests.stub_server`: the served gateway in front of a backend that answers at once.

The backend's model has 21,000 classes. All time that a request takes is the gateway's own.
"""

import signal

import numpy as np
from numpy.typing import NDArray

from gateway.app import create_app
from gateway.environment import load_settings
from gateway.inference.backend import Call, InferResult, Row
from gateway.inference.prediction import Prediction
from gateway.inference.sequence import SequenceScores
from gateway.logs import configure_logs
from gateway.machine.allocator import keep_freed_memory
from gateway.server.serve import run
from gateway.time_slices import freeze_garbage
from tests.gateway.api.stub import StubBackend

CLASSES = 21_000
LABELS = tuple(f"class {number}, kind {number * 7_919 % CLASSES}" for number in range(CLASSES))
PROGRAM = "from tests.stub_server import main; main()"


class LastScores:
    """A sequence whose scores are those of its last frame."""

    def __init__(self) -> None:
        self._frames = 0

    async def add(self, scores: NDArray[np.float32], *_: object) -> SequenceScores:
        self._frames += 1
        return SequenceScores(scores, self._frames)

    async def close(self) -> None:
        pass


class WideBackend(StubBackend):
    """Returns the same scores for every image: all classes, in falling order."""

    def __init__(self) -> None:
        super().__init__()
        self._scores = np.linspace(1, 0, CLASSES, dtype=np.float32)
        self._predictions = [
            Prediction(label, number, float(self._scores[number])) for number, label in enumerate(LABELS)
        ]

    async def labels(self, model_name: str, model_version: str) -> tuple[str, ...]:
        return LABELS

    async def sequence(self, model_name: str, model_version: str) -> LastScores:
        return LastScores()

    async def infer(self, call: Call) -> InferResult:
        if call.selection is None:
            row = Row(decoded=True, scores=self._scores)
        else:
            known = self._predictions[: call.selection.class_count(multi_label=False)]
            row = Row(decoded=True, predictions=call.selection.apply(known, multi_label=False))
        return InferResult(call.model_name, call.model_version or "1", (row,) * len(call.batch))


def main() -> None:
    keep_freed_memory()
    settings = load_settings()
    configure_logs(settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # as gateway.server.serve
    app = create_app(settings, WideBackend())
    freeze_garbage()
    run(app, settings)


if __name__ == "__main__":
    main()
