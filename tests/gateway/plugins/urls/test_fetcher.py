"""Images by URL, through the service: which are fetched, and which are refused."""

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urljoin

import httpcore2
import httpx
import numpy as np
import pytest
from prometheus_client import REGISTRY

from gateway.plugins.urls import fetcher
from gateway.plugins.urls.fetcher import FETCHES_PER_REQUEST, MAX_REDIRECTS
from gateway.plugins.urls.network import HEAD_READ_BYTES, READ_BYTES, Wire
from tests.asking import encode
from tests.certificates import Authority
from tests.doubles.backend import PNG, StubBackend, with_vector
from tests.doubles.origin import (
    Origin,
    drip,
    made_up_names,
    origin_on,
    redirect,
    repeat,
    response,
    wait_for_client,
)
from tests.keys import key_of
from tests.processes import wait_for
from tests.services import client_of, stub_service

B64 = {"b64": base64.b64encode(PNG).decode()}
LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture
def origin():
    with origin_on() as origin:
        yield origin


@pytest.fixture
def names():
    with made_up_names() as names:
        yield names


def ask(client, *images, path="/predict", **options):
    content = json.dumps({"images": [{"url": each} if isinstance(each, str) else each for each in images]})
    headers = {"Content-Type": "application/json", **options.pop("headers", {})}
    return client.post(path, content=content, headers=headers, **options)


def codes(answer) -> list[str | None]:
    """The error code of each image."""
    return [result["error"] and result["error"]["code"] for result in answer.json()["results"]]


def allow(*images, networks=LOOPBACK, **settings) -> dict[str, object]:
    """Settings with which all images of the servers of some URLs are fetched."""
    servers = tuple(urljoin(each, "/") for each in images if isinstance(each, str))
    return {"fetch_urls": servers, "fetch_networks": networks, **settings}


def fetch(*images, **settings) -> list[str | None]:
    """The codes of some images, whose servers are allowed."""
    with client_of(**allow(*images, **settings)) as client:
        return codes(ask(client, *images))


def code_of(origin: Origin, answer, **settings) -> str | None:
    """The code of an image that is answered in this way."""
    origin.answers["/cat.png"] = answer
    return fetch(origin.url(), **settings)[0]


@pytest.fixture
def in_a_second(monkeypatch):
    """Each image may take a second."""
    monkeypatch.setattr(fetcher, "FETCH_TIMEOUT_SECONDS", 1.0)


@pytest.fixture
def in_a_minute(monkeypatch):
    """Each image may take a minute: the test reaches another limit first."""
    monkeypatch.setattr(fetcher, "FETCH_TIMEOUT_SECONDS", 60.0)


@pytest.fixture
def client(origin):
    with client_of(StubBackend(with_vector), **allow(origin.url())) as client:
        yield client


@pytest.fixture(scope="module")
def code_from_one_service():
    """Like `code_of`, by one service for all tests."""
    with origin_on() as origin, client_of(**allow(origin.url())) as client:

        def code_of(answer):
            origin.answers["/cat.png"] = answer
            return codes(ask(client, origin.url()))[0]

        yield code_of


def test_image_of_a_url_is_classified_or_embedded(origin, client):
    answer = ask(client, origin.url("/cat.png?size=1#top"), {"url": origin.url(), "filename": "other.png"})
    assert answer.status_code == 200
    result, named = answer.json()["results"]
    assert (result["filename"], result["predictions"][0]["label"]) == ("cat.png", "cat")
    assert named["filename"] == "other.png", "the name of the client is preferred"
    assert any(head.startswith(b"GET /cat.png?size=1 HTTP/1.1\r\n") for head in origin.heads)
    answer = ask(client, origin.url(), path="/embed")
    assert answer.status_code == 200
    assert answer.json()["results"][0]["embedding"]


def test_urls_are_refused_unless_they_are_allowed():
    with client_of() as client:
        answer = ask(client, "https://a.example/x.jpg")
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_field")
    assert "fetches no images" in answer.json()["detail"]


def test_url_that_fails_costs_no_other_image(origin, client):
    images = [origin.url(), origin.url("/none"), B64, "https://a.example/x", {**B64, "filename": "b"}, origin.url()]
    answer = ask(client, *images)
    assert answer.status_code == 200
    assert codes(answer) == [None, "fetch_failed", None, "url_not_allowed", None, None]
    assert [result["index"] for result in answer.json()["results"]] == list(range(6))
    assert answer.json()["summary"] == {"ok": 4, "failed": 2}
    assert ask(client, origin.url("/none")).status_code == 422


@pytest.mark.parametrize(
    ("image", "code"),
    [
        ({"url": "x", "b64": ""}, "invalid_body"),
        ({"url": "x", "url2": ""}, "unknown_field"),
        ({"url": None}, "invalid_body"),
        ({"url": "x" * 9_000}, "invalid_body"),
    ],
)
def test_invalid_member_is_refused(image, code):
    with client_of(fetch_urls=("https://a.example",)) as client:
        answer = ask(client, image)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_nothing_of_the_client_is_passed_on(origin, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    headers = {
        "Authorization": "Bearer secret",
        "X-API-Key": "secret",
        "Cookie": "secret=1",
        "Referer": "https://secret.example/",
        "X-Request-ID": "secret",
        "traceparent": "00-secret-1-01",
    }
    with client_of(**allow(origin.url())) as client:
        assert codes(ask(client, origin.url(), headers=headers)) == [None]
    (head,) = origin.heads
    assert b"secret" not in head
    sent = {line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:] if line}
    assert sent == {b"host", b"user-agent", b"accept", b"accept-encoding"}
    assert b"Accept-Encoding: identity" in head


class TestAddresses:
    """The address that is connected to is the one that was checked."""

    def test_address_that_is_not_public_is_refused(self):
        hosts = [
            *("127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "10.0.0.1", "[::1]"),
            *("169.254.169.254", "2852039166", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
            *("0x7f.1", "[fd00:ec2::254]"),
        ]
        assert fetch(*(f"http://{host}/" for host in hosts), networks=()) == ["url_not_allowed"] * len(hosts)

    def test_name_is_resolved_once(self, names):
        """DNS rebinding: a second lookup would have another result, and it is never made."""
        with origin_on("127.0.0.2") as allowed:
            names.add("rebind.test", ["127.0.0.2"], ["127.0.0.1"])
            url = allowed.url(host="rebind.test")
            with client_of(**allow(url, networks=("127.0.0.2/32",))) as client:
                assert codes(ask(client, url)) == [None]
                assert names.lookups == ["rebind.test"]
                # Nothing is kept: the next image is resolved and checked again.
                assert codes(ask(client, url)) == ["url_not_allowed"]
        assert len(allowed.heads) == 1

    def test_one_address_that_is_not_allowed_refuses_the_host(self, names):
        with origin_on("127.0.0.2") as allowed:
            names.add("mixed.test", ["127.0.0.2", "127.0.0.1"])
            assert fetch(allowed.url(host="mixed.test"), networks=("127.0.0.2/32",)) == ["url_not_allowed"]
        assert allowed.heads == []

    def test_next_address_is_tried_if_one_refuses(self, names):
        with origin_on("127.0.0.2") as origin:
            names.add("two.test", ["127.0.0.3", "127.0.0.2"])
            assert fetch(origin.url(host="two.test")) == [None]

    def test_unknown_and_private_names_are_the_same_to_a_client(self, names):
        """Otherwise the service would reveal which names exist in its network."""
        names.add("private.test", ["10.0.0.1"])
        names.add("unknown.test", socket.gaierror(socket.EAI_NONAME, "unknown"))
        with client_of(fetch_urls=("http://*",)) as client:
            answer = ask(client, "http://private.test/", "http://unknown.test/")
        private, unknown = (result["error"] for result in answer.json()["results"])
        assert private == {**unknown, "message": unknown["message"].replace("unknown.test", "private.test")}

    def test_resolver_that_fails_is_an_error_of_its_own(self, names):
        names.add("busy.test", socket.gaierror(socket.EAI_AGAIN, "try again"))
        assert fetch("http://busy.test/", networks=()) == ["fetch_failed"]

    def test_port_that_nobody_listens_on_is_an_error(self, origin):
        origin.close()
        assert fetch(origin.url()) == ["fetch_failed"]


class TestTls:
    """The certificate must be for the name of the URL, although the connection uses an address."""

    @pytest.fixture
    def cats(self, names, tmp_path, monkeypatch) -> Iterator[Origin]:
        """A server with a certificate for cats.test, of an authority that is trusted."""
        authority = Authority(tmp_path)
        pair = authority.issue("cats.test")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        names.add("cats.test", ["127.0.0.1"])
        names.add("dogs.test", ["127.0.0.1"])
        with origin_on(tls=context) as origin:
            yield origin

    @pytest.mark.parametrize(
        ("name", "trusted", "code"),
        [("cats.test", True, None), ("dogs.test", True, "fetch_failed"), ("cats.test", False, "fetch_failed")],
        ids=["its own name", "another name", "unknown authority"],
    )
    def test_certificate_is_verified_by_name(self, cats, name, trusted, code, tmp_path, monkeypatch):
        if not trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path / "other").certificate))
        assert fetch(cats.url(host=name)) == [code]


class TestRedirects:
    """A redirect is a new request under the same rules."""

    @pytest.mark.parametrize("target", ["/other.png", "//127.0.0.1:{port}/other.png", "./x/../other.png"])
    def test_redirect_is_followed(self, origin, target):
        origin.answers["/other.png"] = response()
        assert code_of(origin, redirect(target.format(port=origin.port))) is None

    @pytest.mark.parametrize(
        "target",
        [
            "http://169.254.169.254/latest/meta-data/",
            "http://127.0.0.1:9/",
            "http://localhost:{port}/cat.png",
            "http://user@127.0.0.1:{port}/cat.png",
            "file:///etc/passwd",
            "s3://bucket/x",
            "http://[::1/",
            "",
            "\x80",
        ],
    )
    def test_redirect_to_elsewhere_is_refused(self, origin, target):
        answer = response(b"", status="302 Found").replace(
            b"\r\n\r\n", b"\r\nLocation: " + target.format(port=origin.port).encode("latin-1") + b"\r\n\r\n"
        )
        assert code_of(origin, answer) in ("url_not_allowed", "fetch_failed")
        assert len(origin.heads) <= 1 + MAX_REDIRECTS

    def test_redirect_to_an_address_that_is_not_public_is_refused(self, names):
        names.add("inside.test", ["10.0.0.1"])
        names.add("origin.test", ["127.0.0.2"])
        with origin_on("127.0.0.2") as origin:
            origin.answers["/cat.png"] = redirect("http://inside.test/")
            url = origin.url(host="origin.test")
            with client_of(**allow(url, "http://*", networks=("127.0.0.2/32",))) as client:
                assert codes(ask(client, url)) == ["url_not_allowed"]

    @pytest.mark.parametrize(("count", "code"), [(MAX_REDIRECTS, None), (MAX_REDIRECTS + 1, "fetch_failed")])
    def test_number_of_redirects_is_limited(self, origin, count, code):
        for number in range(1, count + 1):
            origin.answers[f"/{number}"] = redirect(f"/{number - 1}")
        origin.answers["/0"] = response()
        assert fetch(origin.url(f"/{count}")) == [code]

    @pytest.mark.usefixtures("in_a_minute")
    def test_body_of_a_redirect_is_not_read(self, origin):
        head = b"HTTP/1.1 302 Found\r\nLocation: /other.png\r\n\r\n"
        origin.answers["/other.png"] = response()
        assert code_of(origin, repeat(b"x" * 65_536, head)) is None
        assert origin.left.wait(10)


class TestLimits:
    """Size, time, type and number are bounded while the body arrives."""

    @pytest.mark.parametrize(("more", "code"), [(0, None), (-1, "file_too_large")])
    @pytest.mark.parametrize("announced", [True, False])
    def test_size_is_limited(self, origin, more, code, announced):
        body = response() if announced else b"HTTP/1.1 200 OK\r\n\r\n" + PNG
        limit = len(PNG) + more
        assert code_of(origin, body, max_file_bytes=limit, max_request_bytes=max(limit, 1_000)) == code

    def test_images_of_a_request_have_a_limit_together(self, origin):
        large = encode(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8), ".png")
        origin.answers["/large.png"] = response(large)
        for limit, status in ((3 * len(large), 200), (3 * len(large) - 1, 413)):
            limits = {"max_file_bytes": len(large), "max_request_bytes": limit}
            with client_of(**allow(origin.url(), **limits)) as client:
                answer = ask(client, *[origin.url("/large.png")] * 3)
                assert answer.status_code == status, answer.text
        assert answer.json()["code"] == "request_too_large"

    @pytest.mark.parametrize(
        "head",
        [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"],
    )
    @pytest.mark.usefixtures("in_a_second")
    def test_slow_host_is_left(self, origin, head):
        began = time.monotonic()
        origin.answers["/slow.png"] = drip(head)
        assert fetch(origin.url("/slow.png"), origin.url()) == ["fetch_timeout", None]
        assert time.monotonic() - began < 10
        assert origin.left.wait(10)

    @pytest.mark.parametrize(
        ("head", "piece", "code"),
        [
            (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1_000, "file_too_large"),
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "fetch_failed"),
            (b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"b" * 1_000 + b"\r\n", "fetch_failed"),
            (b"HTTP/1.1 200 OK\r\nX-A: ", b"b" * 1_000, "fetch_failed"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", "fetch_failed"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 1_000, "fetch_failed"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n", "fetch_failed"),
        ],
    )
    @pytest.mark.usefixtures("in_a_minute")
    def test_endless_body_or_framing_is_refused(self, origin, head, piece, code):
        endless = repeat(piece * 50, head)
        assert code_of(origin, endless, max_file_bytes=2**20) == code
        assert origin.left.wait(10)

    @pytest.mark.anyio
    async def test_head_is_read_in_small_pieces(self):
        """So that a read has no more interim responses than take a millisecond or two to parse."""
        wire = Wire(Endless([]))
        before = len(await wire.read(65_536))
        wire.progress()
        assert (before, len(await wire.read(65_536))) == (HEAD_READ_BYTES, READ_BYTES)

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            *((response(content_type=kind), None) for kind in ("image/jpeg", "Image/PNG; a=b")),
            *((response(content_type=f"{kind}/octet-stream"), None) for kind in ("application", "binary")),
            *(
                (response(content_type=kind), "unsupported_format")
                for kind in ("text/html; charset=utf-8", "application/json", "")
            ),
            (response(b"<html>"), "unsupported_format"),
            *(
                (response(PNG, f"Content-Encoding: {encoding}"), "fetch_failed")
                for encoding in ("gzip", "br", "gzip, gzip", "x")
            ),
            *(
                (response(status=status), "fetch_failed")
                for status in ("204 No Content", "206 Partial Content", "301 Moved", "403 No", "500 No")
            ),
            (b"", "fetch_failed"),
            (b"x", "fetch_failed"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx", "fetch_failed"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "fetch_failed"),
            (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "fetch_failed"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "fetch_failed"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "fetch_failed"),
            (b"SSH-2.0-OpenSSH\r\n", "fetch_failed"),
        ],
        ids=lambda value: value.partition(PNG)[0].decode() if isinstance(value, bytes) else value,
    )
    def test_image_of_a_response_has_a_code(self, code_from_one_service, answer, code):
        """Type and content must be an image's, the body not compressed, the status 200, and the framing valid."""
        assert code_from_one_service(answer) == code


class TestNumber:
    """How many images are fetched concurrently."""

    @pytest.mark.parametrize(("fetches", "most"), [(64, FETCHES_PER_REQUEST), (2, 2)])
    def test_requests_are_sent_in_parallel_up_to_the_limit(self, origin, monkeypatch, fetches, most):
        monkeypatch.setattr(fetcher, "MAX_FETCHES", fetches)
        gate = Gate(origin, most)
        assert fetch(*[origin.url("/gate")] * (most + 4)) == [None] * (most + 4)
        assert gate.most == most
        assert REGISTRY.get_sample_value("gateway_fetches") == 0

    @pytest.mark.usefixtures("in_a_second")
    def test_wait_for_a_slot_has_an_end(self, origin, monkeypatch):
        monkeypatch.setattr(fetcher, "MAX_FETCHES", 1)
        origin.answers["/hang"] = wait_for_client
        hanging = origin.url("/hang")
        assert fetch(B64, hanging, hanging, max_wait_seconds=0.2) == [None, "fetch_timeout", "overloaded"]

    def test_one_client_does_not_take_all_fetches(self, origin, tmp_path, monkeypatch):
        """Images that never arrive took all fetches, and other clients' images were refused as overloaded."""
        origin.answers["/hang"] = wait_for_client
        keys = [key_of(tmp_path / "keys", name) for name in ("greedy", "other")]
        monkeypatch.setattr(fetcher, "MAX_FETCHES", 4)
        monkeypatch.setattr(fetcher, "FETCH_TIMEOUT_SECONDS", 3.0)
        with (
            stub_service(**allow(origin.url(), max_wait_seconds=1), api_keys_file=tmp_path / "keys") as url,
            httpx.Client(base_url=url, timeout=60) as client,
            ThreadPoolExecutor(1) as threads,
        ):
            hanging = threads.submit(ask, client, *[origin.url("/hang")] * 6, headers=keys[0])
            wait_for(lambda: REGISTRY.get_sample_value("gateway_fetches") == 3)
            assert codes(ask(client, origin.url(), headers=keys[1])) == [None]
            assert not hanging.done()
        assert hanging.result().json()["code"] == "overloaded"

    @pytest.mark.usefixtures("in_a_minute")
    def test_slow_fetch_makes_room_for_an_upload(self, origin):
        """When the upload buffer is full, a fetch that stands still is evicted, as a slow upload is."""
        large = encode(np.random.default_rng(1).integers(0, 256, (400, 400, 3), np.uint8), ".png")

        def stop(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 800_000)
            wait_for_client(connection)

        origin.answers["/stop"] = stop
        limits = {"max_bytes_waiting": 2**20, "max_file_bytes": 10**6}
        answers: list[httpx.Response] = []
        with (
            stub_service(**allow(origin.url(), **limits)) as url,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            fetching = threading.Thread(target=lambda: answers.append(ask(client, origin.url("/stop"))))
            fetching.start()
            wait_for(lambda: REGISTRY.get_sample_value("gateway_waiting_bytes") >= 800_000)
            headers = {"Content-Type": "image/png"}
            wait_for(lambda: client.post("/predict", content=large, headers=headers).status_code == 200)
            fetching.join(30)
        problem = answers[0].json()
        assert (problem["status"], problem["code"], problem["limit"]) == (503, "overloaded", "max_bytes_waiting")
        assert len(large) > 2**20 - 800_000

    @pytest.mark.usefixtures("in_a_minute")
    def test_images_of_a_request_have_a_time_together(self, origin):
        origin.answers["/hang"] = wait_for_client
        limits = {"upload_timeout_seconds": 0.5, "upload_idle_timeout_seconds": 0.4}
        with client_of(**allow(origin.url(), **limits)) as client:
            answer = ask(client, B64, origin.url("/hang"))
        assert (answer.status_code, answer.json()["code"]) == (408, "upload_timeout")
        origin.wait_for_open(0)

    @pytest.mark.usefixtures("in_a_minute")
    def test_client_that_leaves_ends_its_fetches(self, origin):
        origin.answers["/hang"] = wait_for_client
        body = json.dumps({"images": [{"url": origin.url("/hang")}] * 3}).encode()
        lines = ["POST /predict HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        head = "\r\n".join(lines) + "\r\n\r\n"
        before = REGISTRY.get_sample_value("gateway_waiting_bytes")
        with stub_service(**allow(origin.url())) as url:
            with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as client:
                client.sendall(head.encode() + body)
                origin.wait_for_open(3)
            origin.wait_for_open(0)
            wait_for(lambda: REGISTRY.get_sample_value("gateway_fetches") == 0)
            wait_for(lambda: REGISTRY.get_sample_value("gateway_waiting_bytes") <= before)


class Endless(httpcore2.AsyncMockStream):
    """A connection with as many bytes as are read."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  # see httpcore2
        return b"x" * max_bytes


class Gate:
    """Answers of a path wait until `count` requests have been there at once."""

    def __init__(self, origin: Origin, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._inside = 0
        self.most = 0
        origin.answers["/gate"] = self

    def __call__(self, connection: socket.socket) -> None:
        with self._changed:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._count, 5)
            self._inside -= 1
        connection.sendall(response())
