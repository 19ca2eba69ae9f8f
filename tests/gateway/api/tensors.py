"""A model of two classes and requests by tritonclient, for tests of the Open Inference Protocol."""

import base64
from typing import Any

import httpx
import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult

from tests.doubles.backend import Answer, StubBackend, scored
from tests.services import Client

INFER = "/v2/models/ensemble_model/infer"
SCORES = np.array([0.25, 0.75], np.float32)
TEXT = b"not an image"


def scorer(answer: Answer | None = None) -> StubBackend:
    """A backend that gives every image the same scores."""
    return StubBackend(scored(*SCORES) if answer is None else answer, labels=("cat", "dog: large"))


def images(*contents: bytes, binary: bool = True) -> InferInput:
    array = np.array(contents, dtype=np.object_)
    return InferInput("IMAGE", [len(contents)], "BYTES").set_data_from_numpy(array, binary_data=binary)


def ask(client: Client, *contents: bytes, path: str = INFER, headers: dict[str, str] | None = None, **options: Any):
    """The answer to tritonclient's request."""
    body, header = InferenceServerClient.generate_request_body([images(*contents)], **options)
    length = {"Inference-Header-Content-Length": str(header)}
    return client.post(path, content=body, headers={**length, **(headers or {})})


def result(answer: httpx.Response) -> InferResult:
    """An answer as tritonclient reads it."""
    assert answer.status_code == 200, answer.text
    header = answer.headers.get("Inference-Header-Content-Length")
    return InferenceServerClient.parse_response_body(
        answer.content, header_length=None if header is None else int(header)
    )


def in_json(*contents: bytes, **members: Any) -> dict[str, Any]:
    data = [base64.b64encode(content).decode() for content in contents]
    return {"inputs": [{"name": "IMAGE", "shape": [len(data)], "datatype": "BYTES", "data": data}], **members}


def prediction(**options: Any) -> InferRequestedOutput:
    return InferRequestedOutput("PREDICTION", **options)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """The status and the sentence of an error."""
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    return answer.status_code, answer.json()["error"]
