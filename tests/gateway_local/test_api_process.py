"""The API as a child process, with a stub of it that starts in no time."""

import os
import signal
import sys
import threading

import psutil
import pytest

from gateway_local.api_process import ApiFailed, ApiProcess
from tests.processes import free_port, is_gone, wait_for
from tests.settings import Settings

pytestmark = pytest.mark.slow
STUB = """
import http.server, json, os, signal, subprocess, sys, threading, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
seconds_to_stop, status = float(sys.argv[2]), int(sys.argv[3])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps({"detail": "no model is ready"}).encode())
    def log_message(self, *_): pass

def stop(*_):
    time.sleep(seconds_to_stop)
    child.kill()
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["GATEWAY_PORT"])), Handler).serve_forever()
"""


@pytest.fixture
def api(tmp_path):
    started = []

    def start(*, seconds_to_stop=0.0, status=200, script=STUB, hang_seconds=60.0, **settings):
        child = tmp_path / "child"
        command = [sys.executable, "-S", "-c", script, str(child), str(seconds_to_stop), str(status)]
        process = ApiProcess(
            Settings(port=free_port(), **settings), "127.0.0.1:1", command=command, hang_seconds=hang_seconds
        )
        process.start()
        started.append(process)
        return process, child

    yield start
    for process in started:
        process.stop(0)


def child_of(file):
    wait_for(lambda: file.exists() and file.read_text())
    return psutil.Process(int(file.read_text()))


def test_wait_fails_when_the_api_ends(api):
    process, _ = api(script="raise SystemExit(3)")
    with pytest.raises(ApiFailed, match="ended with code 3 while it started"):
        process.wait_ready(30)


@pytest.mark.parametrize(
    ("script", "reason"),
    [(STUB, "it reports: no model is ready"), ("import time; time.sleep(600)", r"it does not answer on port \d+")],
    ids=["not ready", "does not listen"],
)
def test_wait_times_out_with_a_reason(api, script, reason):
    process, child = api(status=503, script=script)
    if script == STUB:
        child_of(child)
        wait_for(lambda: "no model" in process._get("/health/ready")[1])
    with pytest.raises(ApiFailed, match=rf"not ready after 0.3 s; {reason}"):
        process.wait_ready(0.3)


@pytest.mark.parametrize("status", [200, 503])
def test_api_that_answers_with_any_status_is_alive(api, status):
    process, _ = api(status=status, hang_seconds=0.2)
    wait_for(process.answers)


def test_api_hangs_only_after_a_long_silence(api):
    process, _ = api(hang_seconds=60)
    wait_for(lambda: process._get("/health/live")[0])
    os.kill(process._process.pid, signal.SIGSTOP)
    assert process.answers()
    process._answered_at -= 60
    assert not process.answers()


def test_stop_waits_for_shutdown_delay_and_grace_period(api, monkeypatch):
    monkeypatch.setattr("gateway_local.api_process.EXIT_SECONDS", 0.1)
    # Longer than the grace alone, shorter than both.
    process, _ = api(seconds_to_stop=2, shutdown_delay_seconds=20, shutdown_grace_seconds=1)
    process.wait_ready(30)
    process.stop()
    assert process.poll() == 0


@pytest.mark.parametrize("grace_seconds", [0.2, 1_000], ids=["after the grace period", "by kill, while stop waits"])
def test_stop_kills_the_group(api, grace_seconds):
    process, child = api(seconds_to_stop=600)
    process.wait_ready(30)
    worker = child_of(child)
    if grace_seconds > 1:
        threading.Timer(0.3, process.kill).start()
    process.stop(grace_seconds)
    assert process.poll() == -signal.SIGKILL
    wait_for(lambda: is_gone(worker))


def test_workers_die_with_the_api_and_it_can_be_restarted(api):
    process, child = api()
    process.wait_ready(30)
    worker = child_of(child)
    os.kill(process._process.pid, signal.SIGKILL)
    wait_for(lambda: not process.alive)
    process.stop(0)
    wait_for(lambda: is_gone(worker))
    process.start()
    process.wait_ready(30)
    assert process.ready()
