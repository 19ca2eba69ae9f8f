"""Runs a Python program that is given a JSON document on stdin, and answers with one on stdout."""

import json
import subprocess
import sys
from typing import Any

from gateway.errors import UserError
from gateway.machine.child_environment import NETWORKS, child_environment


class ChildFailed(UserError):
    """A program gave no answer; the message has the last line that it wrote to stderr, or its exit code."""


def ask(program: str, given: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """Run a program that runs networks, and return its answer; raises ChildFailed."""
    try:
        done = subprocess.run(
            [sys.executable, program],
            env=child_environment(*NETWORKS),
            input=json.dumps(given),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise ChildFailed(f"it took longer than {timeout_seconds:g} s") from exc
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as exc:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        raise ChildFailed(last[0]) from exc
    return answer
