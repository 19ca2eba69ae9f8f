"""`gateway model …` with a repository in a bucket: several Triton servers follow a switch of versions under load."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from PIL import Image

from gateway_local.runtime.base import TritonRuntime
from tests.buckets import S3, s3_server
from tests.commands import gateway
from tests.gateway_models.networks.builders import Head, save_labels, save_torchscript
from tests.processes import running_gateway, wait_for
from tests.samples import encode
from tests.tritons import running_triton

URL = "s3://models/production"
ADDED = ("--resize", "40", "--crop", "32", "--mean", "0.5,0.4,0.3", "--std", "0.2,0.3,0.4")


@contextmanager
def follower(s3: S3, folder: Path, triton: str, log: Path):
    words = ["model", "pull", URL, str(folder), "--follow=1", f"--triton={triton}"]
    command = [sys.executable, "-m", "gateway", *words]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **s3.environment}, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.kill()
            process.wait()


class Load:
    """Requests from several threads, until it is stopped.

    With pauses: without them, the load alone would keep all cores busy, and the rest of the test would take minutes.
    """

    def __init__(self, url: str, image: bytes) -> None:
        self._url, self._image = f"{url}/predict?model=head", image
        self._stop = threading.Event()
        self.answers: list[tuple[int, str]] = []

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._stop.wait(0.05):
                response = client.post(self._url, content=self._image, headers={"Content-Type": "image/png"})
                version = response.json()["model"]["version"] if response.status_code == 200 else response.text
                self.answers.append((response.status_code, version))

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.long
def test_tritons_follow_a_switch_of_versions_without_a_failed_request(runtime: TritonRuntime, tmp_path: Path):
    labels = str(save_labels(tmp_path / "labels.txt"))
    networks = [str(save_torchscript(Head(seed=seed), tmp_path / f"head{seed}.pt")) for seed in (1, 2)]
    with ExitStack() as stack:
        s3 = stack.enter_context(s3_server(tmp_path / "s3", "models"))
        place = f"--model-repository={URL}"
        gateway("model", "add", networks[0], "--name=head", "--labels", labels, *ADDED, place, **s3.environment)
        tritons = []
        for number in (1, 2):
            folder = tmp_path / f"pod{number}" / "repository"
            gateway("model", "pull", URL, folder, **s3.environment)
            triton = stack.enter_context(running_triton(runtime, folder, on_log=lambda _: None))
            stack.enter_context(follower(s3, folder, triton.http_url, tmp_path / f"follower{number}.log"))
            tritons.append(triton)
        urls = ",".join(triton.url for triton in tritons)
        service = stack.enter_context(
            running_gateway(tmp_path / "gateway.log", triton_url=urls, model="head", load_models="*")
        )
        load = Load(service.url, encode(Image.effect_noise((64, 48), 90).convert("RGB"), "PNG"))
        with ThreadPoolExecutor(4) as threads:
            running = [threads.submit(load.run) for _ in range(4)]
            try:
                wait_for(lambda: len(load.answers) > 50)
                gateway("model", "add", networks[1], "--name=head", "--version=2", place, **s3.environment)
                gateway("model", "use", "head", "2", place, **s3.environment)
                wait_for(lambda: {version for _, version in load.answers[-40:]} == {"2"}, timeout_seconds=120)
                gateway("model", "use", "head", "1", place, **s3.environment)
                wait_for(lambda: {version for _, version in load.answers[-40:]} == {"1"}, timeout_seconds=120)
            finally:
                load.stop()
            for each in running:
                each.result()
        failed = [answer for answer in load.answers if answer[0] != 200]
        print(f"{len(load.answers)} requests, {len(failed)} failed")  # noqa: T201
        assert failed == []
        for number in (1, 2):
            assert "loaded head" in (tmp_path / f"follower{number}.log").read_text()
