"""The writer's process: no damaged file, no delayed request, and every row counted once."""

import os
import resource
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from prometheus_client import REGISTRY

from gateway.settings import MIB
from tests.doubles.backend import PNG
from tests.gateway_predictions.logged import (
    LATER,
    counted,
    failures,
    files,
    logging_service,
    outcomes,
    rows,
    send,
    send_many,
)
from tests.processes import children, wait_for

pytestmark = pytest.mark.usefixtures("own_writers")


def writer() -> psutil.Process:
    """The writer of this process's service."""
    (found,) = children(os.getpid(), "gateway_predictions.writer")
    return found


def queued() -> float | None:
    return REGISTRY.get_sample_value("gateway_prediction_log_queue_rows")


def is_damaged(folder) -> bool:
    """Whether a file of the log is a draft, or cannot be read."""
    rows(folder)  # raises if a file cannot be read
    return any(path.suffix != ".parquet" for path in files(folder))


def test_file_is_written_at_its_number_of_rows(tmp_path):
    with logging_service(tmp_path, constants={**LATER, "file_rows": 10}) as client:
        send_many(client, 9)
        send_many(client, 1)
        assert len(rows(tmp_path, 10)) == 10
        send_many(client, 9)
    assert len(rows(tmp_path)) == 19
    assert len(files(tmp_path)) == 2


def test_file_is_written_at_its_bytes(tmp_path):
    """Images count, so that a burst of them does not pile up in the writer."""
    big = PNG + bytes(600_000)
    with logging_service(tmp_path, constants={**LATER, "file_bytes": MIB}, log_predictions_images=True) as client:
        send(client, big)
        send(client, big)
        assert len(rows(tmp_path, 2)) == 2


def test_killed_writer_is_replaced_and_its_rows_are_counted(tmp_path):
    with counted() as found:
        with logging_service(tmp_path, constants=LATER) as client:
            send_many(client, 30)
            before = writer()
            wait_for(lambda: psutil.Process().children() and before.is_running())
            os.kill(before.pid, signal.SIGKILL)
            wait_for(lambda: any(each.pid != before.pid for each in psutil.Process().children()))
            send_many(client, 5)
            # A new writer takes seconds to start on a busy machine, longer than the service waits for it at its end.
            wait_for(lambda: queued() == 0)
        assert not is_damaged(tmp_path)
        written = len(rows(tmp_path))
    assert found["written"] == written >= 5
    assert sum(found.values()) == 35


def test_writer_that_cannot_be_started_is_tried_again(tmp_path, monkeypatch):
    """As without a free process or file: the log goes on once there is one."""
    real, attempts = subprocess.Popen, []

    def start(command, *arguments, **options):
        if "gateway_predictions.writer" in command:
            attempts.append(command)
            if len(attempts) <= 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
        return real(command, *arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    with counted() as found, logging_service(tmp_path) as client:
        send_many(client, 5)
        assert len(rows(tmp_path, 5)) == 5
    assert found == {"written": 5}
    assert len(attempts) == 3


def test_stopped_writer_delays_no_request(tmp_path):
    """Like a disk that hangs: the queue fills up to its limit, more is dropped and counted, and requests go on."""
    image = PNG + bytes(100_000)
    with counted() as found:
        with logging_service(tmp_path, constants={"queue_bytes": MIB}) as client:
            send(client, image)
            rows(tmp_path, 1)
            stopped = writer()
            stopped.suspend()
            client.timeout = 10
            before = outcomes()["queue_full"]
            sent = 1
            while outcomes()["queue_full"] == before:
                send_many(client, 50, image)
                sent += 50
            stopped.resume()
        assert len(rows(tmp_path)) == sent - (outcomes()["queue_full"] - before)
    assert sum(found.values()) == sent


def test_row_is_in_the_queue_until_its_writer_has_it(tmp_path):
    """It is larger than what the kernel keeps for the writer."""
    with logging_service(tmp_path, log_predictions_images=True) as client:
        send(client)
        rows(tmp_path, 1)
        wait_for(lambda: queued() == 0)
        stopped = writer()
        stopped.suspend()
        send(client, PNG + bytes(MIB))
        for _ in range(20):
            send(client)
        assert queued() == 21
        stopped.resume()
        wait_for(lambda: queued() == 0)
        assert len(rows(tmp_path, 22)) == 22


def test_full_disk_damages_no_file_and_rows_are_written_later(tmp_path):
    """The kernel refuses writes beyond a limit of the process, as it does on a full disk."""
    with counted() as found, logging_service(tmp_path) as client:
        send_many(client, 3)
        rows(tmp_path, 3)
        before = failures()
        pid = writer().pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        send_many(client, 4)
        wait_for(lambda: failures() > before)
        assert len(rows(tmp_path)) == 3
        assert not is_damaged(tmp_path)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
        assert len(rows(tmp_path, 7)) == 7
        assert not is_damaged(tmp_path)
    assert found == {"written": 7}


def test_rows_for_a_folder_that_cannot_be_made_are_written_later(tmp_path):
    folder = tmp_path / "log"
    folder.write_text("a file where the folder should be")
    with counted() as found, logging_service(folder) as client:
        before = failures()
        send_many(client, 2)
        wait_for(lambda: failures() > before)
        folder.unlink()
        assert len(rows(folder, 2)) == 2
    assert found == {"written": 2}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_writer_outlives_signals_to_its_service(tmp_path, number):
    """Ctrl-C reaches every process of a terminal, and the service has rows for its writer until it ends."""
    with logging_service(tmp_path, constants=LATER) as client:
        wait_for(lambda: bool(psutil.Process().children()))
        send_many(client, 1)
        process = writer()
        # Signals are ignored once the program runs; before that, they would end the interpreter's start.
        wait_for(lambda: _ignores(process.pid, number))
        os.kill(process.pid, number)
        send_many(client, 1)
    assert len(rows(tmp_path)) == 2


def _ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(mask >> (number - 1) & 1)
