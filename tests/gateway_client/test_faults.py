"""Broken connections and refusing services: each image still has exactly one result."""

import asyncio
import inspect
import json
import re

import httpx
import pytest

from gateway_client import AsyncGateway, ServiceError

NDJSON = {"Content-Type": "application/x-ndjson"}


def line(index: int) -> bytes:
    result = {"index": index, "width": 1, "height": 1, "predictions": [], "error": None}
    return json.dumps({**result, "model": {"name": "m", "version": "1"}}).encode() + b"\n"


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": f"{code}."}, headers=headers)


class Service:
    """Answers POST /predict with a function of the request's number and its files."""

    def __init__(self, answer, *, alive: bool = True) -> None:
        self.answer, self.alive, self.requests = answer, alive, []

    async def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/limits":
            return httpx.Response(200, json={"limits": [{"name": "max_files", "value": 16}]})
        if request.url.path == "/health/live":
            return httpx.Response(200 if self.alive else 503)
        await request.aread()
        # The contents of its files.
        self.requests.append(re.findall(rb"octet-stream\r\n\r\n(.*?)\r\n--", request.content, re.DOTALL))
        answer = self.answer(len(self.requests), self.requests[-1])
        return await answer if inspect.isawaitable(answer) else answer

    def classify(self, count: int, **options) -> list:
        async def classify() -> list:
            transport = httpx.MockTransport(self.handle)
            async with AsyncGateway("http://gateway", transport=transport, **options) as gateway:
                images = [str(number).encode() for number in range(count)]
                return sorted([result async for result in gateway.classify(images)], key=lambda result: result.index)

        return asyncio.run(classify())


def all_lines(files: list[bytes]) -> httpx.Response:
    return httpx.Response(200, content=b"".join(map(line, range(len(files)))), headers=NDJSON)


class Torn(httpx.AsyncByteStream):
    """A response of some lines, after which the connection breaks."""

    def __init__(self, *lines: bytes) -> None:
        self.lines = lines

    async def __aiter__(self):
        for each in self.lines:
            yield each
        raise httpx.RemoteProtocolError("peer closed connection")


def test_only_missing_results_are_retried_after_a_disconnect():
    def answer(number, files):
        return all_lines(files) if number > 1 else httpx.Response(200, stream=Torn(line(0), line(2)), headers=NDJSON)

    service = Service(answer)
    results = service.classify(4)
    assert [result.error for result in results] == [None] * 4
    assert service.requests == [[b"0", b"1", b"2", b"3"], [b"1", b"3"]]


def test_duplicate_result_counts_once():
    service = Service(lambda _, files: httpx.Response(200, content=line(0) * 2 + line(1) + line(7), headers=NDJSON))
    assert [result.index for result in service.classify(2)] == [0, 1]


def test_image_that_breaks_connections_is_isolated():
    def answer(_, files):
        if b"5" in files:
            raise httpx.RemoteProtocolError("gone")
        return all_lines(files)

    results = Service(answer).classify(8, retry_seconds=0.5)
    assert [result.index for result in results if not result.ok] == [5]
    assert results[5].error.code == "connection_lost"


def test_unreachable_gateway_ends_the_call():
    def answer(_, files):
        raise httpx.ConnectError("refused")

    with pytest.raises(ServiceError, match="is gone"):
        Service(answer, alive=False).classify(8, retry_seconds=0.3)


@pytest.mark.parametrize("code", ["too_many_files", "request_too_large", "upload_timeout"])
def test_too_large_requests_are_halved(code):
    service = Service(lambda _, files: problem(413, code) if len(files) > 2 else all_lines(files))
    assert all(result.ok for result in service.classify(8))
    assert [len(files) for files in service.requests] == [8, 4, 2, 2, 4, 2, 2]


def nbytes(files: list[bytes]) -> int:
    return sum(map(len, files))


@pytest.mark.parametrize(
    ("count", "options", "measure", "most"), [(50, {}, len, 16), (12, {"batch_bytes": 2}, nbytes, 2)]
)
def test_requests_keep_to_max_files_and_batch_bytes(count, options, measure, most):
    service = Service(lambda _, files: all_lines(files))
    assert len(service.classify(count, **options)) == count
    assert max(map(measure, service.requests)) == most


def test_retry_after_is_honoured(monkeypatch):
    pauses = []
    sleep = asyncio.sleep

    async def note(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("gateway_client.sending.asyncio.sleep", note)
    refusals = [problem(503, "overloaded", **{"Retry-After": "7"}), httpx.Response(429, headers={"Retry-After": "3"})]
    service = Service(lambda number, files: refusals[number - 1] if number < 3 else all_lines(files))
    assert all(result.ok for result in service.classify(2))
    assert [7 <= pauses[0] <= 10.5, 3 <= pauses[1] <= 4.5, len(pauses)] == [True, True, 2]


def test_requests_in_flight_keep_to_concurrency():
    out = most = 0
    full = asyncio.Event()

    async def answer(_, files):
        nonlocal out, most
        out += 1
        most = max(most, out)
        if out == 3:
            full.set()
        if b"0" not in files:  # the first request is alone, for the version that answers
            await asyncio.wait_for(full.wait(), 60)
        for _ in range(20):  # turns of the threads that read images, in which a fourth request would begin
            await asyncio.to_thread(int)
        out -= 1
        return all_lines(files)

    assert len(Service(answer).classify(12, concurrency=3, batch_images=1)) == 12
    assert most == 3


@pytest.mark.parametrize("code", ["internal_error", "new"])
def test_permanent_service_error_is_set_on_each_result(code):
    results = Service(lambda _, files: problem(500, code)).classify(2)
    assert [(type(result.error), result.error.code) for result in results] == [(ServiceError, code)] * 2
