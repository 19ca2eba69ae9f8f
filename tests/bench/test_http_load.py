import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from bench.http_load import HttpLoad, check, requests
from bench.measurement import WrongAnswer
from bench.photos import Photo

CAT, DOG = Photo("cat.jpg", b"meow", "cat"), Photo("dog.jpg", b"woof", "dog")


def answer(labels: list[str], status: str = "200 OK") -> bytes:
    results = [{"status": "ok", "predictions": [{"label": label}, {"label": "other"}]} for label in labels]
    body = json.dumps({"results": results}).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class FakeGateway:
    """Answers every request on a kept-alive connection with the same bytes, in two pieces."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply
        self.served = 0
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                self.served += 1
                writer.write(self.reply[:30])
                await writer.drain()
                writer.write(self.reply[30:])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.server.close()
        self.loop.run_until_complete(self._end_connections())
        self.loop.close()

    async def _end_connections(self) -> None:
        # A connection that has only just come gets its task, and one that was closed its end, in the loop's next turns.
        for _ in range(5):
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def gateway(request: pytest.FixtureRequest) -> Iterator[FakeGateway]:
    fake = FakeGateway(request.param)
    yield fake
    fake.close()


@pytest.mark.parametrize("gateway", [answer(["cat"])], indirect=True)
def test_every_answered_request_is_counted_with_its_time(gateway):
    measurement = HttpLoad(gateway.url).run([CAT], seconds=0.2, concurrency=3, files=1)
    assert measurement.images == len(measurement.latencies_seconds) == gateway.served
    assert measurement.images >= 3
    assert measurement.seconds >= 0.2


@pytest.mark.parametrize("gateway", [answer(["cat", "dog", "cat"])], indirect=True)
def test_request_with_several_files_counts_each(gateway):
    measurement = HttpLoad(gateway.url).run([CAT, DOG], seconds=0.05, concurrency=1, files=3)
    assert measurement.images == 3 * gateway.served


@pytest.mark.parametrize(
    ("gateway", "words"),
    [
        (answer(["dog"]), "expected 'cat', got 'dog'"),
        (answer(["cat"], "503 Service Unavailable"), "status 503"),
        (answer([]), "0 results for 1 files"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 30, "without a Content-Length"),
    ],
    indirect=["gateway"],
)
def test_wrong_results_give_no_throughput(gateway, words):
    with pytest.raises(WrongAnswer, match=words):
        HttpLoad(gateway.url).run([CAT], seconds=5, concurrency=2, files=1)


def test_every_image_is_sent_in_single_and_bulk_requests():
    singles = requests([CAT, DOG], 1, "host")
    assert [call.labels for call in singles] == [["cat"], ["dog"]]
    (bulk,) = requests([CAT, DOG], 5, "host")
    assert bulk.labels == ["cat", "dog", "cat", "dog", "cat"]
    assert bulk.wire.count(b"meow") == 3
    head, _, body = bulk.wire.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


def test_file_with_an_error_is_a_wrong_result():
    body = json.dumps({"results": [{"status": "error", "predictions": [], "error": {"code": "empty_file"}}]}).encode()
    assert "empty_file" in check(200, body, ["cat"])
