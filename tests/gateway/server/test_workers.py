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
from types import SimpleNamespace

import psutil
import pytest
import uvicorn
import uvloop

from gateway.draining import Draining
from gateway.machine.capacity import plan
from gateway.metrics import reserve_space
from gateway.server import serve
from gateway.server.allocator import VARIABLES
from gateway.server.connections import OWN_FILES, RESERVED
from gateway.server.serve import METRICS_BYTES, NoSpaceForWorkers, bound, plan_of, plan_to_serve
from gateway.server.server import ACCEPTED, Server, listening_sockets
from gateway.server.workers import Process, Worker, Workers, accept_no_more
from gateway.settings import variable
from gateway_local.children import ApiFailed, is_ok, wait_for_api
from gateway_local.hosts import LOOPBACK
from tests.processes import PROJECT, children, free_port, is_gone, running_gateway, wait_for
from tests.settings import Settings


def test_worker_ends_when_its_supervisor_is_killed(tmp_path):
    with running_gateway(tmp_path / "log", wait_ready=False, supervised=True, triton_url="127.0.0.1:9") as gateway:
        (worker,) = children(gateway.process.pid, "gateway.worker")
        gateway.process.kill()
        wait_for(lambda: is_gone(worker), timeout_seconds=20)


@pytest.fixture
def api():
    """Starts workers in front of a Triton that does not answer; returns them, their port and the reported lines."""
    started = []

    def start(changed=(), **settings):
        said = []
        given = Settings(_env_file=None, port=free_port(), **settings)
        workers = Workers(bound(given), lambda _, text, __: said.append(text))
        workers.start(plan_of(given, {"port": given.port, "triton_url": "127.0.0.1:9", **dict(changed)}))
        started.append(workers)
        return workers, given.port, said

    yield start
    for workers in started:
        workers.stop(0)


def test_worker_that_ends_while_it_starts_fails_the_start(api):
    workers, _, _ = api({"workers": 0})
    with pytest.raises(ApiFailed, match=r"the API ended with code \d while it started"):
        wait_for_api(workers)


@pytest.mark.slow
def test_worker_that_dies_or_hangs_is_replaced(api, monkeypatch):
    workers, port, said = api(workers=2, shutdown_delay_seconds=100)
    wait_for(lambda: is_ok(LOOPBACK, port, "/health/live", timeout_seconds=60))
    with pytest.raises(ApiFailed, match=r"not ready after 0.3 s"):
        wait_for_api(workers, 0.3)
    family = [psutil.Process(pid) for pid in workers.pids]
    os.kill(workers.pids[0], signal.SIGKILL)
    wait_for(lambda: workers.check() or len(said) > 0)
    assert said == ["a worker of the API ended with code -9; starting another one in 0.5 s"]
    wait_for(lambda: workers.check() or workers.pids[0] != family[0].pid)
    family.append(psutil.Process(workers.pids[0]))
    os.kill(workers.pids[1], signal.SIGSTOP)
    monkeypatch.setattr("gateway.server.workers.HANG_SECONDS", 0.5)
    wait_for(lambda: workers.check() or len(said) > 1)
    assert said[1].startswith("a worker of the API did not answer for 0.5 s; starting another one")
    workers.stop(0.1)  # within the shutdown delay
    assert all(map(is_gone, family))


def test_worker_without_an_exit_code_has_ended():
    """The kernel keeps none while SIGCHLD is ignored, nor of a process that was waited for."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (messages, sender), (reader, variables) = os.pipe(), os.pipe()
    os.close(sender)
    worker = Worker(Process(ended.pid, messages, variables), {})
    os.close(reader)
    assert not worker.alive()
    assert worker.code == 0
    os.close(messages)


def test_connections_that_the_kernel_has_accepted_are_served_after_it_accepts_no_more():
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as early, socket.socket() as late:
            accept_no_more(listener)
            late.settimeout(0.2)
            with pytest.raises(TimeoutError):
                late.connect(listener.getsockname())
            accepted, _ = listener.accept()
            with accepted:
                early.sendall(b"request")
                assert accepted.recv(100) == b"request"


def test_date_is_renewed_at_rest(monkeypatch):
    """Else the first response after an hour without clients would have a date from an hour ago."""
    renewed: list[bool] = []

    async def on_tick(self: Server, counter: int) -> bool:
        self.server_state.default_headers = []
        await tick(self, counter)
        renewed.append(b"date" in dict(self.server_state.default_headers))
        return len(renewed) == 4

    tick = Server.on_tick
    monkeypatch.setattr(Server, "on_tick", on_tick)
    with Path(os.devnull).open("wb") as pipe:
        server = Server(uvicorn.Config("no application"), pipe.fileno())
        server.lifespan = SimpleNamespace(state={"runtime": SimpleNamespace(is_ready=lambda: len(renewed) == 2)})
        asyncio.run(server.main_loop())
    assert renewed == [True, False, False, True]


ITERATIONS = 3
"""The first may have begun before the clients connected; the last one notices that all are accepted."""


class Counted(asyncio.Protocol):
    """Counts the connections that are accepted."""

    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).made += 1
        transport.close()


async def iterations_to_accept(count: int) -> int:
    """The number of iterations of the event loop that accept `count` connected clients."""
    loop = asyncio.get_running_loop()
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    sockets = listening_sockets(listener)
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


@pytest.mark.parametrize(("missing", "starts"), [(0, True), (1, False)])
def test_workers_start_only_with_space_for_their_metrics(monkeypatch, missing, starts):
    usage = type("usage", (), {"free": 2 * METRICS_BYTES - missing})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    settings = Settings(_env_file=None, workers=2)
    if starts:
        assert plan_of(settings, {}).workers == 2
    else:
        with pytest.raises(NoSpaceForWorkers, match=r"the metrics of 2 workers need 16 MiB.*TMPDIR"):
            plan_of(settings, {})


def test_metrics_have_their_blocks_before_the_first_write(tmp_path):
    own, other = tmp_path / f"counter_{os.getpid()}.db", tmp_path / "counter_1.db"
    for path in (own, other):
        with path.open("wb") as file:
            file.truncate(2**20)
    reserve_space(tmp_path)
    assert own.stat().st_blocks * 512 >= 2**20
    assert other.stat().st_blocks == 0


@pytest.mark.parametrize(("beside", "gpus"), [("cpu", 0), ("gpu", 16)])
def test_settings_beside_a_triton_are_those_of_the_plan(monkeypatch, beside, gpus):
    monkeypatch.setattr(serve, "memory_limit", lambda: None)
    wanted = plan(16, gpus).settings()
    found = plan_to_serve(Settings(_env_file=None, beside_triton=beside, cores=16))
    assert found.workers == wanted["workers"]
    assert found.variables == {variable(field): str(value) for field, value in wanted.items()}


def test_settings_that_are_set_and_those_of_a_gateway_alone_stay(monkeypatch):
    monkeypatch.setattr(serve, "memory_limit", lambda: None)
    found = plan_to_serve(Settings(_env_file=None, beside_triton="gpu", cores=16, workers=3))
    assert found.workers == 3
    assert variable("workers") not in found.variables
    assert plan_to_serve(Settings(_env_file=None, cores=16)).variables == {}


CONNECTIONS = 20
NEEDED = CONNECTIONS + RESERVED + OWN_FILES
SCRIPT = """
import json, os, resource, sys
from gateway.server.connections import affordable_connections

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
