"""What an attack costs: processor time, memory, pauses of the event loop, lost processes, and others' answers."""

import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

from bench.attack.service import Running
from bench.attack.target import MULTIPART, Attack, Target, form
from bench.photos import Photo, unlike_any
from bench.remote import Remote
from bench.tally import percentile

SAMPLE_SECONDS = 0.05
HELD = ("gateway_in_flight_bytes", "gateway_waiting_bytes", "gateway_decoding_bytes", "gateway_answer_bytes")
SETTLE_SECONDS = 0.5
MEND_SECONDS = 180.0
HEALINGS = tuple(f'gateway_healings_total{{outcome="{outcome}"}}' for outcome in ("healed", "failed", "in vain"))
AT_LEAST_SECONDS, MOST_TIMES = 2.0, 10

MAX_CPU_SECONDS = 3.0
MAX_MEMORY_BYTES = 100e6
MAX_PAUSE_SECONDS = 0.05
MAX_RATIO = 3.0


@dataclass
class Bystander:
    """A well-behaved client in a thread: one photograph after the other, each answer checked.

    No two of its files are equal, so that each is classified and none answered from Triton's cache.
    """

    port: int
    photo: Photo
    latencies_seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    label: str = ""
    """What was last seen."""

    def wait(self, seconds: float) -> None:
        """Let it work for a while."""
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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self._stop.is_set():
            body = b"".join(form([unlike_any(self.photo.data)], self.photo.name))
            started = time.perf_counter()
            try:
                connection.request("POST", "/predict?top_k=1", body, {"Content-Type": MULTIPART})
                answer = connection.getresponse()
                fault = self._fault(answer.status, answer.read())
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


@dataclass(frozen=True, slots=True)
class Cost:
    """What one attack cost.

    `cpu_seconds` are those of one request; memory is beyond what admission counted; `p99_ratio` is against the time
    before it.
    """

    attack: Attack
    answer: str
    seconds: float
    cpu_seconds: float
    memory_bytes: float
    pause_seconds: float
    p99_ratio: float
    faults: dict[str, int]

    @property
    def misses(self) -> list[str]:
        """The bars that it misses."""
        return [
            name
            for name, missed in (
                ("CPU", self.cpu_seconds > MAX_CPU_SECONDS),
                ("memory", self.memory_bytes > MAX_MEMORY_BYTES),
                ("pause", self.pause_seconds > MAX_PAUSE_SECONDS),
                ("p99", self.p99_ratio > MAX_RATIO),
                *((fault, True) for fault in self.faults),
            )
            if missed
        ]


class Sender:
    """Sends attacks from a process of its own."""

    def __init__(self, port: int) -> None:
        self._target = Target("127.0.0.1", port)

    def send(self, attack: Attack) -> tuple[str, int]:
        """Send one for AT_LEAST_SECONDS, again and again; says how it was answered last, and how often it was sent."""
        ends, count = time.perf_counter() + AT_LEAST_SECONDS, 0
        while True:
            count += 1
            try:
                answer = attack.send(self._target)
            except OSError as exc:
                answer = type(exc).__name__
            if time.perf_counter() > ends or count == MOST_TIMES:
                return answer, count


class Watch:
    """The most memory that a service has beyond what admission counts, while the context is open; bytes."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.before = self.most = _memory(running)
        self.held = 0.0

    def __enter__(self) -> "Watch":
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def beyond(self) -> float:
        """The growth beyond what was counted."""
        return max(0.0, self.most - self.before - self.held)

    def _run(self) -> None:
        number = 0
        while not self._done.wait(SAMPLE_SECONDS):
            self.most = max(self.most, _memory(self._running))
            number += 1
            if number % 5 == 0:
                try:
                    self.held = max(self.held, self._running.gauge(*HELD))
                except (OSError, http.client.HTTPException):
                    continue


def measure(running: Running, sender: Remote, attack: Attack, photo: Photo, calm_seconds: float) -> Cost:
    """Send an attack from a Sender beside a well-behaved client, after a calm time in which that client is alone."""
    before = cpu_seconds(running)
    with Bystander(running.port, photo) as calm:
        calm.wait(calm_seconds)
    calm_rate = (cpu_seconds(running) - before) / max(1, len(calm.latencies_seconds))
    servants, healings, offset = running.servants(), running.gauge(*HEALINGS), running.log.stat().st_size
    pause_before = running.gauge("gateway_event_loop_pause_seconds")
    before, began = cpu_seconds(running), time.perf_counter()
    with Watch(running) as watch, Bystander(running.port, photo) as beside:
        answer, times = sender.call("send", attack)
        seconds = (time.perf_counter() - began) / times
        beside.wait(SETTLE_SECONDS)
    used = cpu_seconds(running) - before - calm_rate * len(beside.latencies_seconds)
    if attack.may_kill:
        _wait_mended(running)
    if (mended := int(running.gauge(*HEALINGS) - healings)) > attack.may_kill:
        beside.faults[f"killed {mended} models"] = 1
    # The processes of a model that was mended are others, and it was counted.
    kinds = {"the API", "Triton"} if mended else set(servants.values())
    lost = Counter(
        f"killed {name}" for pid, name in servants.items() if name in kinds and pid not in running.servants()
    )
    if attack.may_kill:
        answer = f"{answer}; {mended} processes killed"
    return Cost(
        attack,
        answer,
        seconds,
        max(0.0, used) / times / attack.requests,
        watch.beyond,
        _pause(running, offset, pause_before),
        percentile(beside.latencies_seconds, 99) / percentile(calm.latencies_seconds, 99),
        dict(beside.faults + lost),
    )


def _wait_mended(running: Running) -> None:
    """Until every Triton answers again, and what is reloaded has been counted."""
    deadline = time.monotonic() + MEND_SECONDS
    while time.monotonic() < deadline and not running.all_ready():
        time.sleep(0.5)


def _pause(running: Running, offset: int, before: float) -> float:
    """The longest pause since, as far as the loop's own work made it: what it waited for a processor does not count."""
    logged = [
        min(float(str(event["seconds"])), float(str(event["cpu_seconds"])))
        for event in running.events(offset)
        if event["event"] == "loop_paused"
    ]
    now = running.gauge("gateway_event_loop_pause_seconds")
    return max([*logged, min(now, MAX_PAUSE_SECONDS) if now != before else 0.0])


def cpu_seconds(running: Running) -> float:
    """Processor time of all processes of a service, those that have ended included."""
    total = 0.0
    for process in running.tree():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _memory(running: Running) -> float:
    total = 0
    for process in running.tree():
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total
