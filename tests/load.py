"""Load on a running gateway."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from tests.photos import photo, unlike_any


@dataclass
class Load:
    """Clients that send one new image after another, each on its own connection, without retries."""

    url: str
    clients: int = 8
    model: str = ""
    """Another than the default one."""
    pause_seconds: float = 0.03
    """After each answer: a load that takes both cores would delay the awaited event."""
    headers: dict[str, str] = field(default_factory=dict)
    keeps_connections: bool = True
    """Whether a client uses its connection again after an answer."""
    outcome_of: Callable[[int, bytes], Any] = lambda status, _: status
    answers: list[tuple[float, float, Any]] = field(default_factory=list)
    """When each request was sent and answered (time.monotonic), and its outcome or connection error."""

    def __enter__(self) -> "Load":
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(150)
            assert not thread.is_alive(), "a request hangs"

    def _run(self) -> None:
        address = urlsplit(self.url)
        assert address.hostname
        connection = HTTPConnection(address.hostname, address.port, timeout=120)
        path = f"/predict?model={self.model}" if self.model else "/predict"
        headers = {"Content-Type": "image/jpeg", **self.headers}
        while not self._stop.is_set():
            sent_at, pause_seconds = time.monotonic(), 0.1
            try:
                connection.request("POST", path, unlike_any(photo("cat")), headers)
                answer = connection.getresponse()
                outcome = self.outcome_of(answer.status, answer.read())
                pause_seconds = self.pause_seconds if answer.status == 200 else pause_seconds
            except (OSError, HTTPException) as exc:
                outcome = type(exc).__name__
                connection.close()
            self.answers.append((sent_at, time.monotonic(), outcome))
            if not self.keeps_connections:
                connection.close()
            self._stop.wait(pause_seconds)
        connection.close()

    def outcomes(self, since: float = 0.0) -> Counter[Any]:
        """The outcomes of answered requests that were sent at `since` or later."""
        return Counter(outcome for sent_at, _, outcome in list(self.answers) if sent_at >= since)
