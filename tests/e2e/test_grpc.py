"""gRPC in front of a real Triton: tritonclient.grpc unchanged, streams, sequences and workers."""

import queue
import re
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferRequestedOutput
from tritonclient.http import InferenceServerClient as HttpClient
from tritonclient.http import InferInput as HttpInput
from tritonclient.http import InferRequestedOutput as HttpOutput
from tritonclient.utils import InferenceServerException

from tests.asking import encode
from tests.gateway.plugins.oip.grpc_api.serving import images
from tests.processes import PROJECT, Gateway, free_port, python

MODEL = "ensemble_model"
IMAGE = encode(np.full((48, 64, 3), 128, np.uint8), ".png")


PORT = free_port()


@pytest.fixture(scope="module")
def grpc_gateway(start_gateway, light_triton) -> Iterator[Gateway]:
    with start_gateway(triton_url=light_triton.url, grpc_port=PORT) as running:
        yield running


@pytest.fixture
def grpc_client(grpc_gateway) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(f"127.0.0.1:{PORT}") as client:
        yield client


def test_scores_are_those_of_http_and_the_log_says_that_a_call_was_grpc(grpc_gateway, grpc_client):
    result = grpc_client.infer(MODEL, images(IMAGE, IMAGE), headers={"x-request-id": "by-grpc"}, client_timeout=60)
    with grpc_gateway.client() as http:
        best = http.post("/predict", files={"f": IMAGE}).json()["results"][0]["predictions"][0]
    assert result.as_numpy("PREDICTION").argmax(axis=1).tolist() == [best["class_id"]] * 2
    (event,) = [event for event in grpc_gateway.events() if event.get("request_id") == "by-grpc"]
    assert (event["event"], event["protocol"], event["path"]) == ("request", "grpc", f"/v2/models/{MODEL}/infer")


def test_sequence_continues_over_calls_streams_and_http(grpc_gateway, grpc_client):
    first = grpc_client.infer(MODEL, images(IMAGE), sequence_id=12, sequence_start=True)
    results: queue.SimpleQueue = queue.SimpleQueue()
    grpc_client.start_stream(lambda result, error: results.put((result, error)))
    for _ in range(3):
        grpc_client.async_stream_infer(MODEL, images(IMAGE), sequence_id=12)
    streamed = [results.get(timeout=60) for _ in range(3)]
    grpc_client.stop_stream()
    body, length = http_request(IMAGE, sequence_id=12, sequence_end=True)
    with grpc_gateway.client() as http:
        answer = http.post(f"/v2/models/{MODEL}/infer", content=body, headers=length)
    assert [error for _, error in streamed] == [None] * 3
    frames = [result.as_numpy("SEQUENCE_FRAMES").tolist() for result in (first, *(result for result, _ in streamed))]
    (last,) = [output["data"] for output in answer.json()["outputs"] if output["name"] == "SEQUENCE_FRAMES"]
    assert [*frames, last] == [[1], [2], [3], [4], [5]]
    with pytest.raises(InferenceServerException, match="no state"):
        grpc_client.infer(MODEL, images(IMAGE), sequence_id=12)


def http_request(image: bytes, **options: object) -> tuple[bytes, dict[str, str]]:
    """A request by tritonclient.http, with its outputs in JSON."""
    tensor = HttpInput("IMAGE", [1], "BYTES").set_data_from_numpy(np.array([image], dtype=np.object_))
    outputs = [HttpOutput("SEQUENCE_FRAMES", binary_data=False)]
    body, header = HttpClient.generate_request_body([tensor], outputs=outputs, **options)
    return body, {"Inference-Header-Content-Length": str(header)}


@pytest.mark.parametrize(("page", "lines"), [("grpc", 1), ("streams", 3)])
def test_documented_clients_run(grpc_gateway, page, lines):
    text = (PROJECT / "docs" / "guides" / f"{page}.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[-1]
    code = code.replace("127.0.0.1:8081", f"127.0.0.1:{PORT}").replace(
        "127.0.0.1:8080", grpc_gateway.url.removeprefix("http://")
    )
    assert len(python("-c", code).stdout.splitlines()) == lines


def test_workers_share_the_port(start_gateway, light_triton):
    port = free_port()
    with start_gateway(triton_url=light_triton.url, grpc_port=port, workers=2) as gateway:
        for number in range(8):  # each client has a new connection
            options = [("grpc.use_local_subchannel_pool", 1)]
            with InferenceServerClient(f"127.0.0.1:{port}", channel_args=options) as client:
                output = [InferRequestedOutput("PREDICTION", class_count=1)]
                result = client.infer(MODEL, images(IMAGE), outputs=output, sequence_id=13, sequence_start=number == 0)
                assert result.as_numpy("PREDICTION").shape == (1, 1)
        metrics = httpx.get(f"{gateway.url}/metrics", timeout=60).text
    assert re.search(r'gateway_requests_total\{[^}]*route="/v2/models/\{name\}/infer"[^}]*\} 8.0', metrics)
