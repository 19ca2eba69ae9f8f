"""Reload and stop of `gateway serve` under clients that try nothing again: no request is lost."""

import os
import signal
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException

import pytest

from tests.photos import photo, unlike_any
from tests.processes import Gateway, children, running_gateway, wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]

CLIENTS, PAUSE_SECONDS = 4, 0.1
"""Of each kind, and between two requests of each: 40 requests a second and more."""
WRONG = ("GATEWAY_DEFAULT_TOP_K=0", "GATEWAY_DEFAULT_TOPK=3", "GATEWAY_API_KEYS_FILE=/nowhere")


class RawClients:
    """Half of them keep their connections, the others open one for each request; none tries anything again."""

    def __init__(self, port: int) -> None:
        self.outcomes: list[tuple[float, str]] = []
        """When each request was sent, and its status or the name of the error."""
        self._port = port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number % 2,)) for number in range(2 * CLIENTS)]

    def __enter__(self) -> "RawClients":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join(60)

    def _run(self, keeps: int) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._over.is_set():
            sent_at = time.monotonic()
            try:
                connection.request("POST", "/predict", unlike_any(photo("cat")), {"Content-Type": "image/jpeg"})
                answer = connection.getresponse()
                answer.read()
                outcome = str(answer.status)
            except (OSError, HTTPException) as exc:
                outcome = type(exc).__name__
                connection.close()
            self.outcomes.append((sent_at, outcome))
            if not keeps:
                connection.close()
            self._over.wait(PAUSE_SECONDS)
        connection.close()

    def counted(self, since: float = 0.0) -> Counter[str]:
        return Counter(outcome for sent_at, outcome in list(self.outcomes) if sent_at >= since)


def workers(gateway: Gateway) -> set[int]:
    return {each.pid for each in children(gateway.process.pid, "gateway.worker")}


def top_k(gateway: Gateway) -> int:
    with gateway.client() as http:
        return len(http.post("/predict", files={"f": photo("cat")}).json()["results"][0]["predictions"])


def reloaded(gateway: Gateway, event: str, count: int = 1) -> None:
    gateway.process.send_signal(signal.SIGHUP)
    wait_for(lambda: sum(each["event"] == event for each in gateway.events()) == count, process=gateway.process)


def test_reload_takes_new_settings_and_loses_no_request(light_triton, tmp_path):
    variables = tmp_path / ".env"
    variables.write_text("GATEWAY_DEFAULT_TOP_K=2\n")
    with running_gateway(tmp_path / "log", supervised=True, directory=tmp_path, triton_url=light_triton.url) as gateway:
        first = workers(gateway)
        with RawClients(gateway.port) as clients:
            wait_for(lambda: clients.counted()["200"] > 20)
            for count, wrong in enumerate(
                ("GATEWAY_DEFAULT_TOP_K=0", "GATEWAY_DEFAULT_TOPK=3", "GATEWAY_API_KEYS_FILE=/nowhere"), 1
            ):
                variables.write_text(f"{wrong}\n")
                reloaded(gateway, "reload_failed", count)
                assert workers(gateway) == first
            for count, labels in enumerate((1, 3), 1):
                variables.write_text(f"GATEWAY_DEFAULT_TOP_K={labels}\n")
                reloaded(gateway, "reloaded", count)
                wait_for(lambda: top_k(gateway) == labels)  # noqa: B023  # it is called at once
            wait_for(lambda: len(workers(gateway)) == 1, timeout_seconds=30)
        assert not workers(gateway) & first
        assert set(clients.counted()) == {"200"}
        os.kill(min(workers(gateway)), signal.SIGKILL)
        wait_for(lambda: any(each["event"] == "worker_died" for each in gateway.events()))
        wait_for(lambda: top_k(gateway) == 3)


def test_stop_answers_what_was_accepted(light_triton, tmp_path):
    with running_gateway(tmp_path / "log", supervised=True, workers=2, triton_url=light_triton.url) as gateway:
        with RawClients(gateway.port) as clients:
            wait_for(lambda: clients.counted()["200"] > 40)
            gateway.process.terminate()
            gateway.process.wait(60)
        assert set(clients.counted()) <= {"200", "ConnectionRefusedError"}
