"""Parity and proofs: what they compare and measure, and what they say."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gateway_local.paths import SAMPLE, SHIPPED_EXAMPLES
from gateway_models.proof.over_http import GatewayRefused, ImageRefused, OverHttp
from gateway_models.proof.parity import Comparison, Parity
from gateway_models.proof.parity_report import report
from gateway_models.proof.prove import Check, Proof, send_one
from gateway_models.proof.reference import shown
from gateway_models.proof.serving import cpu_seconds, cpu_seconds_used
from tests.commands import gateway
from tests.doubles.backend import PNG, StubBackend, scored
from tests.processes import free_port, wait_for
from tests.services import stub_service

SCORES = np.array([0.1, 0.7, 0.2], np.float32)


def test_every_class_has_the_score_that_clients_get():
    backend = StubBackend(scored(*SCORES))
    with stub_service(backend) as url, OverHttp(f"{url}/", "flowers", 2) as gateway:
        scores, vector = gateway.answer(PNG)
        assert np.array_equal(scores, SCORES)
        assert vector is None
        with pytest.raises(ImageRefused, match="not a JPEG, PNG"):
            gateway.answer(b"no picture")
    (call,) = backend.calls
    assert (call.model_name, call.model_version, call.selection) == ("flowers", "2", None)


def test_unreachable_gateway_ends_the_comparison():
    away = f"http://127.0.0.1:{free_port()}"
    says = pytest.raises(GatewayRefused, match="/v2/models/flowers/versions/1/infer does not answer")
    with OverHttp(away, "flowers", 1) as gateway, says:
        gateway.answer(PNG)


CLEAR = Image.new("RGBA", (2, 2), (255, 0, 0, 0))


@pytest.mark.parametrize(
    ("image", "pixel"),
    [
        (CLEAR, (255, 255, 255)),
        (CLEAR.convert("RGB"), (255, 0, 0)),
        (Image.fromarray(np.full((2, 2), 0x8080, np.uint16)), (0x80, 0x80, 0x80)),
    ],
    ids=["transparent, on white", "RGB", "gray of 16 bits"],
)
def test_reference_shows_an_image(image, pixel):
    assert shown(image).getpixel((0, 0)) == pixel


@pytest.mark.parametrize("on_gpu", [True, False])
def test_differences_on_a_gpu_come_with_tf32_and_its_switch(capsys, on_gpu):
    served, expected = np.float32([0.6, 0.4]), np.float32([0.606, 0.394])
    stages = {"decode": served * 0, "resize": served * 0, "model": served - expected}
    report(Parity([Comparison(Path("cat.jpg"), served, expected, stages)], [], on_gpu), ["cat", "dog"], 1e-3)
    output = capsys.readouterr().out
    assert ["TF32" in output, "NVIDIA_TF32_OVERRIDE=0" in output] == [on_gpu] * 2


CHECKS = ["devices", "sizes", "cold start", "parity", "throughput", "stages", "network", "memory", "killed process"]


@pytest.mark.long
@pytest.mark.triton
def test_this_machine_is_proved(model_repository, tmp_path, monkeypatch):
    monkeypatch.setenv("GATEWAY_LOG_LEVEL", "error")
    gateway("prove", "--seconds", 3, "--into", tmp_path, "--model-repository", model_repository)
    document = json.loads((tmp_path / "prove.json").read_text())
    checks = {each["name"]: each for each in document["checks"]}
    assert list(checks) == CHECKS
    assert document["passed"]
    assert checks["parity"]["figures"]["largest_difference"] < 1e-3
    throughput = checks["throughput"]["figures"]
    assert throughput["failed"] == 0
    assert 0 < throughput["p50_ms"] <= throughput["p99_ms"]
    assert {"the API ms", "Triton's server ms", "preprocessor ms", "classifier ms"} == checks["stages"][
        "figures"
    ].keys()
    assert checks["memory"]["figures"].keys() >= {"preprocessor", "classifier"}
    assert checks["killed process"]["figures"]["seconds"] < 60
    assert (tmp_path / "prove.txt").read_text().endswith("passed\n")


@pytest.mark.parametrize(("passed", "wanted"), [((True, None), True), ((True, False), False), ((), True)])
def test_proof_fails_with_one_check(passed, wanted):
    proof = Proof({"cores": 2}, [Check(f"check {number}", each, ["why"]) for number, each in enumerate(passed)])
    assert proof.passed is wanted
    assert proof.as_json()["passed"] is wanted
    assert proof.as_text()[-1] == ("passed" if wanted else "FAILED")


def test_page_shows_text_as_text():
    proof = Proof({"model": "<b>"}, [Check("<i>", None, ["a < b", "second"])])
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, _: tags.append(tag)
    parser.feed(proof.as_html())
    assert not {"b", "i"} & set(tags)
    assert tags.count("br") == 1


def test_image_to_a_closed_port_is_not_classified():
    assert not send_one(1, (SHIPPED_EXAMPLES / SAMPLE).read_bytes())


def test_processes_of_the_session_are_counted():
    """The time of a process that ended meanwhile is not subtracted."""
    assert cpu_seconds_used({1: 5.0, 2: 1.0}, {2: 1.5, 3: 0.25}) == 0.75
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as busy:
        try:
            before = cpu_seconds(busy.pid)
            assert set(before) == {busy.pid}
            wait_for(lambda: cpu_seconds_used(before, cpu_seconds(busy.pid)) > 0)
        finally:
            busy.kill()
