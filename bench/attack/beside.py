"""Well-behaved clients: what another client asks for during an attack, and how its answers are checked."""

import base64
import http.client
import http.server
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from bench.attack.parsers import INFER, JSON
from bench.attack.service import Running
from bench.attack.target import MULTIPART, Target
from bench.attack.websocket import BINARY, Stream
from bench.http_load import form
from bench.photos import coffee, unlike_any
from gateway_local.hosts import LOOPBACK

_sequences = itertools.count(1)
WELL_BEHAVED = "well-behaved"
"""The request id of the well-behaved clients, which distinguishes their log events from the attacker's."""
PHOTO_PORT = 18_398
"""The port of the host from which the well-behaved client's images by URL come."""
GIVE_UP_SECONDS = 30.0


Request = tuple[str, bytes, str]
"""Path, body and content type of a request over HTTP."""


class Failed(Exception):
    """An answer was not what a well-behaved client must get."""


class Client(Protocol):
    """A client with one connection."""

    def ask(self) -> str:
        """Send one request; returns the label that it gets, "" for an answer without one. Raises Failed or OSError."""
        ...

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        ...


@dataclass
class HttpClient:
    """Sends requests of one kind over HTTP; `request` makes each."""

    running: Running
    request: Callable[[], Request]

    def __post_init__(self) -> None:
        self._connection = self.running.connect(GIVE_UP_SECONDS)

    def ask(self) -> str:
        """See Client."""
        path, body, content_type = self.request()
        key = {"X-API-Key": self.running.key} if self.running.key else {}
        try:
            self._connection.request(
                "POST", path, body, {"Content-Type": content_type, "X-Request-ID": WELL_BEHAVED, **key}
            )
            answer = self._connection.getresponse()
            content = json.loads(answer.read())
        except http.client.HTTPException as exc:
            raise Failed(type(exc).__name__) from exc
        if answer.status != http.HTTPStatus.OK:
            raise Failed(f"status {answer.status}")
        return _label(content)

    def close(self) -> None:
        """See Client."""
        self._connection.close()


class GrpcClient:
    """Calls ModelInfer."""

    def __init__(self, running: Running) -> None:
        self._channel = grpc.insecure_channel(
            f"{LOOPBACK}:{running.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]
        )
        self._metadata = [("x-request-id", WELL_BEHAVED)] + ([("x-api-key", running.key)] if running.key else [])

    def ask(self) -> str:
        """See Client."""
        message = grpc_request(unlike_any(coffee().data))
        try:
            answer = GRPCInferenceServiceStub(self._channel).ModelInfer(message, GIVE_UP_SECONDS, self._metadata)
        except grpc.RpcError as exc:
            raise Failed(exc.code().name) from exc
        return _class(answer.raw_output_contents[0][4:].decode())

    def close(self) -> None:
        """See Client."""
        self._channel.close()


def _label(content: dict[str, Any]) -> str:
    """The label in a response, also in one of the Open Inference Protocol; "" for an explanation. Raises Failed."""
    if "outputs" in content:
        return _class(content["outputs"][0]["data"][0])
    for result in content.get("results", ()):
        if result["error"]:
            raise Failed(result["error"]["code"])
        return str(result["predictions"][0]["label"])
    return ""


def _class(text: str) -> str:
    """The label in `score:index:label`."""
    return text.split(":", 2)[2]


@dataclass
class StreamClient:
    """Opens a stream for each request, and sends it one frame."""

    running: Running

    def ask(self) -> str:
        """See Client."""
        target = Target(LOOPBACK, self.running.service.port, key=self.running.key)
        with Stream(target, "/stream", f"X-Request-ID: {WELL_BEHAVED}") as stream:
            stream.send(BINARY, unlike_any(coffee().data))
            if not stream.wait(GIVE_UP_SECONDS, messages=1) or not stream.messages:
                raise Failed(f"stream {stream.status}")
            return str(json.loads(stream.last)["predictions"][0]["label"])

    def close(self) -> None:
        """See Client."""


def grpc_request(image: bytes) -> service_pb2.ModelInferRequest:
    """A request for the best class of an image."""
    message = service_pb2.ModelInferRequest(model_name="ensemble_model")
    message.inputs.add(name="IMAGE", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(len(image).to_bytes(4, "little") + image)
    message.outputs.add(name="PREDICTION").parameters["classification"].int64_param = 1
    return message


def image_form() -> Request:
    """A photograph in a form."""
    photo = coffee()
    return "/predict?top_k=1", b"".join(form([unlike_any(photo.data)], photo.name)), MULTIPART


def inference(sequence: int, *, end: bool = True) -> Request:
    """A photograph as the first image of a sequence, in the Open Inference Protocol."""
    image = base64.b64encode(unlike_any(coffee().data)).decode()
    inputs = [{"name": "IMAGE", "datatype": "BYTES", "shape": [1], "data": [image]}]
    outputs = [{"name": "PREDICTION", "parameters": {"classification": 1}}]
    parameters = {"sequence_id": sequence, "sequence_start": True, "sequence_end": end}
    body = {"inputs": inputs, "outputs": outputs, "parameters": parameters}
    return INFER, json.dumps(body).encode(), JSON


def _explanation() -> Request:
    return "/explain", unlike_any(coffee().data), "image/jpeg"


def _by_url() -> Request:
    url = f"http://localhost:{PHOTO_PORT}/x.jpg"
    return "/predict?top_k=1", json.dumps({"images": [{"url": url}]}).encode(), JSON


CLIENTS: dict[str, Callable[[Running], Client]] = {
    "predict": lambda running: HttpClient(running, image_form),
    "explain": lambda running: HttpClient(running, _explanation),
    "url": lambda running: HttpClient(running, _by_url),
    "sequence": lambda running: HttpClient(running, lambda: inference(next(_sequences))),
    "grpc": GrpcClient,
    "stream": StreamClient,
}
"""What a well-behaved client may ask for."""


class _Photographs(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        photo = unlike_any(coffee().data)
        with suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Length", str(len(photo)))
            self.end_headers()
            self.wfile.write(photo)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def photographs() -> Iterator[None]:
    """Serve photographs on PHOTO_PORT."""
    with http.server.ThreadingHTTPServer((LOOPBACK, PHOTO_PORT), _Photographs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
