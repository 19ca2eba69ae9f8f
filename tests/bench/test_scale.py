"""The simulated Tritons speak enough of Triton's gRPC for the gateway's own client."""

from bench.scale import Client, Overload, adding, gateway, one_slow, simulated


async def test_gateway_uses_all_simulated_tritons():
    with simulated(2, seconds=0.001) as tritons:
        async with gateway(list(tritons.addresses), aperture=0) as (backend, members):
            client = Client(backend)
            await client.run(rate=50, seconds=0.5)
            assert len(client.latencies) == client.sent > 0
            assert client.failed == 0
            assert all(replica.load.seconds is not None for replica in members.replicas)


async def test_table_row_has_an_entry_for_each_column():
    row = await one_slow("round robin", 1.0, rate=40, seconds=0.5)
    assert len(row) == 6
    assert row[0] == "round robin"


async def test_gateways_delay_a_rule_that_divides_by_their_limits():
    """By the images of each Triton, one is added at the same load, however many gateways there are."""
    overload = Overload(tritons=1, images_per_triton=12, gateway_limit=16, rate=100.0)
    one, three = [await adding(number, overload) for number in (1, 3)]

    def images(cell: str) -> int:
        return int(cell.partition(" ")[0])

    by_limits, by_tritons = ([images(row[column]) for row in (one, three)] for column in (1, 2))
    assert by_limits[1] > 2 * 0.7 * 16
    assert max(by_tritons) < 2 * 0.7 * 16
