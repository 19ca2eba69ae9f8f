"""The API as workers of this process: started, watched, reloaded and stopped as a whole."""

import json
import socket
from collections.abc import Callable
from http import HTTPStatus

from gateway.errors import UserError
from gateway.server.workers import Plan, Process, Reloads, Workers
from gateway_local.children import Waited, get, wait_ready
from gateway_local.hosts import reachable

Say = Callable[[str], None]

START_TIMEOUT_SECONDS = 120.0
ANSWER_TIMEOUT_SECONDS = 5.0
READY_TIMEOUT_SECONDS = 2.0


class ApiFailed(UserError):
    """The API ended while it started, was not ready in time, or keeps ending; the message has the reason."""


class ApiProcess:
    """The workers of the API on a socket, which die with this process; `model` is the one that must be ready."""

    name = "the API"

    def __init__(self, listener: socket.socket, model: str, *, say: Say = print) -> None:
        self._workers = Workers(listener, lambda _, text, __: say(text))
        self._model = model
        host, self.port, *_ = listener.getsockname()
        self._host = reachable(host)

    def start(self, plan: Plan, *started: Process) -> None:
        """Start the workers of a plan, of which some processes may have `started`, without waiting for them."""
        self._workers.start(plan, started)

    def reloads(self, replan: Callable[[], Plan], done: Callable[[str | None], None]) -> Reloads:
        """Reloads of these workers."""
        return Reloads(self._workers, replan, done)

    @property
    def pids(self) -> list[int]:
        """The processes that serve."""
        return self._workers.pids

    @property
    def alive(self) -> bool:
        """Whether the workers run, or will be replaced."""
        return self._workers.failure is None

    def check(self) -> None:
        """Replace workers that died or hang; raises ApiFailed if they keep dying. Call this periodically."""
        self._workers.check()
        if not self.alive:
            raise ApiFailed(f"the API ended with code {self._workers.failure} several times; its log may say why")

    def readiness(self) -> tuple[bool, str]:
        """Whether images are classified, and the reason if they are not; waits for at most two seconds."""
        if self._workers.reloading:
            return True, ""  # a wait for an answer would delay the hand-over
        try:
            status, body = get(self._host, self.port, "/health/ready", timeout_seconds=READY_TIMEOUT_SECONDS)
        except OSError:
            return False, f"the API does not answer on port {self.port}"
        return status == HTTPStatus.OK, _reason(body, self._model)

    def wait_ready(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Wait until images are classified; raises ApiFailed if the API ends before, or is not ready in time."""
        workers = self._workers

        def alive() -> bool:
            workers.check()
            return workers.failure is None

        match wait_ready(lambda: workers.ready, alive, timeout_seconds):
            case Waited.ENDED:
                raise ApiFailed(f"the API ended with code {workers.failure} while it started; its log above says why")
            case Waited.LATE:
                raise ApiFailed(f"the API was not ready after {timeout_seconds:g} s; {self._late()}")

    def stop(self, grace_seconds: float | None = None) -> None:
        """Stop in order; kills what still runs after the grace period, by default the settings'."""
        self._workers.stop(grace_seconds)

    def kill(self) -> None:
        """Kill all workers, also while `stop` waits; for signal handlers."""
        self._workers.kill()

    def _late(self) -> str:
        try:
            _, body = get(self._host, self.port, "/health/ready", timeout_seconds=ANSWER_TIMEOUT_SECONDS)
        except OSError as exc:
            return f"it does not answer on port {self.port}: {exc}"
        return f"it reports: {_detail(body)}"


def _reason(body: bytes, model: str) -> str:
    """The reason that GET /health/ready gives, in one line."""
    try:
        endpoints = json.loads(body)["endpoints"]
    except (ValueError, KeyError, TypeError):
        endpoints = []
    reasons = [
        f"{each['name']}: {each['reason'].strip().partition(chr(10))[0]}"
        for endpoint in endpoints
        for each in endpoint["models_not_ready"]
    ]
    errors = [endpoint["error"]["message"] for endpoint in endpoints if endpoint["error"]]
    return "; ".join(dict.fromkeys(reasons or errors)) or f"{model} does not answer; GET /health/ready shows why"


def _detail(body: bytes) -> str:
    try:
        document = json.loads(body)
        return str(document.get("detail") or document)
    except (ValueError, AttributeError):
        return body.decode(errors="replace").strip()[:500]
