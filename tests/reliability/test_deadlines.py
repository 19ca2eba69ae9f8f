"""Deadlines, disconnects, and models that break the contract."""

import asyncio
import contextlib
import shutil
import threading
from pathlib import Path

import httpx
import pytest

from gateway.findings import Level
from gateway_local.doctor.tritons import tritons
from tests.photos import photo, unlike_any
from tests.processes import wait_for
from tests.reliability.conftest import classify, endpoints, ready
from tests.settings import Settings

pytestmark = [pytest.mark.triton, pytest.mark.slow]


@pytest.fixture
def repository(light_repository: Path, tmp_path: Path) -> Path:
    """A copy of the model repository, for a test to change."""
    return Path(shutil.copytree(light_repository, tmp_path / "models", copy_function=shutil.copy))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


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
