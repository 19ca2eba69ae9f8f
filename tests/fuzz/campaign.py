"""Sends damaged files to a child process, and keeps every file that it does not survive."""

import hashlib
import json
import math
import random
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """A child process that inspects and decodes files in turn."""

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.child"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )

    def ask(self, data: bytes) -> dict[str, Any] | str:
        """The answer, or a description of how the process failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(struct.pack("<I", len(data)) + data)
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], SECONDS_PER_FILE)[0]:
                return f"no answer within {SECONDS_PER_FILE:.0f} s"
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if line:
            return json.loads(line)
        status = self._process.wait()
        self._stderr.seek(0)
        return f"the process died with status {status}: {self._stderr.read()[-500:].decode(errors='replace')}"

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a file that the process has not read
                pipe.close()
        self._process.kill()
        self._process.wait()
        self._stderr.close()


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
