"""`gateway up` and `triton run`: they start everything, keep it running, and leave nothing behind."""

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from tritonclient.grpc import InferenceServerClient

from gateway.machine.gpus import gpu_count
from gateway_local.hosts import authority
from tests.load import Load
from tests.photos import photo, unlike_any
from tests.processes import PROJECT, environment, free_port, is_gone, python, wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.random_order(disabled=True)]
"""In order: tests share a service whose start takes long, and the last of them kills it."""


@dataclass
class Up:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def find(self, name: str) -> psutil.Process | None:
        """A running process: `triton`, a `worker` of the API, or the stub of a model."""
        wanted = {"triton": ["tritonserver"], "worker": ["-m gateway.worker"]}.get(
            name, ["triton_python_backend_stub", f"/{name}/"]
        )
        return next((each for each in self.family() if has(each, wanted)), None)

    def says(self, pattern: str) -> bool:
        return re.search(pattern, self.log.read_text()) is not None


def has(process: psutil.Process, words: list[str]) -> bool:
    try:
        line = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and all(word in line for word in words)
    except psutil.NoSuchProcess:
        return False


def keep_stopped(process: psutil.Process) -> None:
    """Stop a process again that its supervisor has continued."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}:
            process.send_signal(signal.SIGSTOP)


SECRET = "known to the service alone"  # noqa: S105  # of no service
SURROUNDINGS = {
    **dict.fromkeys(["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PIP_INDEX_URL", "DATABASE_PASSWORD"], SECRET),
    **dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy"], "http://127.0.0.1:9"),
}
"""Secrets, and a proxy that does not answer."""


@contextlib.contextmanager
def running_command(log: Path, ready: str, *words: str, url: str = "", **settings: object) -> Iterator[Up]:
    """`gateway` with these words, once its log says that it is ready; killed at the end."""
    variables = {name: value for name, value in environment(**settings).items() if name.lower() != "no_proxy"}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *words],
            env={**variables, **SURROUNDINGS, "MODEL_COLOUR": "red", "XDG_STATE_HOME": str(log.parent)},
            cwd=PROJECT,
            stdout=output,
            stderr=output,
        )
    up = Up(process, url, log)
    try:
        wait_for(lambda: up.says(ready), process=process, timeout_seconds=120)
        yield up
    finally:
        process.kill()
        process.wait()


def running_up(log: Path, *options: str, **settings: object) -> contextlib.AbstractContextManager[Up]:
    port, host = free_port(), settings.get("host", "127.0.0.1")
    settings = {"port": port, "ready_interval_seconds": 1, **settings}
    url = f"http://{authority(host, port)}"
    return running_command(log, "gateway \\| ready after", "up", *options, url=url, **settings)


def classified(up: Up) -> bool:
    """Whether an image is classified that no cache has."""
    image = unlike_any(photo("cat"))
    try:
        return httpx.post(f"{up.url}/predict", files={"f": ("c.jpg", image)}, timeout=30).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def shared_up(light_repository, tmp_path_factory) -> Iterator[Up]:
    """One `gateway up --workers 2` that keeps running through the tests that use it."""
    folder = tmp_path_factory.mktemp("up")
    settings = {"workers": 2, "cache_secret": SECRET, "log_predictions": folder / "predictions"}
    with running_up(folder / "up.log", f"--model-repository={light_repository}", **settings) as up:
        yield up


def test_no_process_but_the_services_own_has_its_secrets(shared_up):
    assert classified(shared_up)
    own, others = [], {}
    for process in shared_up.family():
        line = " ".join(process.cmdline())
        if "gateway.worker" in line:
            own.append(process)
        elif line:
            others[line] = process.environ()
    assert any(SECRET in process.environ().values() for process in own)
    for kind in ("tritonserver", "triton_python_backend_stub", "gateway.decoder", "reaper"):
        assert any(kind in line for line in others), kind
    for line, variables in others.items():
        assert SECRET not in variables.values(), line
        assert not [name for name in variables if name.startswith("GATEWAY_") or "proxy" in name.lower()], line
        assert ("MODEL_COLOUR" in variables) is ("triton" in line.split()[0]), line


def open_objects(process: psutil.Process) -> dict[tuple[int, int], str]:
    """The sockets, pipes and files that a process has open, besides its standard streams."""
    found = {}
    for handle in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            status = handle.stat()
            if int(handle.name) > 2 and not stat.S_ISCHR(status.st_mode) and "anon_inode" not in str(handle.readlink()):
                found[status.st_dev, status.st_ino] = f"{handle.name} {handle.readlink()}"
    return found


def test_no_process_inherits_what_the_service_has_open(shared_up):
    """Neither the listening socket nor connections: a process that outlives the service would keep the port."""
    assert classified(shared_up)
    own: dict[tuple[int, int], str] = {}
    others = {}
    for process in (psutil.Process(shared_up.process.pid), *shared_up.family()):
        line = " ".join(process.cmdline())
        if "gateway_local.supervise" in line or "gateway.worker" in line:
            own |= open_objects(process)
        elif line:
            others[line] = open_objects(process)
    assert any("socket:" in name for name in own.values())
    for kind in ("tritonserver", "triton_python_backend_stub", "gateway.decoder", "reaper"):
        assert any(kind in line for line in others), kind
    for line, held in others.items():
        common = {own[each] for each in own.keys() & held.keys()}
        assert not [name for name in common if not ("gateway.decoder" in line and "/memfd:image" in name)], line


def test_classify_asks_this_machine_without_the_proxy(shared_up):
    command = ["-m", "gateway", "classify", PROJECT / "docs" / "examples" / "cat.jpg", f"--gateway={shared_up.url}"]
    assert "cat.jpg" in python(*command, env={**environment(), **SURROUNDINGS}).stdout


def test_second_up_reports_the_port_in_use(shared_up):
    port = shared_up.url.rpartition(":")[2]
    second = python("-m", "gateway", "up", "--port", port, code=1, env=environment())
    assert f"port {port}" in second.stderr
    assert classified(shared_up)


def test_model_process_ignores_sigterm(shared_up):
    up, step = shared_up, "preprocessor"
    # Each of the two workers must find out that the models are ready.
    wait_for(lambda: all(classified(up) for _ in range(8)), timeout_seconds=90)
    process = wait_for(lambda: up.find(step), timeout_seconds=90)
    process.terminate()
    assert all(classified(up) for _ in range(4))
    assert up.find(step).pid == process.pid


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, signal.SIGKILL) for name in ("worker", "triton", "preprocessor")),
        pytest.param("triton", signal.SIGSTOP, marks=pytest.mark.long),
    ],
)
def test_service_recovers_from_the_death_of_any_process(shared_up, name, number):
    up = shared_up
    wait_for(lambda: classified(up), timeout_seconds=90)
    process = wait_for(lambda: up.find(name), timeout_seconds=90)
    family = [process, *process.children(recursive=True)]
    process.send_signal(number)

    def ended() -> bool:
        if number == signal.SIGSTOP:
            keep_stopped(process)
        return all(map(is_gone, family))

    # Triton keeps a stub that died as a zombie until the model is reloaded.
    wait_for(ended, timeout_seconds=120)
    successor = wait_for(lambda: up.find(name), timeout_seconds=90)
    assert successor.pid != process.pid
    wait_for(lambda: classified(up), timeout_seconds=90)
    assert up.process.poll() is None


def test_killed_up_leaves_no_process_behind(shared_up):
    """Runs last of the tests that share `shared_up`."""
    up = shared_up
    wait_for(lambda: classified(up) and up.find("worker"), timeout_seconds=90)
    family = up.family()
    up.process.kill()
    wait_for(lambda: all(map(is_gone, family)), timeout_seconds=120)


def test_up_reports_progress_and_leaves_no_process_behind(light_repository, tmp_path):
    with running_up(
        tmp_path / "up.log",
        f"--model-repository={light_repository}",
        host="::" if socket.has_dualstack_ipv6() else "127.0.0.1",
    ) as up:
        assert classified(up)
        family = up.family()
        assert len(family) >= 4
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0
        assert not psutil.wait_procs(family, timeout=60)[1]
        for step in (
            "starting Triton with the models of",
            r"Triton has loaded its models after [\d.]+ s",
            r"ready after [\d.]+ s: open http",
            r"stopped after [\d.]+ s",
        ):
            assert up.says(step), step
        assert not up.says("Exit timeout expired")
        assert gpu_count() or not up.says("NVML|CUDA driver|CudaDriver|pinned system memory")


def test_second_signal_stops_everything_at_once(light_repository, tmp_path):
    with running_up(tmp_path / "up.log", f"--model-repository={light_repository}", shutdown_delay_seconds=200) as up:
        family = up.family()
        up.process.send_signal(signal.SIGINT)
        wait_for(lambda: up.says("Ctrl-C again"))
        wait_for(lambda: httpx.get(f"{up.url}/health/ready", timeout=60).status_code == 503)
        up.process.send_signal(signal.SIGINT)
        up.process.wait(60)
        assert not psutil.wait_procs(family, timeout=60)[1]


def test_stop_under_load_loses_no_request(light_repository, tmp_path):
    with running_up(
        tmp_path / "up.log", f"--model-repository={light_repository}", workers=2, shutdown_delay_seconds=1
    ) as up:
        with Load(up.url) as load:
            wait_for(lambda: load.outcomes()[200] > 40)
            os.kill(up.process.pid, signal.SIGTERM)
            stopped_at = time.monotonic()
            assert up.process.wait(60) == 0
        assert load.outcomes(since=stopped_at)[200] > 0
        # When the port closes, each client may find its idle connection closed, and a new one refused.
        outcomes = load.outcomes()
        lost = outcomes["ConnectionResetError"] + outcomes["RemoteDisconnected"] + outcomes["BrokenPipeError"]
        assert outcomes.total() == outcomes[200] + outcomes["ConnectionRefusedError"] + lost
        assert lost <= 2 * load.clients
        # Every request that was accepted has a response.
        events = [line for line in up.log.read_text().splitlines() if '"path": "/predict"' in line]
        assert sum('"status": 200' in event for event in events) == len(events) == outcomes[200]


def test_triton_run_starts_a_triton_that_dies_again(light_repository, tmp_path):
    """On the same ports; a signal ends all of it."""
    port = free_port()
    ports = [f"--grpc-port={port}", "--http-port=0", "--metrics-port=0"]
    command = ("triton", "run", f"--model-repository={light_repository}", *ports)
    with running_command(tmp_path / "run.log", "listens on", *command) as run:
        first = run.find("triton")
        # As it ends when its Python backend's shared memory is damaged.
        os.kill(first.pid, signal.SIGABRT)
        wait_for(lambda: run.says("Triton answers again after"), process=run.process, timeout_seconds=120)
        assert run.says("Triton ended with code -6; starting it again in 0.5 s")
        second = run.find("triton")
        assert second.pid != first.pid
        with InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.is_model_ready("ensemble_model")
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(timeout=60) == 0
        assert is_gone(second)
