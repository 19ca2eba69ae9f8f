"""One way to measure: what an attack costs the service, and the well-behaved clients beside it."""

import http.client
import json
import resource
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace

import psutil

from bench.attack.beside import CLIENTS, GIVE_UP_SECONDS, WELL_BEHAVED, Client, Failed
from bench.attack.families import FAMILIES
from bench.attack.service import Running, events
from bench.attack.target import Case, PromiseBroken, Target, Traffic
from bench.measurement import Peak, busy_seconds, percentile
from bench.remote import Remote

SAMPLE_SECONDS = 0.05
HELD = ("gateway_in_flight_bytes", "gateway_waiting_bytes", "gateway_decoding_bytes", "gateway_answer_bytes")
AT_WORK = ("gateway_images_in_flight", "gateway_images_waiting", "gateway_decoding_bytes", "gateway_streams")
SETTLE_SECONDS, IDLE_SECONDS = 0.5, 120.0
AT_LEAST_SECONDS, MOST_TIMES = 2.0, 10
NEWCOMER_SECONDS = 0.3
"""Time between two new connections of a well-behaved client."""

CPU_TOLERANCE = 1.15
"""Tolerance for the allowed processor time: the well-behaved clients' share is measured only without an attack."""
LOG_BYTES_PER_REQUEST = 1_500
"""Bytes that a request may add to the log, beyond those of the attack itself."""
LIMITS = {"memory": 100e6, "pause": 0.05, "p99": 3.0, "live": 1.0, "served": 2.0}
"""The limits of every case.

memory: bytes beyond those that admission counts. pause: seconds of the event loop. p99: of another client, in relation
to that alone. live: seconds until /health/live answers on a new connection. served: seconds until a new client has its
answer, or as many times what it takes alone as for p99; it tries again when refused.
"""
INTERNAL_STATUSES = {500, 501, 502, 504}
"""Statuses that no request's content may cause; 503 is a result of load."""
INTERNAL_CODES = {1011, 4500, 4502, 4504}
"""Close codes of streams that no client's input may cause."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What the last answer to an attack was, and what the attack cost. Processor time is that of the whole attack."""

    case: Case
    answer: str
    cpu_seconds: float
    allowed_seconds: float
    """The processor time that the service allows by its `GET /limits`, and that of the images that it classified."""
    figures: dict[str, float]
    """The figures of LIMITS, both times of p99, and the cores that other programs on the machine kept busy."""
    faults: dict[str, int]

    @property
    def misses(self) -> list[str]:
        """The limits that it exceeds."""
        cpu = ["CPU"] if self.cpu_seconds > CPU_TOLERANCE * self.allowed_seconds else []
        limits = {**LIMITS, "served": max(LIMITS["served"], LIMITS["p99"] * self.figures["alone"])}
        return cpu + [name for name, limit in limits.items() if self.figures[name] > limit] + list(self.faults)


HEADER = ["attack", "answer", "CPU s (allowed)", "memory, MB", "pause, ms", "p99 beside / alone, ms", "live, s"]
HEADER += ["new client, s", "others, cores", "misses"]


def cells(cost: Cost) -> list[str]:
    """A row of the table."""
    figures = cost.figures
    return [
        cost.case.what,
        cost.answer,
        f"{cost.cpu_seconds:.1f} ({cost.allowed_seconds:.1f})",
        f"{figures['memory'] / 1e6:.0f}",
        f"{figures['pause'] * 1e3:.0f}" if figures["pause"] else "< 50",
        f"{figures['beside'] * 1e3:.0f} / {figures['alone'] * 1e3:.0f}",
        f"{figures['live']:.1f}",
        f"{figures['served']:.1f}",
        f"{figures['others']:.1f}",
        ", ".join(cost.misses) or "–",
    ]


@dataclass
class Bystander:
    """A well-behaved client in a thread: one request after the other on a kept connection, each answer checked.

    No two of its images are equal, so that each is classified and none answered from Triton's cache.
    """

    running: Running
    kind: str
    label: str = ""
    """The label of the last answer; if it is given, of every one."""
    latencies_seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def wait(self, seconds: float) -> None:
        """Let the client run for a while, and until it has its first answer."""
        self._stop.wait(seconds)
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while not self.latencies_seconds and time.monotonic() < deadline:
            self._stop.wait(0.1)

    def __enter__(self) -> "Bystander":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * GIVE_UP_SECONDS)

    def _run(self) -> None:
        client = CLIENTS[self.kind](self.running)
        while not self._stop.wait(0.005):
            started = time.perf_counter()
            try:
                label = client.ask()
            except (OSError, Failed) as exc:
                client.close()
                client = CLIENTS[self.kind](self.running)
                self.faults[str(exc) if isinstance(exc, Failed) else type(exc).__name__] += 1
            else:
                if self.label and label != self.label:
                    self.faults[f"answer {label!r}"] += 1
                self.label = self.label or label
            self.latencies_seconds.append(time.perf_counter() - started)
        client.close()


@dataclass
class Newcomer:
    """Well-behaved clients that connect anew each time: one requests /health/live, one does as the bystander."""

    running: Running
    kind: str
    live_seconds: float = 0.0
    served_seconds: float = 0.0
    images: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> "Newcomer":
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._ask_health, self._classify)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(GIVE_UP_SECONDS)

    def _ask_health(self) -> None:
        while not self._stop.wait(NEWCOMER_SECONDS):
            started = time.perf_counter()
            with closing(self.running.connect(GIVE_UP_SECONDS)) as connection:
                try:
                    connection.request("GET", "/health/live")
                    status = connection.getresponse().status
                    if status != http.HTTPStatus.OK:
                        self.faults[f"live {status}"] += 1
                except (OSError, http.client.HTTPException) as exc:
                    self.faults[f"live {type(exc).__name__}"] += 1
            self.live_seconds = max(self.live_seconds, time.perf_counter() - started)

    def _classify(self) -> None:
        started, waits = time.perf_counter(), False
        while not self._stop.wait(NEWCOMER_SECONDS / 3 if waits else NEWCOMER_SECONDS):
            started = started if waits else time.perf_counter()
            waits = True
            client: Client = CLIENTS[self.kind](self.running)
            with closing(client), suppress(OSError, Failed):
                client.ask()
                waits = False
                self.images += 1
            self.served_seconds = max(self.served_seconds, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class Sent:
    """The last answer to an attack, the broken promise if any, and its traffic."""

    answer: str
    times: int
    broken: str
    traffic: Traffic


class Sender:
    """Sends attacks from a process of its own, which may open more files than usual."""

    def __init__(self, target: Target) -> None:
        self._target = target
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def send(self, name: str) -> Sent:
        """Send an attack repeatedly for AT_LEAST_SECONDS, at most MOST_TIMES."""
        case = next(case for cases in FAMILIES.values() for case in cases if case.name == name)
        target = replace(self._target, folded=case.folded, traffic=Traffic())
        ends, times, broken = time.perf_counter() + AT_LEAST_SECONDS, 0, ""
        while True:
            times += 1
            try:
                answer = case.send(target)
            except PromiseBroken as exc:
                answer = broken = str(exc)
            except OSError as exc:
                answer = type(exc).__name__
            if time.perf_counter() > ends or times == MOST_TIMES:
                return Sent(answer, times, broken, target.traffic)


def measure(running: Running, sender: Remote, case: Case, label: str, alone_seconds: float) -> Cost:
    """Send an attack beside well-behaved clients, after a time in which those are alone."""
    before = running.cpu_seconds()
    with Bystander(running, case.beside, label) as alone, Newcomer(running, case.beside) as alone_newcomer:
        alone.wait(alone_seconds)
    calm_rate = (running.cpu_seconds() - before) / max(1, len(alone.latencies_seconds) + alone_newcomer.images)
    classified, protected, offset = running.classified(), running.protected(), running.log_size()
    before, began = running.cpu_seconds(), time.perf_counter()
    others_before = _others_seconds(running, sender)
    with ExitStack() as stack:
        memory = stack.enter_context(Peak(running.resident_bytes, SAMPLE_SECONDS))
        counted = stack.enter_context(Peak(lambda: _counted(running), 5 * SAMPLE_SECONDS))
        beside = stack.enter_context(Bystander(running, case.beside, label))
        newcomer = stack.enter_context(Newcomer(running, case.beside))
        sent: Sent = sender.call("send", case.name)
        beside.wait(SETTLE_SECONDS)
    others = (_others_seconds(running, sender) - others_before) / (time.perf_counter() - began)
    _wait_idle(running)
    images = len(beside.latencies_seconds) + newcomer.images
    cpu_seconds = running.cpu_seconds() - before - calm_rate * images
    allowed_seconds = _allowed(running, sent.traffic, time.perf_counter() - began)
    allowed_seconds += calm_rate * max(0, running.classified() - classified - images)
    now = running.protected()
    lines = [line for line in running.log_lines(offset) if WELL_BEHAVED.encode() not in line]
    faults = beside.faults + newcomer.faults + alone.faults + _logged_faults(lines)
    faults += Counter(f"killed {name}" for pid, name in protected.items() if pid not in now)
    faults["promise"] += bool(sent.broken)
    log_bytes = sum(len(line) + 1 for line in lines) - sent.traffic.nbytes
    faults["log"] += log_bytes > LOG_BYTES_PER_REQUEST * max(1, sent.traffic.requests)
    p99s = [percentile(client.latencies_seconds, 99) for client in (beside, alone)]
    figures = {
        "memory": max(0.0, memory.growth - counted.most),
        "pause": _pause(events(lines)),
        "p99": p99s[0] / p99s[1],
        "beside": p99s[0],
        "alone": p99s[1],
        "live": newcomer.live_seconds,
        "served": newcomer.served_seconds,
        "others": max(0.0, others),
    }
    return Cost(case, sent.answer, max(0.0, cpu_seconds), allowed_seconds, figures, dict(+faults))


def _allowed(running: Running, sent: Traffic, duration_seconds: float) -> float:
    """The processor time that the service allows for what was sent, by its own `GET /limits`."""
    limits = {limit["name"]: limit["value"] for limit in json.loads(running.get("/limits"))["limits"]}
    byte_seconds = limits["request_cpu_seconds_per_megabyte"] / 1e6
    slow_byte_seconds = limits["request_cpu_seconds_per_megabyte_of_slow_codecs"] / 1e6
    return float(
        max(sent.requests, sent.connections) * limits["request_cpu_seconds"]
        + sent.files * limits["request_cpu_seconds_per_image"]
        + sent.nbytes * byte_seconds
        + sent.slow_bytes * (slow_byte_seconds - byte_seconds)
        + sent.streams * duration_seconds * limits["stream_cpu_seconds_per_second"]
    )


def _others_seconds(running: Running, sender: Remote) -> float:
    """Processor time of everything on the machine but the service, the attacker and this process."""
    sending = sum(psutil.Process(sender.pid).cpu_times()[:2])
    return float(busy_seconds() - running.cpu_seconds() - sending - time.process_time())


def _logged_faults(lines: list[bytes]) -> Counter[str]:
    """Log events that no client's input may cause."""
    faults: Counter[str] = Counter()
    faults["traceback"] = sum(b"Traceback (most recent call last)" in line for line in lines)
    for event in events(lines):
        status, code = event.get("status"), event.get("close_code")
        faults["unexpected_error"] += event["event"] == "unexpected_error"
        faults[f"status {status}"] += status in INTERNAL_STATUSES
        faults[f"close code {code}"] += code in INTERNAL_CODES
    return +faults


def _wait_idle(running: Running) -> None:
    """Wait until all work of the attack has ended, so that its costs are not added to the next attack's."""
    deadline = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < deadline and running.metric(*AT_WORK):
        time.sleep(0.2)


def _pause(logged: list[dict[str, object]]) -> float:
    """The longest logged pause by the event loop's own work, without the time it waited for a processor."""
    pauses = (
        min(float(str(event["seconds"])), float(str(event["cpu_seconds"])))
        for event in logged
        if event["event"] == "loop_paused"
    )
    return max(pauses, default=0.0)


def _counted(running: Running) -> float:
    """The bytes that admission counts; 0 while the service has no connection left."""
    with suppress(OSError, http.client.HTTPException):
        return running.metric(*HELD)
    return 0.0
