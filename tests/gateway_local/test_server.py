import os
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

import gateway_local.server
from gateway_local.model_processes import processes
from gateway_local.runtime.base import TritonRuntime, TritonRuntimeError
from gateway_local.server import SHARED_MEMORY, EmbeddedTriton, PortTaken, StartFailed, missing_code
from gateway_local.server_log import error_lines
from tests.gateway.triton.small_repository import write_repository
from tests.processes import is_gone, wait_for
from tests.tritons import running_triton

ECHO_CONFIG = """
name: "echo"
backend: "python"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
ECHO_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor.from_dlpack("OUTPUT", pb_utils.get_input_tensor_by_name(request, "INPUT").to_dlpack())
            ])
            for request in requests
        ]
"""


@pytest.fixture
def echo_repository(tmp_path) -> Path:
    """A repository whose one model imports nothing, so that a server is up in a second."""
    version = tmp_path / "models" / "echo" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(ECHO_MODEL)
    (version.parent / "config.pbtxt").write_text(ECHO_CONFIG)
    return tmp_path / "models"


def family(pid: int) -> list[psutil.Process]:
    """A server and its stubs."""
    server = psutil.Process(pid)
    return [server, *server.children(recursive=True)]


def echo(server: EmbeddedTriton, number: int) -> int:
    given = InferInput("INPUT", [1, 1], "INT32").set_data_from_numpy(np.array([[number]], np.int32))
    with InferenceServerClient(server.url) as client:
        return int(client.infer("echo", [given], client_timeout=30).as_numpy("OUTPUT")[0, 0])


def listening(server: EmbeddedTriton) -> list:
    connections = psutil.Process(server.pid).net_connections()
    return [entry.laddr for entry in connections if entry.status == psutil.CONN_LISTEN]


def regions_of(server: EmbeddedTriton) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{server._shm_prefix}*"))


def test_two_servers_run_on_loopback_and_leave_nothing_behind(runtime, echo_repository):
    """No process, port or shared memory of a server remains after its stop, and its log has a prefix."""
    lines: list[str] = []
    first, second = (EmbeddedTriton(runtime, echo_repository, on_log=lines.append) for _ in range(2))
    with first, second:
        for server in (first, second):
            server.wait_ready()
            assert server.alive
            assert server.poll() is None
            # Triton opens its metrics port after it has reported that it is ready.
            ports = {server.grpc_port, server.http_port, server.metrics_port}
            wait_for(lambda server=server, ports=ports: {each.port for each in listening(server)} == ports)
            assert {address.ip.removeprefix("::ffff:") for address in listening(server)} == {"127.0.0.1"}
        assert first.url != second.url
        processes = [*family(first.pid), *family(second.pid)]
        assert len(processes) == 4
        assert regions_of(first)
        first.stop()
        assert not first.alive
        assert not regions_of(first)
        assert second.alive
        first.stop()
    assert all(map(is_gone, processes))
    assert not regions_of(second)
    assert any("Started GRPCInferenceService" in line for line in lines)
    assert all(line.startswith("triton | ") for line in lines)


def test_request_in_flight_is_answered_before_the_server_stops(runtime, echo_repository):
    model = echo_repository / "echo" / "1" / "model.py"
    marker = echo_repository.parent / "executing"
    execute = "    def execute(self, requests):\n"
    slow = f"{execute}        open({str(marker)!r}, 'w').close()\n        threading.Event().wait(2)\n"
    model.write_text(f"import threading\n{ECHO_MODEL.replace(execute, slow)}")
    with EmbeddedTriton(runtime, echo_repository, on_log=lambda line: None) as server, ThreadPoolExecutor(1) as pool:
        server.wait_ready()
        answer = pool.submit(echo, server, 42)
        wait_for(marker.exists)
        server.stop()
        assert answer.result(60) == 42


def test_hanging_server_is_killed_after_the_grace_period(runtime, echo_repository):
    server = EmbeddedTriton(runtime, echo_repository, on_log=lambda line: None)
    server.start()
    server.wait_ready()
    processes = family(server.pid)
    os.kill(server.pid, signal.SIGSTOP)
    server.stop(grace_seconds=0.5)
    assert all(map(is_gone, processes))
    assert server.poll() == -signal.SIGKILL


def test_server_without_its_reaper_is_killed(runtime, echo_repository, monkeypatch):
    monkeypatch.setattr(gateway_local.server, "REAPER", ("/no/such/shell",))
    server = EmbeddedTriton(runtime, echo_repository, on_log=lambda line: None)
    with pytest.raises(TritonRuntimeError, match="cannot start /no/such/shell"):
        server.start()
    assert server.poll() == -signal.SIGKILL


def test_dead_server_can_be_restarted_on_its_ports(runtime, echo_repository):
    server = EmbeddedTriton(runtime, echo_repository, on_log=lambda line: None)
    server.start()
    server.wait_ready()
    url, stubs = server.url, family(server.pid)[1:]
    os.kill(server.pid, signal.SIGKILL)
    assert wait_for(server.poll) == -signal.SIGKILL
    assert not server.ready()
    server.stop()
    assert all(map(is_gone, stubs))
    version = echo_repository / "broken" / "1"  # it costs the others nothing
    version.mkdir(parents=True)
    (version / "model.py").write_text("raise ValueError('half of a copy')")
    (version.parent / "config.pbtxt").write_text(ECHO_CONFIG.replace('"echo"', '"broken"'))
    with server:
        server.wait_ready()
        assert server.url == url
        assert echo(server, 7) == 7


@pytest.mark.parametrize("kind", ["grpc", "http", "metrics"])
def test_taken_port_is_named(runtime, echo_repository, kind):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = EmbeddedTriton(runtime, echo_repository, on_log=lambda line: None, **{f"{kind}_port": port})
        with pytest.raises(PortTaken, match=f"{kind} port {port} on 127.0.0.1 .*in use"):
            server.start()
    assert server.pid is None


def failure(runtime: TritonRuntime, repository: Path, **options: object) -> str:
    """Why a server does not become ready."""
    server = EmbeddedTriton(runtime, repository, on_log=lambda line: None)
    try:
        server.start()
        with pytest.raises(StartFailed) as failed:
            server.wait_ready(**options)
    finally:
        server.stop(grace_seconds=0.5)
    return str(failed.value)


NO_WEIGHTS = "raise ValueError('the weights are missing')\nimport"


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("1/model.py", "import", NO_WEIGHTS, ["failed to load 'echo' version 1", "Error: the weights are missing"]),
        ("config.pbtxt", "TYPE_INT32", "TYPE_INT33", ["TYPE_INT33"]),
    ],
)
def test_failed_start_shows_tritons_reason(runtime, echo_repository, file, old, new, words):
    path = echo_repository / "echo" / file
    path.write_text(path.read_text().replace(old, new, 1))
    reason = failure(runtime, echo_repository)
    assert all(word in reason for word in words)
    assert not [word for word in ("CUDA", "\\n") if word in reason]


def test_missing_model_file_names_the_export_command(runtime, model_repository, tmp_path):
    ignore = shutil.ignore_patterns("model.pt", "ensemble_model", "preprocessor")
    repository = Path(shutil.copytree(model_repository, tmp_path / "models", ignore=ignore))
    assert "classifier/1/model.pt: `gateway model add` writes" in failure(runtime, repository)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere", r"no model repository at .*/nowhere"),
        ("models/.ipynb_checkpoints", r"takes each folder .* remove .*/models/\.ipynb_checkpoints$"),
        *((name, rf"cannot handle spaces, or letters .*/{name}: move it") for name in ("my models", "möbel")),
    ],
)
def test_repository_that_triton_cannot_use_is_refused(runtime, tmp_path, name, reason):
    if name != "nowhere":
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(TritonRuntimeError, match=reason):
        EmbeddedTriton(runtime, tmp_path / name.partition("/")[0], on_log=print).start()


def test_missing_model_py_is_reported_before_triton_starts(runtime, echo_repository):
    """Triton 2.51 would not end its start."""
    (echo_repository / "echo" / "1" / "model.py").rename(echo_repository / "echo" / "model.py")
    with pytest.raises(TritonRuntimeError, match=r"there is no .*/echo/1/model\.py, .* or remove the model echo"):
        EmbeddedTriton(runtime, echo_repository, on_log=print).start()
    (echo_repository / "echo" / "2").mkdir()
    (echo_repository / "echo" / "model.py").rename(echo_repository / "echo" / "2" / "model.py")
    assert missing_code(echo_repository) == []


def test_start_timeout_is_reported(runtime, echo_repository):
    model = echo_repository / "echo" / "1" / "model.py"
    model.write_text(f"import threading\nthreading.Event().wait(60)\n{ECHO_MODEL}")
    assert "not ready after 1 s" in failure(runtime, echo_repository, timeout_seconds=1)


def test_error_lines_skip_repeats_and_missing_gpu_errors():
    failure = (
        "E1121 03:44:14.9 16925 model_lifecycle.cc:642] \"failed to load 'echo' version 1: boom\\n\\nAt:\\n  x\\n\""
    )
    log = [
        'E1121 03:44:14.507467 16925 server.cc:241] "CudaDriverHelper has not been initialized."',
        'I1121 03:44:14.508741 16925 model_lifecycle.cc:472] "loading: echo:1"',
        "[libprotobuf ERROR /tmp/protobuf/text_format.cc:337] Error parsing ModelConfig: 5:54: Unknown value.",
        failure,
        failure,
        "  a line that goes on",
        'I1121 03:44:14.9 16925 server.cc:1] "done"',
        "a line of a table",
    ]
    assert error_lines(log) == [
        "Error parsing ModelConfig: 5:54: Unknown value.",
        "failed to load 'echo' version 1: boom",
        "At:",
        "  x",
        "  a line that goes on",
    ]


def pids(server) -> set[int]:
    return {each.pid for each in processes(server.pid) if each.model}


@pytest.mark.slow
def test_load_of_models_that_have_not_changed_starts_no_process(runtime, tmp_path):
    """A load of a new version starts only that version's processes."""
    repository = write_repository(tmp_path / "models")
    config = repository / "net" / "config.pbtxt"
    config.write_text(f"{config.read_text()} version_policy {{ all {{ }} }}")
    with (
        running_triton(runtime, repository, load_models=("ensemble_model",)) as server,
        InferenceServerClient(server.url) as client,
    ):
        before = pids(server)
        client.load_model("ensemble_model")
        assert pids(server) == before
        shutil.copytree(repository / "net" / "1", repository / "net" / "2")
        client.load_model("ensemble_model")
        after = pids(server)
    assert before < after
    assert len(after) == len(before) + 1
