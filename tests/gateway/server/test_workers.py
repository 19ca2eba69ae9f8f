"""Workers and the process around them: starting, accepting, open files, memory that is kept, and stopping."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import uvicorn
import uvloop

from gateway.limits.connections import RESERVED
from gateway.metrics import SHARED_FOLDER, reserve_space
from gateway.server import serve as serving
from gateway.server.allocator import VARIABLES
from gateway.server.draining import Draining
from gateway.server.open_files import OWN_FILES
from gateway.server.serve import ACCEPTED, listening_sockets
from gateway.server.workers import METRICS_BYTES, NoSpaceForWorkers, sharing
from gateway.settings import variable
from gateway_local.children import is_ok
from gateway_local.hosts import LOOPBACK, free_port
from gateway_machine.capacity import plan
from tests.processes import PROJECT, children, environment, wait_for
from tests.settings import Settings

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
    monkeypatch.setenv(SHARED_FOLDER, "")
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


ITERATIONS = 3
"""The first may have begun before the clients connected; the last notices that all have been accepted."""


class Counted(asyncio.Protocol):
    """A connection that is counted when it is accepted."""

    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).made += 1
        transport.close()


async def iterations_to_accept(count: int) -> int:
    """How many iterations of the event loop it takes to accept `count` clients that have connected already."""
    loop = asyncio.get_running_loop()
    sockets = listening_sockets(uvicorn.Config("nothing:app", host=LOOPBACK, port=0, log_config=None))
    servers = [await loop.create_server(Counted, sock=each) for each in sockets]
    iterations, expected = 0, Counted.made + count
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection(sockets[0].getsockname()))
        while Counted.made < expected:
            await asyncio.sleep(0)
            iterations += 1
    for server in servers:
        server.close()
    return iterations


def test_many_connections_are_accepted_in_an_iteration():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(iterations_to_accept(ACCEPTED)) <= ITERATIONS
        assert runner.run(iterations_to_accept(3 * ACCEPTED)) <= 3 * ITERATIONS


@pytest.fixture
def served(monkeypatch):
    """The settings of a service that is started with some settings, and the environment of its workers."""
    found = []
    monkeypatch.setattr(serving, "run", lambda _app, settings, **_: found.append(settings))
    monkeypatch.setattr(serving, "configure_logs", lambda _: None)
    monkeypatch.setattr(serving, "memory_limit", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def started(**fields: object) -> tuple[Settings, dict[str, str]]:
        serving.serve(Settings(_env_file=None, port=free_port(), **fields))
        return found[-1], dict(os.environ)

    return started


@pytest.mark.parametrize(("beside", "gpus"), [("cpu", 0), ("gpu", 16)])
def test_settings_beside_a_triton_are_those_of_the_plan(served, beside, gpus):
    settings, environment = served(beside_triton=beside, cores=16)
    wanted = plan(16, gpus).settings()
    assert {field: getattr(settings, field) for field in wanted} == wanted
    assert {field: environment[variable(field)] for field in wanted} == {field: str(wanted[field]) for field in wanted}


def test_settings_that_are_set_and_those_of_a_gateway_alone_stay(served):
    settings, environment = served(beside_triton="gpu", cores=16, workers=3)
    assert settings.workers == 3
    assert settings.max_images_in_flight == plan(16, 16).images_in_flight
    assert environment.get(variable("workers")) is None
    alone, _ = served(cores=16)
    assert alone.workers == Settings.model_fields["workers"].default


CONNECTIONS = 20
NEEDED = CONNECTIONS + RESERVED + OWN_FILES
SCRIPT = """
import json, os, resource, sys
from gateway.server.open_files import affordable_connections

for soft, hard in json.loads(sys.argv[2]):
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connections = affordable_connections(int(sys.argv[1]))
        print(json.dumps([soft, hard, connections, *resource.getrlimit(resource.RLIMIT_NOFILE)]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_limit_of_open_files():
    """At the limit, raised to it, one below it, and far below it."""
    cases = [
        # soft limit, hard limit, connections, soft limit afterwards, hard limit
        [NEEDED, NEEDED, CONNECTIONS, NEEDED, NEEDED],
        [NEEDED - 1, NEEDED + 5, CONNECTIONS, NEEDED, NEEDED + 5],
        [NEEDED - 1, NEEDED - 1, CONNECTIONS - 1, NEEDED - 1, NEEDED - 1],
        [64, 64, 1, 64, 64],
    ]
    limits = json.dumps([case[:2] for case in cases])
    command = [sys.executable, "-c", SCRIPT, str(CONNECTIONS), limits]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    assert [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")] == cases
    assert ran.stdout.count("connections_limited") == 2


FAULTS = """
import resource
data = b"x"
from gateway.server.allocator import keep_freed_memory
kept = {call}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [data * 4_000_000 for _ in range(10)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(kept, faults())
"""


def page_faults(call: str, **variables: str) -> tuple[str, int]:
    """Whether the memory is kept, and the page faults of 20 times 40 MB."""
    command = [sys.executable, "-c", FAULTS.format(call=call)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_buffers_of_megabytes_cost_no_page_faults():
    assert page_faults("None")[1] > 20_000
    kept, faults = page_faults("keep_freed_memory()")
    assert kept == "True"
    assert faults < 100


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_the_operator_win(name):
    assert page_faults("keep_freed_memory()", **{name: "131072"})[0] == "False"


def test_time_is_left_from_the_first_signal_on():
    draining = Draining()
    assert draining.left_seconds(60) == 60
    draining.begin()
    first = draining.left_seconds(60)
    assert 0 < first <= 60
    draining.begin()
    assert draining.left_seconds(60) <= first
    assert draining.left_seconds(0) == 0


SLOW_START = """
import multiprocessing, sys, time

if multiprocessing.parent_process() is not None:
    time.sleep(float(sys.argv[1]))  # in each worker, before it can answer its supervisor

from gateway_cli.main import main

if __name__ == "__main__":
    del sys.argv[1]
    main()
"""
UVICORNS_SECONDS = uvicorn.Config("app").timeout_worker_healthcheck


@pytest.mark.slow
def test_workers_that_start_slowly_are_not_replaced(tmp_path):
    """On a loaded machine the imports of a worker take longer than uvicorn's default: each was killed at its start."""
    script, port = tmp_path / "slow_start.py", free_port()
    script.write_text(SLOW_START)
    settings = environment(port=port, workers=2, triton_url=f"127.0.0.1:{free_port()}")
    command = [sys.executable, str(script), str(UVICORNS_SECONDS + 1), "serve"]
    with subprocess.Popen(
        command, env={**settings, "PYTHONPATH": str(PROJECT)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:

        def workers() -> set[psutil.Process]:
            return set(children(process.pid, "spawn_main"))

        try:
            wait_for(lambda: len(workers()) == 2, process=process)
            first = workers()
            wait_for(lambda: is_ok(LOOPBACK, port, "/health/live", timeout_seconds=60), process=process)
            assert workers() == first
        finally:
            process.terminate()
            process.wait(60)
