"""WS /stream as a client sees it: order, sequences, parameters, limits, keys, and every way in which it ends."""

import json
import math
import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import structlog
from prometheus_client import REGISTRY
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close
from websockets.sync.client import ClientConnection, connect

from gateway.errors import InferenceFailed, ModelUnavailable
from gateway.inference.result import Selection
from gateway.plugins.keys.key_file import add_key
from gateway.plugins.streams import session, websockets
from gateway.plugins.streams.messages import HeldLabel
from gateway.plugins.streams.session import DROPPED_PER_SECOND, FAULTY_PER_SECOND
from tests.costly_files import progressive_jpeg_of_many_scans
from tests.doubles.backend import StubBackend, frame, frame_backend
from tests.keys import key_of, remove_key
from tests.processes import listens, wait_for
from tests.services import stream_service
from tests.streaming import TIMEOUT_SECONDS, answer, ask, opened


@pytest.fixture(scope="module")
def backend() -> StubBackend:
    return frame_backend()


@pytest.fixture(scope="module")
def service(backend) -> Iterator[str]:
    with stream_service(backend, max_streams=3, max_file_bytes=65_536) as (address, _):
        yield address


@pytest.fixture(autouse=True)
def healthy(backend):
    backend.fault = backend.sequence_fault = None
    backend.gate.set()
    yield
    backend.gate.set()
    wait_for(lambda: not backend.in_flight)
    wait_for(lambda: all(sequence.closed for sequence in backend.sequences))


def refused(address: str, query: str = "", **options) -> tuple[int, str]:
    """The status and the code of a handshake that is refused, which has a problem document with the request's ID."""
    with pytest.raises(InvalidStatus) as caught, opened(address, query, **options):
        pass
    response = caught.value.response
    assert response.headers["x-request-id"]
    return response.status_code, json.loads(response.body)["code"]


def rest(client: ClientConnection) -> tuple[list[dict], Close]:
    """The remaining messages, and the close of the stream."""
    answers = []
    while True:
        try:
            answers.append(answer(client))
        except ConnectionClosed as exc:
            if exc.rcvd is None:
                raise
            return answers, exc.rcvd


def test_each_frame_gets_its_scores_and_those_of_the_sequence(service):
    with opened(service, "?top_k=1") as client:
        first, second = ask(client, frame(255)), ask(client, frame(0))
    assert (first["type"], first["frame"], first["status"], first["width"]) == ("frame", 0, "ok", 8)
    assert first["predictions"] == [{"label": "bright", "class_id": 1, "score": 1.0}]
    assert second["predictions"] == [{"label": "dark", "class_id": 0, "score": 1.0}]
    assert first["sequence"] == {"frames": 1, "restarted": False, "predictions": first["predictions"], "error": None}
    assert (second["sequence"]["frames"], second["sequence"]["predictions"][0]["score"]) == (2, 0.5)
    assert (second["dropped"], second["version"]) == (0, "1")
    assert second["latency_ms"] > 0


def test_failed_frame_affects_neither_the_sequence_nor_those_after_it(backend, service):
    with opened(service) as client:
        ask(client, frame(255))
        broken = ask(client, b"no picture")
        backend.fault = InferenceFailed()
        failed = ask(client, frame(0))
        backend.fault = None
        after = ask(client, frame(255))
    assert (broken["status"], broken["error"]["code"], broken["sequence"]) == ("error", "unsupported_format", None)
    assert failed["error"]["code"] == "inference_failed"
    assert (after["status"], after["frame"], after["sequence"]["frames"]) == ("ok", 3, 2)


def test_results_keep_the_order_of_frames_without_drops(service):
    brightness = [number * 5 for number in range(40)]
    with opened(service, "?drop=never&top_k=2") as client:
        for each in brightness:
            client.send(frame(each))
        client.send('{"end": true}')
        answers, end = rest(client)
    frames = [each for each in answers if each["type"] == "frame"]
    assert [each["frame"] for each in frames] == list(range(40))
    assert [each["sequence"]["frames"] for each in frames] == list(range(1, 41))
    seen = [{p["label"]: p["score"] for p in each["predictions"]}["bright"] for each in frames]
    assert seen == pytest.approx([each / 255 for each in brightness], abs=1e-5)
    assert end.code == 1000


def test_oldest_of_too_many_frames_are_dropped_and_counted(backend, service):
    backend.gate.clear()
    seen = len(backend.calls)
    with opened(service) as client:
        for _ in range(2):
            client.send(frame(10))
        wait_for(lambda: len(backend.calls) == seen + 2)  # as many as may be in flight
        for number in range(10):
            client.send(frame(100 + number))
        client.ping().wait(TIMEOUT_SECONDS)  # which came behind all of them
        backend.gate.set()
        answers = [answer(client) for _ in range(4)]
    assert [each["frame"] for each in answers] == [0, 1, 10, 11]
    assert sum(each["dropped"] for each in answers) == 8
    assert answers[-1]["sequence"]["frames"] == 4


@pytest.mark.parametrize("message", ["no json", "[1]", '{"top_k": 3}', '{"end": false}', '{"end": true}' + " " * 99])
def test_other_text_messages_end_the_stream(service, message):
    with opened(service) as client:
        told = ask(client, message)
        assert (told["type"], told["error"]["code"]) == ("error", "invalid_parameter")
        assert rest(client)[1].code == 4422


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?model=nothing", 404, "model_not_found"),
        ("?smoothing=wild", 422, "invalid_parameter"),
        ("?tok_k=3", 422, "invalid_parameter"),
        ("?top_k=5000", 422, "invalid_parameter"),
        *((f"?timeout={seconds}", 422, "invalid_parameter") for seconds in ("5e-324", "0.000999", "0", "nan")),
    ],
)
def test_wrong_parameter_refuses_the_handshake_and_a_plain_request(service, query, status, code):
    """A browser shows nothing of a refused handshake, so a plain request explains it."""
    assert refused(service, query) == (status, code)
    response = httpx.get(f"http://{service}/stream{query}", timeout=TIMEOUT_SECONDS)
    assert (response.status_code, response.json()["code"]) == (status, code)


def test_stream_is_opened_by_an_upgrade_of_its_route_alone(service):
    response = httpx.get(f"http://{service}/stream", timeout=TIMEOUT_SECONDS)
    assert (response.status_code, response.json()["code"]) == (426, "upgrade_required")
    with pytest.raises(InvalidStatus) as caught, connect(f"ws://{service}/limits", proxy=None):
        pass
    assert caught.value.response.status_code == 200


def test_stream_beyond_the_limit_is_refused_until_another_ends(service, monkeypatch):
    monkeypatch.setattr("gateway.plugins.streams.session.IDLE_SECONDS", math.inf)
    with opened(service), opened(service):
        with opened(service):
            assert refused(service) == (503, "overloaded")
            problem = httpx.get(f"http://{service}/stream", timeout=TIMEOUT_SECONDS).json()
            assert (problem["code"], problem["limit"], problem["value"]) == ("overloaded", "max_streams", 3)
        wait_for(lambda: httpx.get(f"http://{service}/stream", timeout=TIMEOUT_SECONDS).status_code == 426)
        with opened(service) as client:
            assert ask(client, frame(0))["status"] == "ok"


def test_failed_sequence_does_not_fail_the_frame(backend, service):
    backend.sequence_fault = ModelUnavailable()
    with opened(service) as client:
        told = ask(client, frame(255))
        assert (told["status"], told["sequence"]["error"]["code"]) == ("ok", "model_unavailable")
        assert told["predictions"][0]["label"] == "bright"
        backend.sequence_fault = None
        assert ask(client, frame(255))["sequence"]["frames"] == 1


def test_oversized_frame_ends_the_stream(service):
    with opened(service) as client:
        client.send(bytes(70_000))
        assert rest(client)[1].code == 1009


def test_unknown_labels_end_the_stream_with_their_code(service):
    with opened(service, "?labels=darkness") as client:
        told = ask(client, frame(0))
        assert (told["type"], told["error"]["code"]) == ("error", "invalid_parameter")
        _, end = rest(client)
    assert (end.code, end.reason) == (4422, "invalid_parameter")


def test_sequence_ends_when_the_client_disconnects(backend, service):
    with opened(service) as client:
        ask(client, frame(0))
    wait_for(lambda: backend.sequences[-1].closed)
    with opened(service) as client:
        ask(client, frame(0))
        backend.gate.clear()
        client.send(frame(0))
        client.socket.close()  # in the midst of a frame, without a word
        backend.gate.set()
        wait_for(lambda: backend.sequences[-1].closed)


def test_stream_with_a_frame_in_flight_is_not_idle(monkeypatch):
    """The client waits as well: its silence begins with the answer."""
    backend = frame_backend()
    monkeypatch.setattr("gateway.plugins.streams.session.STREAM_IDLE_SECONDS", 0.2)
    with stream_service(backend) as (address, _), opened(address) as client:
        backend.gate.clear()
        client.send(frame(0))
        with pytest.raises(TimeoutError):
            client.recv(0.6)
        backend.gate.set()
        assert answer(client)["status"] == "ok"
        _, end = rest(client)
    assert (end.code, end.reason) == (4408, "stream_idle")


def test_faulty_frames_are_rate_limited():
    """A frame of one byte costs the service as much as an image of a client that sends one."""
    count = 2 * FAULTY_PER_SECOND
    with stream_service(frame_backend()) as (address, _), opened(address, "?drop=never") as client:
        began = time.monotonic()
        for _ in range(count):
            client.send(b"x")
        assert [answer(client)["status"] for _ in range(count)] == ["error"] * count
        assert time.monotonic() - began > 0.9


def test_dropped_frames_are_rate_limited():
    def dropped() -> float:
        return REGISTRY.get_sample_value("gateway_stream_frames_total", {"outcome": "dropped"})

    backend, before = frame_backend(), dropped()
    count = 2 * DROPPED_PER_SECOND + 10
    with stream_service(backend) as (address, _), opened(address) as client:
        backend.gate.clear()
        began = time.monotonic()
        for _ in range(count):
            client.send(frame(0))
        wait_for(lambda: dropped() - before == count - 4)  # all but the frames in flight and the waiting ones
        assert time.monotonic() - began > 0.9
        backend.gate.set()


def test_stream_needs_a_valid_key_for_as_long_as_it_is_open(tmp_path, monkeypatch):
    """Web pages send the key as a subprotocol."""
    monkeypatch.setattr(session, "KEY_CHECK_SECONDS", 0.05)
    path = tmp_path / "keys"
    leaves, stays = add_key(path, "leaves"), add_key(path, "stays")
    with stream_service(frame_backend(), api_keys_file=path) as (address, _):
        for headers in ({}, {"X-API-Key": "wrong"}):
            assert refused(address, additional_headers=headers) == (401, "unauthorized")
        with (
            opened(address, additional_headers={"Authorization": f"Bearer {leaves}"}) as client,
            opened(address, subprotocols=["gateway-stream", f"gateway-key.{stays}"]) as page,
        ):
            assert page.subprotocol == "gateway-stream"
            assert ask(client, frame(0))["status"] == "ok"
            remove_key(path, "leaves")
            answers, end = rest(client)
            assert answers[-1]["error"]["code"] == "unauthorized"
            assert "has been removed" in answers[-1]["error"]["message"]
            assert (end.code, end.reason) == (4401, "unauthorized")
            assert ask(page, frame(0))["status"] == "ok"


def test_stream_without_frames_makes_room_for_another(backend, monkeypatch):
    monkeypatch.setattr("gateway.plugins.streams.session.IDLE_SECONDS", 0.2)
    monkeypatch.setattr(websockets, "CLOSE_SECONDS", 600.0)  # the client's answer to the close ends the connection
    with stream_service(backend, max_streams=2) as (address, _), opened(address) as busy, opened(address) as idle:
        ask(idle, frame(0))
        ask(busy, frame(0))
        assert refused(address) == (503, "overloaded")  # both have had a frame just now
        backend.gate.clear()
        busy.send(frame(0))  # it has a frame for as long as that one waits for its answer
        wait_for(lambda: backend.in_flight)
        wait_for(lambda: httpx.get(f"http://{address}/stream", timeout=TIMEOUT_SECONDS).status_code == 426)
        with opened(address) as newcomer:
            answers, end = rest(idle)
            assert answers[-1]["error"]["code"] == "overloaded"
            assert "no frame for longest" in answers[-1]["error"]["message"]
            assert (end.code, end.reason) == (4503, "overloaded")
            backend.gate.set()
            assert answer(busy)["status"] == "ok"
            assert ask(newcomer, frame(0))["status"] == "ok"


def test_refused_handshake_costs_no_other_stream_its_place(backend, monkeypatch):
    monkeypatch.setattr("gateway.plugins.streams.session.IDLE_SECONDS", 0.0)
    with stream_service(backend, max_streams=1) as (address, _), opened(address) as client:
        for query in ("?top_k=5000", "?model=nothing", "?alpha=nan"):
            refused(address, query)
        assert httpx.get(f"http://{address}/stream", timeout=TIMEOUT_SECONDS).status_code == 426
        assert ask(client, frame(0))["status"] == "ok"


def test_shutdown_sends_pending_results_and_asks_to_reconnect():
    backend = frame_backend()
    with stream_service(backend) as (address, server), opened(address) as client:
        ask(client, frame(0))
        backend.gate.clear()
        client.send(frame(255))
        wait_for(lambda: backend.in_flight)
        server.should_exit = True
        wait_for(lambda: not listens(int(address.rpartition(":")[2])))
        backend.gate.set()
        assert answer(client)["frame"] == 1
        _, end = rest(client)
    assert (end.code, end.reason) == (1012, "the server is stopping; connect again")
    assert backend.sequences[0].closed


def test_bug_during_the_handshake_is_answered_500_and_logged_once(monkeypatch):
    async def labels(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(StubBackend, "labels", labels)
    with structlog.testing.capture_logs() as events, stream_service(StubBackend()) as (address, _):
        assert refused(address) == (500, "internal_error")
    assert [event["event"] for event in events].count("unexpected_error") == 1


def test_bug_on_an_open_stream_closes_it_with_1011_and_is_logged_once():
    with (
        structlog.testing.capture_logs() as events,
        stream_service(StubBackend(KeyError("a bug"), combine=lambda frames: frames[-1])) as (address, _),
        opened(address) as client,
    ):
        client.send(frame(0))
        answers, end = rest(client)
        wait_for(lambda: any(event.get("close_code") == 1011 for event in events))
    assert (answers[-1]["error"]["code"], end.code, end.reason) == ("internal_error", 1011, "internal_error")
    assert [event["event"] for event in events].count("unexpected_error") == 1


def test_event_of_a_stream_has_the_trace_of_its_client():
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    merging = [structlog.contextvars.merge_contextvars]
    with stream_service(frame_backend()) as (address, _), structlog.testing.capture_logs(processors=merging) as events:
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Request-ID": "mine"}
        with opened(address, additional_headers=headers) as client:
            ask(client, frame(0))
        wait_for(lambda: [event for event in events if event.get("method") == "WEBSOCKET"])
    (event,) = (event for event in events if event.get("method") == "WEBSOCKET")
    assert (event["trace_id"], event["request_id"], event["frames_answered"]) == (trace, "mine", 1)


def test_costly_frames_fail_and_the_stream_goes_on(backend, monkeypatch):
    """Each takes half a second in the preprocessor by its scans, and this stream regains next to nothing meanwhile."""
    monkeypatch.setattr("gateway.limits.account.STREAM_SECONDS_PER_SECOND", 1e-6)
    costly = progressive_jpeg_of_many_scans(2_000, 249)
    with stream_service(backend, request_cpu_seconds=0.6) as (address, _), opened(address, "?drop=never") as client:
        answers = [ask(client, costly) for _ in range(4)]
        codes = [answer["error"] and answer["error"]["code"] for answer in answers]
        assert codes == [None, None, "too_costly", "too_costly"]
        assert ask(client, frame(0))["frame"] == 4


def test_frames_wait_for_the_rate_of_their_key_or_have_an_error(tmp_path):
    """A frame fails only if it had to wait for more than `max_wait_seconds`; the stream then continues."""
    path = tmp_path / "keys"
    steady, spent = key_of(path, "steady", rate="5/s"), key_of(path, "spent", rate="1/h")
    with stream_service(frame_backend(), api_keys_file=path) as (address, _):
        with opened(address, "?drop=never", additional_headers=steady) as client:
            began = time.monotonic()
            for _ in range(8):
                client.send(frame(0))
            assert [answer(client)["status"] for _ in range(8)] == ["ok"] * 8
            assert time.monotonic() - began >= 0.35
        with opened(address, additional_headers=spent) as client:
            assert ask(client, frame(0))["status"] == "ok"
            for _ in range(2):
                assert ask(client, frame(0))["error"]["code"] == "rate_limited"


LABELS = ("cat", "dog", "cow")
MARGIN = 0.15


@pytest.mark.parametrize(
    ("frames", "selection", "firsts"),
    [
        (((0.5, 0.25, 0), (0.25, 0.3984375, 0)), Selection(), ["cat", "cat"]),
        (((0.5, 0.25, 0), (0.25, 0.40625, 0)), Selection(), ["cat", "dog"]),
        (((0.6, 0.3, 0.1),), Selection(labels=("dog", "cow")), ["dog"]),
        (
            ((0.6, 0.3, 0), (0.45, 0.55, 0), (0.4, 0.4, 0), (0.1, 0.9, 0)),
            Selection(threshold=0.5),
            ["cat", "dog", "", "dog"],
        ),
    ],
    ids=["lead below the margin", "lead above the margin", "not selected", "below the threshold"],
)
def test_selected_label_is_held_until_another_leads_by_the_margin(frames, selection, firsts):
    held, found = HeldLabel(), []
    for scores in frames:
        best = held.predictions(np.array(scores, np.float32), LABELS, selection, MARGIN, multi_label=False)
        found.append(best[0]["label"] if best else "")
    assert found == firsts
