"""Which stream ends for another one; at the limit and one past it."""

from contextlib import ExitStack

import pytest

from gateway.errors import GatewayError, Overloaded
from gateway.limits.streams import MIN_IDLE_SECONDS, Streams


class Stub:
    def __init__(self, idle_seconds: float) -> None:
        self.idle_seconds = idle_seconds
        self.error: GatewayError | None = None

    def stop(self, error: GatewayError) -> None:
        self.error = error


def test_longest_without_a_frame_is_stopped():
    streams, kept = Streams(3), [Stub(9), Stub(30), Stub(10)]
    with ExitStack() as stack:
        for each in kept:
            stack.enter_context(streams.place(each))
        stack.enter_context(streams.place(Stub(0)))
        assert [each.error is not None for each in kept] == [False, True, False]
        assert isinstance(kept[1].error, Overloaded)
        assert kept[1].error.details == {"limit": "max_streams", "value": 3}
        stack.enter_context(streams.place(Stub(0)))
        assert kept[2].error is not None


@pytest.mark.parametrize(("idle_seconds", "goes"), [(MIN_IDLE_SECONDS, True), (MIN_IDLE_SECONDS - 0.001, False)])
def test_stream_with_a_recent_frame_keeps_its_place(idle_seconds, goes):
    streams, first = Streams(1), Stub(idle_seconds)
    with streams.place(first):
        if goes:
            streams.check()
            with streams.place(Stub(0)):
                assert first.error is not None
        else:
            with pytest.raises(Overloaded):
                streams.check()
            with pytest.raises(Overloaded), streams.place(Stub(0)):
                pass
            assert first.error is None


def test_place_is_free_when_a_stream_ends():
    streams = Streams(1)
    for _ in range(3):
        with streams.place(Stub(0)), pytest.raises(Overloaded):
            streams.check()
        streams.check()


def test_limit_of_zero_refuses_every_stream():
    with pytest.raises(Overloaded), Streams(0).place(Stub(0)):
        pass
