"""`python -m tests.doubles.program`: the served gateway in front of a backend that answers at once.

The backend's model has 21,000 classes. All time that a request takes is the gateway's own.
"""

import signal
from collections import deque

import numpy as np

from gateway.app import create_app, prepare
from gateway.environment import load_settings
from gateway.logs import configure_logs
from gateway.server.allocator import keep_freed_memory
from gateway.server.server import run
from gateway.timing import freeze_garbage
from tests.doubles.backend import StubBackend, ranked

CLASSES = 21_000
LABELS = tuple(f"class {number}, kind {number * 7_919 % CLASSES}" for number in range(CLASSES))
PROGRAM = "from tests.doubles.program import main; main()"


def backend() -> StubBackend:
    """Returns the same scores for every image, of all classes. A sequence has the scores of its last frame."""
    found = StubBackend(
        ranked(LABELS, np.linspace(1, 0, CLASSES, dtype=np.float32)), labels=LABELS, combine=lambda frames: frames[-1]
    )
    found.calls = deque(maxlen=1)  # tests measure the memory
    return found


def main() -> None:
    keep_freed_memory()
    settings = load_settings()
    configure_logs(settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # as gateway.worker
    app = create_app(settings, backend())
    prepare(app)
    freeze_garbage()
    run(app, settings)


if __name__ == "__main__":
    main()
