"""DNS that fails, flaps or returns no addresses removes no Triton that is in use."""

from collections.abc import Sequence

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


async def seen(*answers: Sequence[str] | OSError, lookups: int) -> list[list[str]]:
    addresses = Addresses(["triton:8001"], Dns(*answers))
    return [await addresses.current() for _ in range(lookups)]


async def test_failed_lookup_keeps_the_addresses_and_is_counted():
    before = metrics.DNS_FAILURES._value.get()
    assert await seen([ONE, TWO], OSError("server failure"), lookups=5) == [[ONE, TWO]] * 5
    assert metrics.DNS_FAILURES._value.get() == before + 4


async def test_empty_lookup_keeps_the_addresses():
    assert await seen([ONE, TWO], [], lookups=4) == [[ONE, TWO]] * 4


async def test_slow_lookup_fails():
    assert await seen([ONE], TimeoutError(), lookups=3) == [[ONE]] * 3


async def test_address_is_removed_after_two_lookups_without_it():
    assert await seen([ONE, TWO], [ONE], [ONE, TWO], lookups=3) == [[ONE, TWO]] * 3
    assert await seen([ONE, TWO], [ONE], [ONE], lookups=3) == [[ONE, TWO], [ONE, TWO], [ONE]]


async def test_new_address_is_added_at_once():
    assert await seen([ONE], [ONE, TWO], lookups=2) == [[ONE], [ONE, TWO]]


async def test_unresolved_name_stays_a_name():
    assert await seen(OSError("no such name"), [ONE], lookups=2) == [["triton:8001"], [ONE]]


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
