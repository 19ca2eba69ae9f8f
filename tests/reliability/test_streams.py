"""Open streams while a Triton dies: their sequences restart, and the next answer reports it."""

import os
import signal

import pytest
from websockets.sync.client import ClientConnection

from tests.cameras import PHOTO, picture
from tests.processes import wait_for
from tests.reliability.conftest import ready
from tests.streaming import ask, opened

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def frames_so_far(client: ClientConnection) -> int:
    """Send a frame; return the length of the sequence, 0 without a sequence."""
    sequence = ask(client, picture(PHOTO.read_bytes()))["sequence"]
    return sequence["frames"] if sequence else 0


def test_stream_continues_after_a_triton_restart(start_triton, start_gateway):
    own = start_triton()
    own.wait_ready()
    with (
        start_gateway(triton_url=own.url, ready_interval_seconds=0.5) as gateway,
        opened(gateway.url, "?top_k=1") as client,
    ):
        assert [frames_so_far(client) for _ in range(3)] == [1, 2, 3]
        os.kill(own.pid, signal.SIGKILL)
        own.stop()
        assert ask(client, picture(PHOTO.read_bytes()))["status"] == "error"
        own.start()
        answers = []

        def goes_on() -> bool:
            answers.append(ask(client, picture(PHOTO.read_bytes())))
            return answers[-1]["status"] == "ok" and answers[-1]["sequence"]["error"] is None

        wait_for(goes_on)
        assert answers[-1]["sequence"]["restarted"]
        assert answers[-1]["sequence"]["frames"] == 1
        assert (after := ask(client, picture(PHOTO.read_bytes()))["sequence"])["frames"] == 2
        assert not after["restarted"]
        wait_for(lambda: ready(gateway))
