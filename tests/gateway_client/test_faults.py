"""The client against lines that break and services that refuse: each picture has one result all the same."""

import asyncio
import json
import re

import httpx
import pytest

from gateway.ingest import upload
from gateway_client import AsyncGateway, UnexpectedAnswer, Unreachable, batches, errors

NDJSON = {"Content-Type": "application/x-ndjson"}


def names(request: httpx.Request) -> list[bytes]:
    """The contents of the files of a request."""
    return re.findall(rb"octet-stream\r\n\r\n(.*?)\r\n--", request.content, re.DOTALL)


def line(index: int) -> bytes:
    result = {"index": index, "width": 1, "height": 1, "predictions": [], "error": None}
    return json.dumps({**result, "model": {"name": "m", "version": "1"}}).encode() + b"\n"


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": f"{code}."}, headers=headers)


class Service:
    """Answers POST /predict by a function that is given the request's number and its files."""

    def __init__(self, answer, *, alive: bool = True) -> None:
        self.answer, self.alive, self.requests = answer, alive, []

    async def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/limits":
            return httpx.Response(200, json={"limits": [{"name": "max_files", "value": 16}]})
        if request.url.path == "/health/live":
            return httpx.Response(200 if self.alive else 503)
        await request.aread()
        self.requests.append(names(request))
        return self.answer(len(self.requests), self.requests[-1])

    def classify(self, count: int, **options) -> list:
        async def classify() -> list:
            transport = httpx.MockTransport(self.handle)
            async with AsyncGateway("http://gateway", transport=transport, **options) as gateway:
                pictures = [str(number).encode() for number in range(count)]
                return sorted([result async for result in gateway.classify(pictures)], key=lambda result: result.index)

        return asyncio.run(classify())


def all_lines(files: list[bytes]) -> httpx.Response:
    return httpx.Response(200, content=b"".join(map(line, range(len(files)))), headers=NDJSON)


class Torn(httpx.AsyncByteStream):
    """Some lines, and then the connection breaks."""

    def __init__(self, *lines: bytes) -> None:
        self.lines = lines

    async def __aiter__(self):
        for each in self.lines:
            yield each
        raise httpx.RemoteProtocolError("peer closed connection")


def test_after_a_torn_answer_only_the_rest_is_sent_again():
    def answer(number, files):
        return all_lines(files) if number > 1 else httpx.Response(200, stream=Torn(line(0), line(2)), headers=NDJSON)

    service = Service(answer)
    results = service.classify(4)
    assert [result.error for result in results] == [None] * 4
    assert service.requests == [[b"0", b"1", b"2", b"3"], [b"1", b"3"]]


def test_a_result_that_comes_twice_counts_once():
    service = Service(lambda _, files: httpx.Response(200, content=line(0) * 2 + line(1) + line(7), headers=NDJSON))
    assert [result.index for result in service.classify(2)] == [0, 1]


def test_the_picture_that_breaks_every_connection_is_found_and_costs_no_other_its_answer():
    def answer(_, files):
        if b"5" in files:
            raise httpx.RemoteProtocolError("gone")
        return all_lines(files)

    results = Service(answer).classify(8, retry_seconds=0.5)
    assert [result.index for result in results if not result.ok] == [5]
    assert results[5].error.code == "connection_lost"


def test_a_gateway_that_stays_away_ends_the_call():
    def answer(_, files):
        raise httpx.ConnectError("refused")

    with pytest.raises(Unreachable, match="is gone"):
        Service(answer, alive=False).classify(8, retry_seconds=0.3)


def test_where_nobody_listens_the_call_fails_at_once():
    async def classify():
        async with AsyncGateway("http://127.0.0.1:9") as gateway:
            return [result async for result in gateway.classify([b"x"])]

    with pytest.raises(Unreachable, match=r"There is no gateway at http://127\.0\.0\.1:9"):
        asyncio.run(classify())


@pytest.mark.parametrize("code", ["too_many_files", "request_too_large", "upload_timeout"])
def test_what_is_too_much_for_one_request_is_halved(code):
    service = Service(lambda _, files: problem(413, code) if len(files) > 2 else all_lines(files))
    assert all(result.ok for result in service.classify(8))
    assert [len(files) for files in service.requests] == [8, 4, 2, 2, 4, 2, 2]


def test_no_request_has_more_files_than_the_service_takes():
    service = Service(lambda _, files: all_lines(files))
    assert len(service.classify(50)) == 50
    assert max(map(len, service.requests)) == 16


def test_no_request_has_more_bytes_than_asked_for_unless_one_picture_has():
    service = Service(lambda _, files: all_lines(files))
    assert len(service.classify(12, batch_bytes=2)) == 12
    assert {sum(map(len, files)) for files in service.requests} <= {1, 2}


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


def test_fewer_requests_are_out_after_a_refusal_and_more_again_later():
    out = most = 0

    class Slow(Service):
        async def handle(self, request):
            nonlocal out, most
            if request.url.path != "/predict":
                return await super().handle(request)
            out += 1
            most = max(most, out)
            await asyncio.sleep(0)
            try:
                return await super().handle(request)
            finally:
                out -= 1

    service = Slow(lambda _, files: all_lines(files))
    assert len(service.classify(400, concurrency=3)) == 400
    assert most <= 3


def test_an_error_for_all_that_no_retry_mends_is_each_pictures_own():
    results = Service(lambda _, files: problem(500, "internal_error")).classify(2)
    assert [type(result.error) for result in results] == [errors.InternalError] * 2


def test_a_code_of_a_newer_gateway_is_an_error_all_the_same():
    results = Service(lambda _, files: problem(500, "brand_new")).classify(1)
    assert (type(results[0].error), results[0].error.code) == (errors.GatewayError, "brand_new")


def test_what_is_no_gateway_is_said_so():
    page = httpx.Response(200, text="<html>", headers={"Content-Type": "text/html"})
    with pytest.raises(UnexpectedAnswer, match="is the URL right"):
        Service(lambda _, files: page).classify(1)


@pytest.mark.parametrize("nbytes", [0, 1, 1023, 2**10, 1536, 2**20, 20 * 2**20, 2**30, 2**30 + 1, 3 * 2**30])
def test_a_limit_reads_the_same_whether_the_client_or_the_gateway_tells_it(nbytes):
    assert batches._amount(nbytes) == upload.amount(nbytes)
