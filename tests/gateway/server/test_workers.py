"""A worker does not outlive the supervisor that started it."""

import os
import signal
import subprocess
import sys

import psutil

from tests.processes import PROJECT, wait_for

SUPERVISOR = """
import multiprocessing, time
from gateway.server.workers import die_with_supervisor

def work(pipe):
    die_with_supervisor()
    pipe.send("ready")
    time.sleep(600)

if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(theirs,))
    worker.start()
    ours.recv()
    print(worker.pid, flush=True)
    time.sleep(600)
"""


def test_worker_ends_when_its_supervisor_is_killed(tmp_path):
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as process:
        worker = psutil.Process(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, timeout_seconds=20)
