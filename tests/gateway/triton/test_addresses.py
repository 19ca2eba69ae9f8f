"""DNS that fails, flaps or returns no addresses removes no Triton that is in use."""

from collections.abc import Sequence

import pytest

from gateway import metrics
from gateway.triton.addresses import Addresses
from tests.gateway.triton.fleet import fleet_of, wait_until

ONE, TWO = "10.0.0.1:8001", "10.0.0.2:8001"


class Dns:
    """Gives its answers one after another, and repeats the last; an exception is raised."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> list[str]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return list(answer)


BOTH = [ONE, TWO]


@pytest.mark.parametrize(
    ("answers", "seen"),
    [
        ([BOTH, OSError("server failure")], [BOTH] * 5),
        ([BOTH, []], [BOTH] * 4),
        ([[ONE], TimeoutError()], [[ONE]] * 3),
        ([BOTH, [ONE], BOTH], [BOTH] * 3),  # an address is removed after two lookups without it
        ([BOTH, [ONE], [ONE]], [BOTH, BOTH, [ONE]]),
        ([[ONE], BOTH], [[ONE], BOTH]),
        ([OSError("no such name"), [ONE]], [["triton:8001"], [ONE]]),
    ],
    ids=["failure", "empty", "slow", "once without", "twice without", "new", "unresolved"],
)
async def test_addresses_follow_the_lookups(answers, seen):
    addresses, before = Addresses(["triton:8001"], Dns(*answers)), metrics.DNS_FAILURES._value.get()
    assert [await addresses.current() for _ in seen] == seen
    if answers[0] == BOTH and isinstance(answers[1], OSError):
        assert metrics.DNS_FAILURES._value.get() == before + len(seen) - 1


async def test_ip_address_is_not_looked_up():
    addresses = Addresses(["127.0.0.1:8001", "[::1]:8001"], Dns(OSError("looked up")))
    assert await addresses.current() == ["127.0.0.1:8001", "[::1]:8001"]


async def test_tritons_stay_in_use_while_dns_fails():
    async with fleet_of(3) as fleet:
        addresses = fleet.addresses
        fleet.addresses = []
        failures = metrics.DNS_FAILURES._value.get()
        await wait_until(lambda: metrics.DNS_FAILURES._value.get() > failures + 5)
        assert len(fleet.backend.health()) == 3
        assert not any(endpoint.closed for endpoint in fleet.endpoints)
        fleet.addresses = addresses[:1]
        await wait_until(lambda: len(fleet.backend.health()) == 1)
