"""Open streams while a Triton dies: their sequences restart, and the next answer reports it."""

import json
import os
import signal

import pytest
from websockets.sync.client import ClientConnection, connect

from bench.stream import PHOTO, picture
from tests.processes import Gateway, wait_for
from tests.reliability.conftest import ready

pytestmark = [pytest.mark.triton, pytest.mark.slow]
TIMEOUT_SECONDS = 120


def opened(gateway: Gateway) -> ClientConnection:
    address = gateway.url.replace("http", "ws", 1)
    return connect(f"{address}/stream?top_k=1", proxy=None, compression=None, open_timeout=TIMEOUT_SECONDS)


def ask(client: ClientConnection) -> dict:
    client.send(picture(PHOTO.read_bytes()))
    return json.loads(client.recv(TIMEOUT_SECONDS))


def frames_so_far(client: ClientConnection) -> int:
    """Send a frame; return the length of the sequence, 0 without a sequence."""
    sequence = ask(client)["sequence"]
    return sequence["frames"] if sequence else 0


def test_stream_continues_after_a_triton_restart(start_triton, start_gateway):
    own = start_triton()
    own.wait_ready()
    with start_gateway(triton_url=own.url, ready_interval_seconds=0.5) as gateway, opened(gateway) as client:
        assert [frames_so_far(client) for _ in range(3)] == [1, 2, 3]
        os.kill(own.pid, signal.SIGKILL)
        own.stop()
        assert ask(client)["status"] == "error"
        own.start()
        answers = []

        def goes_on() -> bool:
            answers.append(ask(client))
            return answers[-1]["status"] == "ok" and answers[-1]["sequence"]["error"] is None

        wait_for(goes_on)
        assert answers[-1]["sequence"]["restarted"]
        assert answers[-1]["sequence"]["frames"] == 1
        assert (after := ask(client)["sequence"])["frames"] == 2
        assert not after["restarted"]
        wait_for(lambda: ready(gateway))
