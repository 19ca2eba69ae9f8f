"""Has a gateway classify files over HTTP."""

import base64
from collections.abc import Generator, Sequence
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from gateway.errors import UserError
from gateway_client.direct import DIRECT
from gateway_client.files import MAX_FILE_BYTES, read_file
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import SampleAnswer

TIMEOUT_SECONDS = 60.0


class GatewayRefused(UserError):
    """The gateway is not reachable, requires an API key, or has no such model."""


class ImageRefused(Exception):
    """The gateway refused an image; the message is the gateway's own."""


def described(url: str, model: str, api_key: str | None = None) -> dict[str, Any]:
    """A gateway's description of a model: GET /models/NAME; raises GatewayRefused."""
    path = f"{url.rstrip('/')}/models/{model}"
    try:
        with _client(api_key) as client:
            response = client.get(path)
        answer: dict[str, Any] = response.json()
        if response.is_success:
            return {**answer, "labels": list(answer["labels"]), "versions": list(answer["versions"])}
        reason = str(answer["detail"])
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise GatewayRefused(f"{path} does not answer: {exc}") from exc
    except (ValueError, LookupError, TypeError) as exc:
        raise GatewayRefused(f"the answer of {path} does not come from a gateway") from exc
    raise GatewayRefused(f"{path}: {reason}")


def _client(api_key: str | None) -> httpx.Client:
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    return httpx.Client(headers=headers, timeout=TIMEOUT_SECONDS, mounts=DIRECT)


def predict_over_http(
    url: str, model: str, versions: Sequence[int], samples: Sequence[Sample], api_key: str | None = None
) -> Generator[tuple[SampleAnswer, ...]]:
    """Have a gateway classify each file, sent unchanged, by some versions: `evaluate.predict_each` over HTTP.

    The Open Inference Protocol returns the scores of all classes. Raises GatewayRefused where every file would be
    refused.
    """
    paths = [f"{url.rstrip('/')}/v2/models/{model}/versions/{version}/infer" for version in versions]
    with _client(api_key) as client:
        for sample in samples:
            try:
                data = read_file(sample.path, MAX_FILE_BYTES)
                answers = [_answer(client, path, data) for path in paths]
            except (ImageRefused, OSError) as exc:
                yield tuple(SampleAnswer(sample, None, str(exc)) for _ in versions)
                continue
            yield tuple(SampleAnswer(sample, scores, embedding=embedding) for scores, embedding in answers)


def _answer(client: httpx.Client, path: str, data: bytes) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """The scores fp32 [classes] of a file, and its embedding fp32 [size] or None; raises ImageRefused for this file."""
    image = {"name": "IMAGE", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(data).decode()]}
    try:
        response = client.post(path, json={"inputs": [image]})
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise GatewayRefused(f"{path} does not answer: {exc}") from exc
    try:
        answer: dict[str, Any] = response.json()
        if response.is_success:
            given = {output["name"]: output["data"] for output in answer["outputs"]}
            embedding = given.get("FEATURES")
            scores = np.asarray(given["PREDICTION"], np.float32)
            return scores, None if embedding is None else np.asarray(embedding, np.float32)
        reason = str(answer["error"])
    except (ValueError, LookupError, TypeError) as exc:
        raise GatewayRefused(
            f"{path} returned status {response.status_code}, but its body does not come from a gateway"
        ) from exc
    if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND}:
        raise GatewayRefused(f"{path}: {reason}")
    raise ImageRefused(reason)
