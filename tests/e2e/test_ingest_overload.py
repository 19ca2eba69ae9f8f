"""The limits of a process over HTTP, at the limit and one past it: a refusal names the limit and its value."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import pytest

from gateway.settings import MIB
from tests.photos import photo
from tests.processes import Gateway, wait_for

HEAD = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}
LIMITS = {
    "max_images_in_flight": 2,
    "max_images_waiting": 1,
    "max_wait_seconds": 3,
    "max_file_bytes": MIB,
    "stream_frame_bytes": MIB,
    "max_bytes_waiting": MIB,
    "max_timeout_seconds": 60,
    "max_top_k": 10,
}


class Silent(grpc.GenericRpcHandler):
    """Accepts every call and answers none until it ends."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self.end.wait() and None)


@pytest.fixture(scope="module")
def stuck(start_gateway):
    """A gateway whose Triton never answers, so that images stay in flight."""
    silent = Silent()
    server = grpc.server(ThreadPoolExecutor(16), handlers=[silent])
    url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with start_gateway(triton_url=url, wait_ready=False, batch_max_images=1, **LIMITS) as running:
            yield running
    finally:
        silent.end.set()
        server.stop(None).wait()


def refusal_of(answer: httpx.Response) -> tuple:
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, problem["code"], problem.get("limit"), problem.get("value")


class Sending(threading.Thread):
    """A thread that sends an image."""

    def __init__(self, gateway: Gateway, timeout_seconds: float) -> None:
        super().__init__()
        self._gateway, self._timeout_seconds = gateway, timeout_seconds
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        with self._gateway.client() as http:
            options = {"params": {"timeout": self._timeout_seconds}, "files": {"f": ("c.jpg", photo("cat"))}}
            self.answer = http.post("/predict", **options)


def test_limits_of_images_in_flight_waiting_and_waiting_time(stuck: Gateway):
    # They end after 5 s, since Triton does not describe its model: later than the request that waits.
    in_flight = [Sending(stuck, 9) for _ in range(2)]
    wait_for(lambda: stuck.metric("gateway_images_in_flight") == 2)
    started = time.monotonic()
    waiting = Sending(stuck, 60)
    wait_for(lambda: stuck.metric("gateway_images_waiting") == 1)
    with stuck.client() as http:
        refused = http.post("/predict", files={"f": ("c.jpg", photo("cat"))})
    assert refusal_of(refused) == (503, "overloaded", "max_images_waiting", 1)
    assert int(refused.headers["retry-after"]) >= 1
    assert waiting.is_alive()  # so the second request was refused at once
    waiting.join()
    assert refusal_of(waiting.answer) == (503, "overloaded", "max_wait_seconds", 3)
    assert time.monotonic() - started >= 3
    for thread in in_flight:
        thread.join()
        assert refusal_of(thread.answer) == (504, "deadline_exceeded", None, None)


def test_limit_of_waiting_upload_bytes(stuck: Gateway):
    wait_for(lambda: stuck.metric("gateway_waiting_bytes") == 0)
    content = b"no image"
    with stuck.connect() as slow:
        slow.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        )
        slow.sendall(HEAD + bytes(MIB - len(content)))
        wait_for(lambda: stuck.metric("gateway_waiting_bytes") == MIB - len(content))
        with stuck.client() as http:

            def send(content: bytes) -> httpx.Response:
                return http.post("/predict", content=HEAD + content + b"\r\n--b--\r\n", headers=MULTIPART)

            assert send(content).status_code == 415
            assert stuck.metric("gateway_waiting_bytes") == MIB - len(content)
            assert send(content + b"!").status_code == 415
        refused = b""
        while not refused.endswith(b"}") and (piece := slow.recv(65536)):
            refused += piece
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b'"limit":"max_bytes_waiting","value":%d' % MIB in refused
    wait_for(lambda: stuck.metric("gateway_waiting_bytes") == 0)


@pytest.mark.parametrize(("name", "limit"), [("top_k", "max_top_k"), ("timeout", "max_timeout_seconds")])
def test_parameter_limits(stuck: Gateway, name: str, limit: str):
    with stuck.client() as http:

        def send(value: int) -> httpx.Response:
            return http.post("/predict", params={name: value}, files={"f": ("x", b"no image")})

        assert send(LIMITS[limit]).status_code == 415
        assert refusal_of(send(LIMITS[limit] + 1)) == (422, "invalid_parameter", limit, LIMITS[limit])
