"""Deadlines, disconnects, and models that break the contract."""

import asyncio
import contextlib
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from gateway.findings import Level
from gateway_local.doctor.tritons import tritons
from gateway_local.runtime.base import TritonRuntime
from tests.photos import photo, unlike_any
from tests.processes import wait_for
from tests.reliability.conftest import classify, endpoints, outcomes, ready
from tests.settings import Settings
from tests.tritons import running_triton

pytestmark = [pytest.mark.triton, pytest.mark.slow]

HELD_BYTES = 1_000
"""Larger images wait at the gate; the gateway's probes are smaller and pass."""


@dataclass(frozen=True)
class Gate:
    """Holds the preprocessor's executions, so that no test depends on how long something takes.

    A closed gate lets through the given number of executions, and holds all others until it is opened.
    """

    folder: Path

    def close(self, *, passed: int = 0) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        staged = self.folder.with_suffix(".new")
        staged.mkdir()
        for number in range(passed):
            (staged / str(number)).touch()
        staged.rename(self.folder)

    def open(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def passed_all(self) -> bool:
        """Whether as many executions as were allowed have passed."""
        return not any(self.folder.iterdir())

    @property
    def waiting(self) -> str:
        """Python for the beginning of `execute`."""
        return f"""
        gate = __import__("pathlib").Path({str(self.folder)!r})
        tensors = [pb_utils.get_input_tensor_by_name(request, "RAW_IMAGE") for request in requests]
        while max(tensor.shape()[1] for tensor in tensors) > {HELD_BYTES} and gate.exists():
            passes = list(gate.glob("*"))
            if passes:
                passes[0].unlink()
                break
            __import__("time").sleep(0.01)
"""


@pytest.fixture
def repository(light_repository: Path, tmp_path: Path) -> Path:
    """A copy of the model repository, for a test to change."""
    return Path(shutil.copytree(light_repository, tmp_path / "models", copy_function=shutil.copy))


@pytest.fixture(scope="module")
def gated_triton(runtime: TritonRuntime, light_repository: Path, tmp_path_factory: pytest.TempPathFactory):
    """A Triton whose preprocessor has one request in each execution, and waits at a gate before it."""
    folder = tmp_path_factory.mktemp("gated")
    repository, gate = folder / "models", Gate(folder / "gate")
    shutil.copytree(light_repository, repository, copy_function=shutil.copy)
    config = repository / "preprocessor" / "config.pbtxt"
    text, found = re.subn(r"dynamic_batching \{.*?^\}", "", config.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert found == 1
    config.write_text(text)
    change(repository / "preprocessor" / "1" / "model.py", "        answers = [", f"{gate.waiting}        answers = [")
    with running_triton(runtime, repository) as server:
        yield server, gate


@pytest.fixture
def gate(gated_triton) -> Iterator[Gate]:
    """The gate of `gated_triton`, open before the test and after it."""
    _, gate = gated_triton
    gate.open()
    yield gate
    gate.open()


@pytest.fixture
def start_gated(gated_triton, start_gateway):
    """Starts a gateway before `gated_triton`."""
    triton, _ = gated_triton
    # A probe waits behind the images that are held, and must not time out.
    return partial(start_gateway, triton_url=triton.url, ready_interval_seconds=300, ready_timeout_seconds=300)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_slow_model_gets_504_and_keeps_answered_files(gate, start_gated):
    with start_gated(batch_max_images=1) as gateway, gateway.client() as http:
        cat = photo("cat")
        gate.close()
        started = time.monotonic()
        answer = http.post("/predict", params={"timeout": 0.1}, files={"f": ("c.jpg", unlike_any(cat))})
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
        # Far less than the default deadline of 30 s.
        assert time.monotonic() - started < 15
        gate.open()
        wait_for(lambda: gateway.metric("gateway_images_in_flight") == 0)

        gate.close(passed=2)
        files = [("f", (f"{index}.jpg", unlike_any(cat))) for index in range(12)]
        answer = http.post("/predict", params={"timeout": 4}, files=files)
        assert gate.passed_all
        assert answer.status_code == 200
        assert Counter(outcomes(answer)) == {"ok": 2, "deadline_exceeded": 10}
        assert answer.json()["summary"]["ok"] == 2


def test_disconnect_stops_the_work_and_affects_no_other_client(gate, start_gated, gated_triton):
    triton, _ = gated_triton
    with start_gated() as gateway, gateway.client() as http:
        gate.close()
        # Fewer than there are permits: the disconnect is noticed once the body is read and no image waits for a permit.
        files = [("f", (f"{index}.jpg", unlike_any(photo("cat")))) for index in range(20)]
        with pytest.raises(httpx.ReadTimeout):
            http.post("/predict", files=files, timeout=httpx.Timeout(60, read=0.4))
        wait_for(lambda: gateway.metric("gateway_client_disconnects_total") == 1)
        gate.open()
        wait_for(lambda: gateway.metric("gateway_images_in_flight") == 0)
        assert triton.alive
        assert http.post("/predict", files={"f": ("c.jpg", photo("cat"))}).status_code == 200
        wait_for(lambda: len(events_of(gateway)) == 2)
        assert [event["status"] for event in events_of(gateway)] == [499, 200]
        assert events_of(gateway)[0]["client_gone"] is True


def test_many_disconnects_do_not_crash_triton(start_triton, start_gateway):
    triton = start_triton()
    with start_gateway(triton_url=triton.url) as gateway:

        def come_and_go(seconds: float) -> None:
            with gateway.client() as http:
                for _ in range(40):
                    with contextlib.suppress(httpx.TimeoutException):
                        http.post("/predict", files={"f": ("c.jpg", unlike_any(photo("cat")))}, timeout=seconds)

        clients = [threading.Thread(target=come_and_go, args=(0.005 * number,)) for number in range(1, 13)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert triton.alive
        wait_for(lambda: ready_by_now(gateway))


def test_contract_error_names_the_configuration_line(repository, start_triton, start_gateway):
    ensemble = repository / "ensemble_model" / "config.pbtxt"
    change(ensemble, 'name: "IMAGE_STATUS"', 'name: "STATUS"')
    change(ensemble, 'key: "IMAGE_STATUS" value: "IMAGE_STATUS"', 'key: "IMAGE_STATUS" value: "STATUS"')
    triton = start_triton(repository)
    triton.wait_ready()
    with start_gateway(triton_url=triton.url, wait_ready=False) as gateway:
        error = wait_for(lambda: endpoints(gateway)[0]["error"])
        assert error["code"] == "contract_broken"
        assert error["message"].startswith("ensemble_model/config.pbtxt: output 'STATUS' is not part of the contract")
        answer = classify(gateway).json()
        (result,) = answer.get("results", [answer])
        assert result.get("error", result)["code"] == "contract_broken"


def test_missing_labels_and_queue_policy_are_warnings(repository, start_triton, start_gateway):
    classifier = repository / "classifier" / "config.pbtxt"
    change(classifier, 'label_filename: "labels.txt"', "")
    change(classifier, "dynamic_batching {", "dynamic_batching { default_queue_policy { max_queue_size: 1024 }")
    triton = start_triton(repository)
    triton.wait_ready()
    with start_gateway(triton_url=triton.url) as gateway:
        (endpoint,) = endpoints(gateway)
        labels, batching = endpoint["warnings"]
        assert labels.startswith("classifier/config.pbtxt: output has no label_filename")
        assert batching.startswith("classifier/config.pbtxt: with a queue policy")
    findings = asyncio.run(tritons(Settings(_env_file=None, triton_url=triton.url)))
    (finding,) = [finding for finding in findings if finding.check == "model"]
    assert finding.level is Level.WARN
    assert finding.text.startswith("classifier: with a queue policy")


def ready_by_now(gateway) -> bool:
    """Whether it is ready; the check may time out while abandoned requests are still running."""
    try:
        return ready(gateway)
    except httpx.TimeoutException:
        return False


def events_of(gateway) -> list[dict]:
    return [event for event in gateway.events() if event.get("path") == "/predict"]
