"""Splits: shares of the right size, and the same version for the same client."""

from collections import Counter

import pytest

from gateway_plugins.rollouts.split import choose

SHARES = {"1": 90, "2": 10}


@pytest.mark.parametrize("client", ["client {}", ""], ids=["by client", "at random, without a client"])
def test_each_version_gets_its_share(client):
    found = Counter(choose(SHARES, "flowers", client.format(number)) for number in range(10_000))
    assert abs(found["2"] - 1_000) < 150
    assert found.total() == 10_000


def test_client_always_gets_the_same_version():
    for client in ("a", "b", "ü", "x" * 1_000):
        assert len({choose(SHARES, "flowers", client) for _ in range(50)}) == 1


def test_larger_share_moves_only_the_clients_that_it_gains():
    clients = [f"client {number}" for number in range(2_000)]
    before = {client: choose({"1": 90, "2": 10}, "flowers", client) for client in clients}
    after = {client: choose({"1": 70, "2": 30}, "flowers", client) for client in clients}
    assert {after[client] for client in clients if before[client] == "2"} == {"2"}


def test_models_split_their_clients_independently():
    clients = [f"client {number}" for number in range(500)]
    halves = {"1": 1, "2": 1}
    assert [choose(halves, "a", client) for client in clients] != [choose(halves, "b", client) for client in clients]


def test_share_of_zero_gets_no_clients():
    for shares in ({"1": 0, "2": 1}, {"2": 1, "1": 0}):
        assert {choose(shares, "flowers", str(number)) for number in range(200)} == {"2"}
