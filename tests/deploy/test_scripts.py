"""The scripts that the chart mounts into pods, run as the pods run them."""

import contextlib
import json
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from deploy.generate import CHART
from tests.doubles.http import Asked, Reply, http_server
from tests.processes import free_port, python, running_gateway, wait_for
from tests.tritons import inferences

SCRIPTS = CHART / "files" / "scripts"


def run(script: str, *arguments: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """With no package but Python's own, as in NVIDIA's image; it must exit with `code`."""
    return python("-I", "-S", SCRIPTS / script, *arguments, code=code, env=variables, timeout=60)


@dataclass
class Server:
    """Fixed responses by path, `*` for any other, and the requests so far. The body of a redirect is its Location."""

    answers: dict[str, tuple[int, bytes]]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def reply(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        status, body = self.answers.get(asked.path, self.answers.get("*", (404, b"")))
        return Reply(status, body, {"Location": body.decode()} if 300 <= status < 400 else {})


@contextlib.contextmanager
def serving(answers: dict[str, tuple[int, bytes]]) -> Iterator[Server]:
    server = Server(answers)
    with http_server(server.reply) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server


ENSEMBLE = {
    "max_batch_size": 8,
    "input": [
        {"name": "RAW_IMAGE", "data_type": "TYPE_UINT8", "dims": [-1]},
        {"name": "RAW_IMAGE_LENGTH", "data_type": "TYPE_INT32", "dims": [1], "optional": True},
    ],
}
LOADED = {
    "/v2/repository/index": (200, b'[{"name": "flowers", "version": "1", "state": "READY"}]'),
    "/v2/models/flowers/config": (200, json.dumps(ENSEMBLE).encode()),
}
INFER = "/v2/models/flowers/infer"


def test_triton_that_infers_is_alive():
    with serving(LOADED | {INFER: (200, b"{}")}) as triton:
        for _ in range(2):
            assert run("alive.py", "flowers", "5", triton.url).stderr == ""
    images = [each.body for each in triton.asked if each.path == INFER]
    assert images[0] != images[1], "a cache could answer for the model"


def sent(config: object) -> dict[str, tuple[str, list[int], bytes]]:
    """The type, the shape and the data of each input that the probe sends to a model with a configuration."""
    answers = LOADED | {INFER: (200, b"{}"), "/v2/models/flowers/config": (200, json.dumps(config).encode())}
    with serving(answers) as triton:
        assert run("alive.py", "flowers", "5", triton.url).stderr == ""
    asked = next(each for each in triton.asked if each.path == INFER)
    position, body = int(asked.headers["inference-header-content-length"]), asked.body
    inputs = {}
    for given in json.loads(body[:position])["inputs"]:
        end = position + given["parameters"]["binary_data_size"]
        inputs[given["name"]] = (given["datatype"], given["shape"], body[position:end])
        position = end
    assert position == len(body)
    return inputs


@pytest.mark.parametrize(
    ("kind", "dims", "max_batch_size", "shape", "nbytes"),
    [
        ("FP16", [8, 8, 3], 4, [1, 8, 8, 3], 384),
        ("UINT8", [-1, 3, 8, 8], 0, [1, 3, 8, 8], 192),
        ("FP32", [3, -1, -1], 1, [1, 3, 224, 224], 602_112),
        ("STRING", [1], 4, [1, 1], 4),
    ],
)
def test_model_without_preprocessor_gets_noise_of_its_shape(kind, dims, max_batch_size, shape, nbytes):
    tensor = {"name": "x", "data_type": f"TYPE_{kind}", "dims": dims}
    more = {"name": "y", "data_type": "TYPE_FP32", "dims": [1], "optional": True}
    inputs = sent({"max_batch_size": max_batch_size, "input": [tensor, more]})
    assert list(inputs) == ["x"]
    datatype, given, content = inputs["x"]
    assert (datatype, given, len(content)) == ({"STRING": "BYTES"}.get(kind, kind), shape, nbytes)
    if kind == "FP32":
        values = struct.unpack(f"<{nbytes // 4}f", content)
        assert 0 <= min(values) < max(values) <= 1


FAULT = b'{"error":"CUDA error: device-side assert triggered"}'
FULL = b'{"error":"[request id: 1] Exceeds maximum queue size"}'


@pytest.mark.parametrize(
    ("answers", "code", "words"),
    [
        *((LOADED | {INFER: (status, FAULT)}, 1, "device-side assert") for status in (400, 500, 503)),
        (LOADED | {INFER: (503, FULL)}, 0, ""),
        ({"/v2/repository/index": (200, b"[]"), INFER: (400, b"not ready")}, 0, ""),
    ],
    ids=["400", "500", "503", "full queue", "model that is reloaded"],
)
def test_triton_is_alive_unless_its_model_fails(answers, code, words):
    with serving(answers) as triton:
        done = run("alive.py", "flowers", "5", triton.url, code=code)
    assert words in done.stderr


READY = {"/v2/health/ready": (200, b"")}


def test_start_is_complete_with_the_model():
    with serving(LOADED | READY) as triton:
        done = run("alive.py", "flowers", "5", "--loaded", triton.url)
    assert done.stderr == ""
    assert [each.path for each in triton.asked] == ["/v2/health/ready", "/v2/repository/index"]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"/v2/health/ready": (503, b"")}, "is not ready: 503"),
        ({**READY, "/v2/repository/index": (200, b"[]")}, "it has none"),
        (
            {**READY, **LOADED},
            "Triton has no model tulips: set triton.probes.model to a model's name; it has flowers",
        ),
        (
            {**READY, "/v2/repository/index": (200, b'[{"name":"tulips","state":"UNAVAILABLE","reason":"no file"}]')},
            "has not loaded the model tulips: no file",
        ),
    ],
)
def test_start_fails_without_the_model(answers, words):
    """A wrong name must end the installation, instead of a liveness probe that never fails."""
    with serving(answers) as triton:
        done = run("alive.py", "tulips", "5", "--loaded", triton.url, code=1)
    assert words in done.stderr


def test_unreachable_triton_is_not_alive():
    done = run("alive.py", "flowers", "5", f"http://127.0.0.1:{free_port()}", code=1)
    assert "does not answer" in done.stderr


@pytest.mark.parametrize("model", ["ensemble_model", "classifier"])
def test_probe_sends_the_inputs_of_an_ensemble_and_of_a_network(light_triton, model):
    before = inferences(light_triton, model)
    assert run("alive.py", model, "60", light_triton.http_url).stderr == ""
    wait_for(lambda: inferences(light_triton, model) > before)


def test_helm_test_sends_a_key_and_reads_the_result():
    result = {"status": "ok", "predictions": [{"label": "cat", "score": 1}]}
    answers = {"/health/ready": (200, b"{}"), "/predict": (200, json.dumps({"results": [result]}).encode())}
    with serving(answers) as gateway:
        done = run("classify.py", gateway.url, GATEWAY_API_KEY="k")
        run("classify.py", gateway.url, ONLY_READY="1")
    assert "cat" in done.stdout
    assert [each.headers["x-api-key"] for each in gateway.asked if each.path == "/predict"] == ["k"]


@pytest.mark.parametrize(
    ("status", "words"),
    [(302, "answers 302"), (401, "401: {body}")],
    ids=["a redirect that is not followed", "an error"],
)
def test_helm_test_fails_with_the_message_of_the_response(status, words):
    with serving({}) as elsewhere, serving({"/health/ready": (200, b"{}")}) as gateway:
        body = f"{elsewhere.url}/predict"
        gateway.answers["/predict"] = (status, body.encode())
        done = run("classify.py", gateway.url, GATEWAY_API_KEY="k", code=1)
    assert words.format(body=body) in done.stderr
    assert elsewhere.asked == []


def test_helm_test_passes_at_a_real_gateway(light_triton, tmp_path):
    with running_gateway(tmp_path / "log", triton_url=light_triton.url) as gateway:
        run("classify.py", gateway.url)
