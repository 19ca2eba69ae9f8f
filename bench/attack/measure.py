"""Measures the costs of an attack: processor time, memory, event loop pauses, lost processes, others' responses."""

import http.client
import json
import resource
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace

import psutil

from bench.attack.registry import FAMILIES
from bench.attack.service import Running, events
from bench.attack.target import MULTIPART, Attack, PromiseBroken, Target, Traffic
from bench.http_load import form
from bench.measurement import Peak, percentile
from bench.photos import Photo, unlike_any
from bench.remote import Remote

SAMPLE_SECONDS = 0.05
HELD = ("gateway_in_flight_bytes", "gateway_waiting_bytes", "gateway_decoding_bytes", "gateway_answer_bytes")
AT_WORK = ("gateway_images_in_flight", "gateway_images_waiting", "gateway_decoding_bytes", "gateway_streams")
PAUSE = "gateway_event_loop_pause_seconds"
SETTLE_SECONDS, IDLE_SECONDS = 0.5, 120.0
RECOVERY_SECONDS = 180.0
RECOVERIES = tuple(f'gateway_healings_total{{outcome="{outcome}"}}' for outcome in ("healed", "failed", "in vain"))
AT_LEAST_SECONDS, MOST_TIMES = 2.0, 10
NEWCOMER_SECONDS = 0.3
"""Time between two new connections of a well-behaved client."""
GIVE_UP_SECONDS = 30.0
"""Time after which a new client that was not served gives up."""
WELL_BEHAVED = "well-behaved"
"""The request id of the well-behaved clients, which distinguishes their log events from the attacker's."""

CPU_TOLERANCE = 1.15
"""Tolerance for the allowed processor time: the well-behaved clients' share is measured only without an attack."""
MAX_MEMORY_BYTES = 100e6
MAX_PAUSE_SECONDS = 0.05
MAX_RATIO = 3.0
MAX_LIVE_SECONDS = 1.0
"""Limit for the time until /health/live responds on a new connection."""
MAX_SERVED_SECONDS = 2.0
"""Limit for the time until a new client, which retries when refused, has its response."""
LOG_BYTES_PER_REQUEST = 1_500
"""Bytes that a request may add to the log, beyond those of the attack itself."""
INTERNAL_STATUSES = {500, 501, 502, 504}
"""Statuses that no request's content may cause; 503 is a result of load."""
INTERNAL_CODES = {1011, 4500, 4502, 4504}
"""Close codes of streams that no client's input may cause."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The processor time that a service allows, by its own `GET /limits`."""

    request_seconds: float
    image_seconds: float
    byte_seconds: float
    slow_byte_seconds: float
    """For each byte of a format with a slow codec."""
    stream_seconds: float
    """For each second of a stream."""

    @classmethod
    def of(cls, running: Running) -> "Allowance":
        """Read the limits of a service."""
        limits = {limit["name"]: limit["value"] for limit in json.loads(running.get("/limits"))["limits"]}
        return cls(
            limits["request_cpu_seconds"],
            limits["request_cpu_seconds_per_image"],
            limits["request_cpu_seconds_per_megabyte"] / 1e6,
            limits["request_cpu_seconds_per_megabyte_of_slow_codecs"] / 1e6,
            limits["stream_cpu_seconds_per_second"],
        )

    def seconds(self, attack: Attack, sent: "Sent", duration_seconds: float) -> float:
        """The processor time that a sent attack may use for decoding in total."""
        count = sent.times * attack.requests
        if attack.per_second:
            return count * (self.request_seconds + self.stream_seconds * duration_seconds)
        slow = sent.slow_bytes * (self.slow_byte_seconds - self.byte_seconds)
        return count * self.request_seconds + sent.files * self.image_seconds + sent.nbytes * self.byte_seconds + slow


@dataclass
class Bystander:
    """A well-behaved client in a thread: one photograph after the other, each answer checked.

    No two of its files are equal, so that each is classified and none answered from Triton's cache.
    """

    running: Running
    photo: Photo
    latencies_seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    label: str = ""
    """The label of the last response."""

    def wait(self, seconds: float) -> None:
        """Run the client for a while."""
        self._stop.wait(seconds)

    def __enter__(self) -> "Bystander":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        connection = self.running.connect()
        while not self._stop.is_set():
            started = time.perf_counter()
            try:
                fault = self._fault(*_classify(connection, self.running, self.photo))
            except (OSError, http.client.HTTPException) as exc:
                connection.close()
                fault = type(exc).__name__
            self.latencies_seconds.append(time.perf_counter() - started)
            if fault:
                self.faults[fault] += 1
            self._stop.wait(0.005)

    def _fault(self, status: int, body: bytes) -> str:
        if status != http.HTTPStatus.OK:
            return f"status {status}"
        self.label = json.loads(body)["results"][0]["predictions"][0]["label"]
        return "" if self.photo.label in ("", self.label) else f"answer {self.label!r}"


@dataclass
class Newcomer:
    """Well-behaved clients that connect anew each time: one requests /health/live, one classifies a photograph."""

    running: Running
    photo: Photo
    live_seconds: float = 0.0
    """The longest time until /health/live answered."""
    served_seconds: float = 0.0
    """The longest time until a client had its answer, refusals included."""
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
            with (
                closing(self.running.connect(GIVE_UP_SECONDS)) as connection,
                suppress(OSError, http.client.HTTPException),
            ):
                waits = True
                status, _ = _classify(connection, self.running, self.photo)
                waits = status != http.HTTPStatus.OK
                self.images += not waits
            self.served_seconds = max(self.served_seconds, time.perf_counter() - started)


def _classify(connection: http.client.HTTPConnection, running: Running, photo: Photo) -> tuple[int, bytes]:
    """Send a photograph that no cache has seen; status and body of the answer."""
    body = b"".join(form([unlike_any(photo.data)], photo.name))
    headers = {
        "Content-Type": MULTIPART,
        "X-Request-ID": WELL_BEHAVED,
        **({"X-API-Key": running.key} if running.key else {}),
    }
    connection.request("POST", "/predict?top_k=1", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


@dataclass(frozen=True, slots=True)
class Cost:
    """What one attack cost.

    `cpu_seconds` are those of one request, or of one second where the attack is counted so; memory is beyond what
    admission counted; `p99_ratio` is against the time before it; `log_bytes` are beyond the attacker's own traffic.
    """

    attack: Attack
    answer: str
    seconds: float
    cpu_seconds: float
    allowed_seconds: float
    """The processor time that the service allows, and what classifying takes for as many images as it classified."""
    memory_bytes: float
    pause_seconds: float
    p99_ratio: float
    live_seconds: float
    served_seconds: float
    log_bytes: float
    faults: dict[str, int]

    @property
    def misses(self) -> list[str]:
        """The limits that it exceeds."""
        return [
            name
            for name, missed in (
                ("CPU", self.cpu_seconds > CPU_TOLERANCE * self.allowed_seconds),
                ("memory", self.memory_bytes > MAX_MEMORY_BYTES),
                ("pause", self.pause_seconds > MAX_PAUSE_SECONDS),
                ("p99", self.p99_ratio > MAX_RATIO),
                ("live", self.live_seconds > MAX_LIVE_SECONDS),
                ("served", self.served_seconds > MAX_SERVED_SECONDS),
                ("log", self.log_bytes > LOG_BYTES_PER_REQUEST * self.attack.requests),
                *((fault, True) for fault in self.faults),
            )
            if missed
        ]


@dataclass(frozen=True, slots=True)
class Sent:
    """The last answer to an attack, how often it was sent, the broken promise if any, and its traffic."""

    answer: str
    times: int
    broken: str
    nbytes: int
    files: int
    slow_bytes: int


class Sender:
    """Sends attacks from a process of its own, which may open more files than usual."""

    def __init__(self, target: Target) -> None:
        self._target = target
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def send(self, family: str, name: str) -> Sent:
        """Send an attack repeatedly for AT_LEAST_SECONDS, at most MOST_TIMES."""
        attack = next(attack for attack in FAMILIES[family] if attack.name == name)
        target = replace(self._target, folded=attack.folded, traffic=Traffic())
        ends, times, broken = time.perf_counter() + AT_LEAST_SECONDS, 0, ""
        while True:
            times += 1
            try:
                answer = attack.send(target)
            except PromiseBroken as exc:
                answer = broken = str(exc)
            except OSError as exc:
                answer = type(exc).__name__
            if time.perf_counter() > ends or times == MOST_TIMES:
                traffic = target.traffic
                return Sent(answer, times, broken, traffic.nbytes, traffic.files, traffic.slow_bytes)


def measure(running: Running, sender: Remote, family: str, attack: Attack, photo: Photo, calm_seconds: float) -> Cost:
    """Send an attack from a Sender beside well-behaved clients, after a calm time in which those are alone."""
    before = cpu_seconds(running)
    with Bystander(running, photo) as calm, Newcomer(running, photo) as calm_newcomer:
        calm.wait(calm_seconds)
    calm_rate = (cpu_seconds(running) - before) / max(1, len(calm.latencies_seconds) + calm_newcomer.images)
    allowance, classified = Allowance.of(running), running.classified()
    protected, recoveries, offset = running.protected(), running.metric(*RECOVERIES), running.log_size()
    pause_before = running.metric(PAUSE)
    before, began = cpu_seconds(running), time.perf_counter()
    with ExitStack() as stack:
        memory = stack.enter_context(Peak(lambda: _memory(running), SAMPLE_SECONDS))
        counted = stack.enter_context(Peak(lambda: _counted(running), 5 * SAMPLE_SECONDS))
        beside = stack.enter_context(Bystander(running, photo))
        newcomer = stack.enter_context(Newcomer(running, photo))
        sent: Sent = sender.call("send", family, attack.name)
        seconds = (time.perf_counter() - began) / sent.times
        beside.wait(SETTLE_SECONDS)
    _wait_idle(running)
    images = len(beside.latencies_seconds) + newcomer.images
    used = cpu_seconds(running) - before - calm_rate * images
    duration_seconds = time.perf_counter() - began
    allowed = allowance.seconds(attack, sent, duration_seconds)
    allowed += calm_rate * max(0, running.classified() - classified - images)
    share = duration_seconds if attack.per_second else sent.times * attack.requests
    faults, killed = _lost(running, attack, protected, recoveries)
    lines = [line for line in running.log_lines(offset) if WELL_BEHAVED.encode() not in line]
    faults += beside.faults + newcomer.faults + _logged_faults(lines) + Counter({"promise": 1} if sent.broken else {})
    return Cost(
        attack,
        f"{sent.answer}; {killed} processes killed" if attack.may_kill else sent.answer,
        seconds,
        max(0.0, used) / share,
        allowed / share,
        max(0.0, memory.growth - counted.most),
        _pause(running, events(lines), pause_before),
        percentile(beside.latencies_seconds, 99) / percentile(calm.latencies_seconds, 99),
        newcomer.live_seconds,
        newcomer.served_seconds,
        max(0, sum(len(line) + 1 for line in lines) - sent.nbytes) / sent.times,
        dict(faults),
    )


def _lost(running: Running, attack: Attack, protected: dict[int, str], recoveries: float) -> tuple[Counter[str], int]:
    """The processes that an attack ended although it may not, and how many models were reloaded since."""
    if attack.may_kill:
        _wait_recovered(running)
    killed = int(running.metric(*RECOVERIES) - recoveries)
    # A reloaded model has new processes; its recovery is counted instead.
    kinds = {"the API", "Triton"} if killed else set(protected.values())
    now = running.protected()
    lost = Counter(f"killed {name}" for pid, name in protected.items() if name in kinds and pid not in now)
    if killed > attack.may_kill:
        lost[f"killed {killed} models"] = 1
    return lost, killed


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


def _wait_recovered(running: Running) -> None:
    """Wait until every Triton answers again, and all reloads have been counted."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while time.monotonic() < deadline and not running.all_ready():
        time.sleep(0.5)


def _pause(running: Running, logged: list[dict[str, object]], before: float) -> float:
    """The longest pause since then by the event loop's own work, without the time it waited for a processor."""
    pauses = [
        min(float(str(event["seconds"])), float(str(event["cpu_seconds"])))
        for event in logged
        if event["event"] == "loop_paused"
    ]
    now = running.metric(PAUSE)
    return max([*pauses, min(now, MAX_PAUSE_SECONDS) if now != before else 0.0])


def cpu_seconds(running: Running) -> float:
    """Processor time of all processes of a service, including those that have ended."""
    total = 0.0
    for process in running.service.tree():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _memory(running: Running) -> float:
    total = 0
    for process in running.service.tree():
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def _counted(running: Running) -> float:
    """The bytes that admission counts; 0 while the service has no connection left."""
    with suppress(OSError, http.client.HTTPException):
        return running.metric(*HELD)
    return 0.0
