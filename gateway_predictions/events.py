"""Events for a collector: the CloudEvents that KServe's logger sends, one for a request and one for its response.

KServe: pkg/logger/worker.go. CloudEvents 1.0, HTTP binding, binary mode: attributes are headers `ce-…`, and the body is
the data. The data of a request is an instance of KServe's protocol V1, the data of a response a prediction; both have
the other columns of the log's row as well.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import quote

import httpx

from gateway_predictions.frames import LogMessage, RowKind
from gateway_predictions.options import WriterOptions

REQUEST = "org.kubeflow.serving.inference.request"
RESPONSE = "org.kubeflow.serving.inference.response"
FEEDBACK = "triton-image-gateway.feedback"
TIMEOUT_SECONDS = 10.0
_SHOWN = "!#$&'()*+,/:;=?@[]{}<>|`^~-_."
"""Characters of attributes that are not percent-encoded, beside letters and digits (HTTP binding, section 3.1.3.2)."""
_MAY_HELP = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
}
"""Statuses of a collector that is not set up yet, or too busy: the event is sent again."""
_OF_REQUEST = ("width", "height", "format", "bytes", "brightness", "sharpness", "sha256", "seal")
_OF_RESPONSE = ("index", "version", "error", "labels", "class_ids", "scores", "multi_label", "entropy", "margin")
_OF_FEEDBACK = ("request_id", "index", "model", "label", "class_id", "key", "withdrawn", "drawn")
_OF_BOTH = ("reasons", "share", "key", "shadow_version", "shadow_class_id", "shadow_score")


class EventSink:
    """Posts events to a collector; a row is written once both of its events were taken.

    A collector that refuses an event with a status that stays, such as 400, does not get it again.
    """

    def __init__(self, options: WriterOptions) -> None:
        self._url = options.url
        self._source = f"http://{options.source or 'localhost'}/"
        self._client = httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False)

    def write(self, frames: list[LogMessage]) -> Iterator[int]:
        """See Sink.write: row by row."""
        while frames:
            taken = all(self._send(headers, body) for headers, body in events_of(frames[0], self._source))
            del frames[0]
            yield int(taken)

    def warning(self) -> str:
        """See Sink.warning: there is none."""
        return ""

    def _send(self, headers: dict[str, str], body: bytes) -> bool:
        """Send an event; False if it is refused. Raises httpx.HTTPError if sending it again may help."""
        response = self._client.post(self._url, headers=headers, content=body)
        if response.is_client_error and response.status_code not in _MAY_HELP:
            return False
        response.raise_for_status()
        if not response.is_success:
            raise httpx.HTTPStatusError(f"status {response.status_code}", request=response.request, response=response)
        return True


def events_of(frame: LogMessage, source: str) -> list[tuple[dict[str, str], bytes]]:
    """The headers and the data of a row's events."""
    row = frame.row
    number = f"{row['request_id']}/{row['index']}"
    if frame.kind is RowKind.FEEDBACK:
        data = {name: row[name] for name in _OF_FEEDBACK}
        return [(_headers(FEEDBACK, number, row, source), _json(data))]
    if row.get("shadow_version"):
        number += f"/shadow-{row['shadow_version']}"
    instance = {name: row[name] for name in _OF_REQUEST}
    if frame.image:
        instance["image_bytes"] = {"b64": b64encode(frame.image).decode()}
    prediction = {name: row[name] for name in _OF_RESPONSE}
    both = {name: row[name] for name in _OF_BOTH}
    return [
        (_headers(REQUEST, number, row, source), _json({"instances": [instance], **both})),
        (_headers(RESPONSE, number, row, source), _json({"predictions": [prediction], **both})),
    ]


def _headers(kind: str, number: str, row: dict[str, object], source: str) -> dict[str, str]:
    time = row["time"]
    assert isinstance(time, int)
    fields = row.get("fields")
    metadata = {name: [value] for name, value in fields.items()} if isinstance(fields, dict) else {}
    attributes = {
        "specversion": "1.0",
        "id": number,
        "type": kind,
        "source": source,
        "time": datetime.fromtimestamp(time / 1e6, UTC).isoformat().replace("+00:00", "Z"),
        "recordedtime": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "inferenceservicename": str(row["model"]),
        "namespace": "",
        "component": "predictor",
        "endpoint": "default",
        "metadata": json.dumps(metadata),
    }
    return {
        "content-type": "application/json",
        **{f"ce-{name}": quote(value, safe=_SHOWN) for name, value in attributes.items()},
    }


def _json(data: object) -> bytes:
    return json.dumps(data, allow_nan=False).encode()
