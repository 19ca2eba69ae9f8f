"""Replies of a store of rates that its script cannot have returned; a real store does not send them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from gateway_plugins.keys.quota import Rate
from gateway_plugins.keys.rate_store import StoredRates
from gateway_plugins.keys.rates import ProcessRates

pytest.importorskip("redis")

RATE = Rate(0.001, 1, "")
MOST_SECONDS = 30.0


def times(admitted: int, wait: str, ahead: str = "0") -> bytes:
    texts = b"".join(b"$%d\r\n%s\r\n" % (len(text), text.encode()) for text in (wait, ahead))
    return b"*3\r\n:%d\r\n" % admitted + texts


@asynccontextmanager
async def rates_in_a_store(reply: bytes) -> AsyncIterator[StoredRates]:
    """Rates in a server that answers each run of a script with `reply`, and +OK to all else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                words.append(await reader.readexactly(int((await reader.readline())[1:])))
                await reader.readline()
            writer.write(reply if words[0] == b"EVALSHA" else b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0?protocol=2"
        rates = StoredRates(url, ProcessRates())
        try:
            yield rates
        finally:
            await rates.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"*0\r\n",
        b"*3\r\n:1\r\n:0\r\n$-1\r\n",
        b"*3\r\n$1\r\n1\r\n$1\r\n0\r\n$1\r\n0\r\n",
        times(2, "0"),
        times(1, "soon"),
        times(1, "-1"),
        times(1, "nan"),
        times(1, "31"),
        times(1, "1e300"),
        times(0, "nan"),
        times(0, "inf"),
        times(0, "1e300"),
        times(1, "0", "inf"),
        times(1, "0", "nan"),
        times(1, "0", "-1"),
    ],
)
async def test_invalid_reply_counts_as_a_failed_store(reply):
    failures = REGISTRY.get_sample_value("gateway_rate_store_failures_total")
    async with rates_in_a_store(reply) as rates:
        with capture_logs() as events:
            grants = [await rates.take("a", RATE, MOST_SECONDS) for _ in range(2)]
    assert [(grant.admitted, grant.wait_seconds > MOST_SECONDS) for grant in grants] == [(True, False), (False, True)]
    assert [event["event"] for event in events] == ["rate_store_lost"]
    assert REGISTRY.get_sample_value("gateway_rate_store_failures_total") == failures + 1


async def test_valid_reply_at_the_longest_wait_is_used():
    async with rates_in_a_store(times(1, "30")) as rates:
        grant = await rates.take("a", RATE, MOST_SECONDS)
    assert grant.admitted
    assert grant.wait_seconds == MOST_SECONDS
