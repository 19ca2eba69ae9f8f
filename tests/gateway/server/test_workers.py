"""Workers: they end with their supervisor, and start only with space for what they share."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gateway.metrics import SHARED_FOLDER, reserve_space
from gateway.server.workers import METRICS_BYTES, WORKERS_FOLDER, NoSpaceForWorkers, sharing
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


@pytest.mark.parametrize(("missing", "starts"), [(0, True), (1, False)])
def test_workers_start_only_with_space_for_their_metrics(tmp_path, monkeypatch, missing, starts):
    for variable in (SHARED_FOLDER, WORKERS_FOLDER):
        monkeypatch.setenv(variable, "")
    usage = type("usage", (), {"free": 2 * METRICS_BYTES - missing})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    if starts:
        with sharing(2):
            assert Path(os.environ[SHARED_FOLDER]).is_dir()
    else:
        with pytest.raises(NoSpaceForWorkers, match=r"the metrics of 2 workers need 16 MiB.*TMPDIR"), sharing(2):
            pass


def test_metrics_have_their_blocks_before_the_first_write(tmp_path):
    own, other = tmp_path / f"counter_{os.getpid()}.db", tmp_path / "counter_1.db"
    for path in (own, other):
        with path.open("wb") as file:
            file.truncate(2**20)
    reserve_space(tmp_path)
    assert own.stat().st_blocks * 512 >= 2**20
    assert other.stat().st_blocks == 0
