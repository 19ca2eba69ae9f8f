"""A model of two classes and requests by tritonclient, for tests of the Open Inference Protocol."""

import base64
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult

from gateway.inference.backend import Call, Row
from gateway.inference.backend import InferResult as Inferred
from tests.gateway.api.stub import Client, StubBackend

INFER = "/v2/models/ensemble_model/infer"
SCORES = np.array([0.25, 0.75], np.float32)
TEXT = b"not an image"


class Scorer(StubBackend):
    """Gives every image the same scores; records its calls."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__(fault)
        self.asked: list[Call] = []
        self.left_seconds: list[float] = []

    async def infer(self, call: Call) -> Inferred:
        self.asked.append(call)
        self.left_seconds.append(call.deadline.left_seconds)
        if self.fault is not None:
            raise self.fault
        assert call.selection is None
        rows = (Row(decoded=True, scores=SCORES),) * len(call.batch)
        return Inferred(call.model_name, call.model_version or "1", rows)

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        return ("cat", "dog: large")


def images(*contents: bytes, binary: bool = True) -> InferInput:
    """The input IMAGE."""
    array = np.array(contents, dtype=np.object_)
    return InferInput("IMAGE", [len(contents)], "BYTES").set_data_from_numpy(array, binary_data=binary)


def ask(client: Client, *contents: bytes, path: str = INFER, headers: dict[str, str] | None = None, **options: Any):
    """The answer to what tritonclient sends."""
    body, header = InferenceServerClient.generate_request_body([images(*contents)], **options)
    length = {"Inference-Header-Content-Length": str(header)}
    return client.post(path, content=body, headers={**length, **(headers or {})})


def result(answer: httpx.Response) -> InferResult:
    """What tritonclient reads of an answer."""
    assert answer.status_code == 200, answer.text
    header = answer.headers.get("Inference-Header-Content-Length")
    return InferenceServerClient.parse_response_body(
        answer.content, header_length=None if header is None else int(header)
    )


def in_json(*contents: bytes, **members: Any) -> dict[str, Any]:
    """A request in JSON."""
    data = [base64.b64encode(content).decode() for content in contents]
    return {"inputs": [{"name": "IMAGE", "shape": [len(data)], "datatype": "BYTES", "data": data}], **members}


def prediction(**options: Any) -> InferRequestedOutput:
    return InferRequestedOutput("PREDICTION", **options)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """The status and the sentence of an error."""
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    return answer.status_code, answer.json()["error"]
