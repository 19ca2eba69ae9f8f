"""The API as a child process: its supervisor and its workers, started, watched and stopped as a whole."""

import json
import os
import sys
import time
from collections.abc import Sequence
from http import HTTPStatus

from gateway.errors import UserError
from gateway.plugins import hooks
from gateway.settings import Settings, variable
from gateway_local.children import Child, Waited, get, wait_ready
from gateway_local.hosts import reachable

SERVE = (sys.executable, "-m", "gateway_cli", "serve")
START_TIMEOUT_SECONDS = 120.0
ANSWER_TIMEOUT_SECONDS = 5.0
LIVENESS_TIMEOUT_SECONDS = 2.0
HANG_SECONDS = 60.0
"""An API that has not answered for this long is restarted. A restart ends requests, and a busy machine is slow."""
EXIT_SECONDS = 5.0
"""Time for the process to end after its last request."""


class ApiFailed(UserError):
    """The API ended while it started, or was not ready in time; the message has the reason."""


class ApiProcess(Child):
    """`gateway serve`; its workers die with it (`gateway.server.workers`). `load_models` replaces that setting."""

    name = "the API"

    def __init__(
        self,
        settings: Settings,
        triton_url: str,
        *,
        load_models: str = "",
        command: Sequence[str] = SERVE,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        super().__init__()
        # Time for load balancers to notice, then time for requests.
        self.grace_seconds = settings.shutdown_delay_seconds + settings.shutdown_grace_seconds + EXIT_SECONDS
        self._settings = settings
        self._environment = {
            **os.environ,
            variable("triton_url"): triton_url,
            variable("port"): str(settings.port),
            **{variable(port.setting): str(port.number) for port in hooks(settings).ports(settings)},
            variable("model"): settings.model,
            variable("load_models"): load_models or ",".join(settings.load_models),
        }
        self._command = command
        self._hang_seconds = hang_seconds
        self._answered_at = time.monotonic()

    def start(self) -> None:
        """See Child."""
        self._run(self._command, self._environment)
        self._answered_at = time.monotonic()

    def ready(self) -> bool:
        """Whether the API is alive. Its readiness also depends on Triton, which has its own supervisor."""
        return self._get("/health/live")[0]

    def answers(self) -> bool:
        """Whether the API has answered within `hang_seconds`, with any status; waits for two seconds at most.

        The API's own supervisor ends workers that hang; this check is for the API as a whole.
        """
        answered, _ = self._get("/health/live", LIVENESS_TIMEOUT_SECONDS, any_status=True)
        if answered:
            self._answered_at = time.monotonic()
        return time.monotonic() - self._answered_at < self._hang_seconds

    def readiness(self) -> tuple[bool, str]:
        """Whether images are classified, and the reason if they are not; waits for two seconds at most."""
        host, port = reachable(self._settings.host), self._settings.port
        try:
            status, body = get(host, port, "/health/ready", timeout_seconds=LIVENESS_TIMEOUT_SECONDS)
        except OSError:
            return False, f"the API does not answer on port {port}"
        return status == HTTPStatus.OK, _reason(body, self._settings.model)

    def wait_ready(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Wait until images are classified; raises ApiFailed if the API ends before, or is not ready in time."""
        match wait_ready(lambda: self._get("/health/ready")[0], lambda: self.alive, timeout_seconds):
            case Waited.ENDED:
                raise ApiFailed(f"the API ended with code {self.poll()} while it started; its log above says why")
            case Waited.LATE:
                _, reason = self._get("/health/ready")
                raise ApiFailed(f"the API was not ready after {timeout_seconds:g} s; {reason}")

    def _get(
        self, path: str, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS, *, any_status: bool = False
    ) -> tuple[bool, str]:
        """Whether the status is 200 (or, with `any_status`, whether there is a response), and the reason if not."""
        host, port = reachable(self._settings.host), self._settings.port
        try:
            status, body = get(host, port, path, timeout_seconds=timeout_seconds)
        except OSError as exc:
            return False, f"it does not answer on port {port}: {exc}"
        return any_status or status == HTTPStatus.OK, f"it reports: {_detail(body)}"


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
