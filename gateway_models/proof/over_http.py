"""The scores that a gateway's clients get, over HTTP."""

import base64
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
from numpy.typing import NDArray

from gateway.errors import UserError

TIMEOUT_SECONDS = 60.0


class GatewayRefused(UserError):
    """The gateway does not answer, or does not take part: it is away, wants a key, or has no such model."""


class PictureRefused(Exception):
    """The gateway has no answer for a picture; the message is the gateway's own."""


def described(url: str, model: str, api_key: str | None = None) -> dict[str, Any]:
    """What a gateway says of a model: GET /models/NAME; raises GatewayRefused."""
    path = f"{url.rstrip('/')}/models/{model}"
    try:
        response = httpx.get(path, headers=_headers(api_key), timeout=TIMEOUT_SECONDS)
        answer: dict[str, Any] = response.json()
        if response.is_success:
            return {**answer, "labels": list(answer["labels"]), "versions": list(answer["versions"])}
        said = str(answer["detail"])
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise GatewayRefused(f"{path} does not answer: {exc}") from exc
    except (ValueError, LookupError, TypeError) as exc:
        raise GatewayRefused(f"{path} answers, but not as a gateway does") from exc
    raise GatewayRefused(f"{path}: {said}")


def _headers(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


class OverHttp:
    """One version of a model behind a gateway, asked by the Open Inference Protocol, which has every class's score."""

    def __init__(self, url: str, model: str, version: int, api_key: str | None = None) -> None:
        self._path = f"{url.rstrip('/')}/v2/models/{model}/versions/{version}/infer"
        self._client = httpx.Client(headers=_headers(api_key), timeout=TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def scores(self, data: bytes) -> NDArray[np.float32]:
        """fp32 [classes] of a file; raises what `answer` raises."""
        return self.answer(data)[0]

    def answer(self, data: bytes) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """fp32 [classes] of a file, and its vector fp32 [size] where the model gives some.

        Raises PictureRefused, or GatewayRefused where others would be refused too.
        """
        image = {
            "name": "IMAGE",
            "datatype": "BYTES",
            "shape": [1],
            "data": [base64.b64encode(data).decode()],
        }
        try:
            response = self._client.post(self._path, json={"inputs": [image]})
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise GatewayRefused(f"{self._path} does not answer: {exc}") from exc
        try:
            answer: dict[str, Any] = response.json()
            if response.is_success:
                given = {output["name"]: output["data"] for output in answer["outputs"]}
                vector = given.get("FEATURES")
                scores = np.asarray(given["PREDICTION"], np.float32)
                return scores, None if vector is None else np.asarray(vector, np.float32)
            said = str(answer["error"])
        except (ValueError, LookupError, TypeError) as exc:
            raise GatewayRefused(f"{self._path} answers {response.status_code}, and not as a gateway does") from exc
        if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND}:
            raise GatewayRefused(f"{self._path}: {said}")
        raise PictureRefused(said)
