"""Sends damaged files to a child process, and keeps every file that it does not survive."""

import hashlib
import math
import multiprocessing
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.child import serve
from tests.fuzz.mutations import mutate
from tests.samples import samples

SEEDS = Path(__file__).parent / "seeds"
"""Files that once caused a fault; each run starts with them."""
SECONDS_PER_FILE = 20.0
MOST_FAULTS = 10


@dataclass
class Report:
    files: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    slowest: str = ""
    resident_bytes_at_start: int = 0
    resident_bytes: int = 0
    faults: list[str] = field(default_factory=list)


class Child:
    """A child process that inspects and decodes files one by one."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, data: bytes) -> dict[str, Any] | str:
        """The answer, or a description of how the process failed."""
        try:
            self._pipe.send_bytes(data)
            if not self._pipe.poll(SECONDS_PER_FILE):
                return f"no answer within {SECONDS_PER_FILE:.0f} s"
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return f"the process died with status {self._process.exitcode}"

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


def run(seconds: float = math.inf, seed: int = 0, only: str = "", *, files: float = math.inf) -> Report:
    """Damage samples at random, until the time, the number of files or MOST_FAULTS is reached.

    `only` restricts the samples to those whose name contains it.
    """
    forms = [one for one in samples(67, 45) if only.lower() in one.name.lower()]
    others = [one.data for one in forms]
    report, child = Report(), Child()
    kept = sorted(SEEDS.glob("*.bin")) if SEEDS.exists() else []
    deadline = time.monotonic() + seconds
    try:
        while len(report.faults) < MOST_FAULTS:
            number = report.files
            if number < len(kept):
                name, data = kept[number].name, kept[number].read_bytes()
            elif number < len(kept) + len(forms):
                name, data = forms[number - len(kept)].name, others[number - len(kept)]
            elif number < files and time.monotonic() < deadline:
                # A separate generator for each file, so that each can be reproduced from the seed and its number.
                rng = random.Random(f"{seed} {number}")
                form = rng.choice(forms)
                name, data = form.name, mutate(rng, form.data, others)
            else:
                break
            answer = child.ask(data)
            report.files += 1
            if isinstance(answer, str):
                child.close()
                child = Child()
            fault = answer if isinstance(answer, str) else answer["fault"]
            if fault is not None:
                report.faults.append(f"{name}, seed {seed}, number {number}, kept as {_keep(data)}: {fault}")
                continue
            assert not isinstance(answer, str)
            report.outcomes[answer["outcome"]] += 1
            if answer["seconds"] > report.slowest_seconds:
                report.slowest_seconds, report.slowest = answer["seconds"], f"{name}, number {number}"
            report.resident_bytes = answer["resident_bytes"]
            report.resident_bytes_at_start = report.resident_bytes_at_start or answer["resident_bytes"]
    finally:
        child.close()
    return report


def _keep(data: bytes) -> str:
    SEEDS.mkdir(exist_ok=True)
    path = SEEDS / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
    path.write_bytes(data)
    return path.name
