"""The processor time of a Triton and its processes."""

import subprocess
import sys

from gateway_models.proof.serving import cpu_seconds, cpu_seconds_used
from tests.processes import wait_for


def test_time_of_a_process_that_ended_meanwhile_is_not_subtracted():
    assert cpu_seconds_used({1: 5.0, 2: 1.0}, {2: 1.5, 3: 0.25}) == 0.75


def test_processes_of_the_session_are_counted():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as busy:
        try:
            before = cpu_seconds(busy.pid)
            assert set(before) == {busy.pid}
            wait_for(lambda: cpu_seconds_used(before, cpu_seconds(busy.pid)) > 0)
        finally:
            busy.kill()
