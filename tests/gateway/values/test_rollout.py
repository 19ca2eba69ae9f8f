"""Which versions answer: parsing, shares of the right size, and the same version for the same client."""

from collections import Counter
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from gateway.values.rollout import Rollout, newest

HALVES = Rollout({"1": 1, "2": 1})


@pytest.mark.parametrize(
    ("versions", "shadows", "shares", "shadow", "main"),
    [
        (["2"], [], {"2": 100}, {}, "2"),
        (["2=7"], [], {"2": 100}, {}, "2"),
        (["10=10", "9=90"], [], {"9": 90, "10": 10}, {}, "9"),
        (["1"], ["2"], {"1": 100}, {"2": 100}, "1"),
        (["1=1", "2=1"], ["2=5", "3"], {"1": 1, "2": 1}, {"2": 5, "3": 100}, "1"),
    ],
)
def test_versions_and_shares_are_read_and_written(versions, shadows, shares, shadow, main):
    rollout = Rollout.of(versions, shadows, by='ü"\\')
    assert (rollout.shares, list(rollout.shares), rollout.shadow, rollout.version) == (shares, [*shares], shadow, main)
    assert Rollout.read(rollout.text) == rollout
    assert rollout.text.isascii()
    assert abs((datetime.now(UTC) - rollout.since).total_seconds()) < 60


@pytest.mark.parametrize(
    ("versions", "shadows", "words"),
    [
        ([], [], "name the version"),
        (["1", "2"], [], "share each, such as 1=90 2=10"),
        (["1=90", "1=10"], [], "version 1 is named twice"),
        (["1=0", "2=1"], [], "'1=0' is not a version"),
        (["1=1001", "2=1"], [], "from 1 to 1000"),
        (["1=0.5", "2=1"], [], "'1=0.5'"),
        (["01"], [], "'01'"),
        (["v1"], [], "'v1'"),
        (["1:90,2:10"], [], "'1:90,2:10'"),
        (["1"], ["1"], "version 1 gives every answer"),
        (["1"], ["2=101"], "'2=101'"),
    ],
)
def test_wrong_versions_are_refused_by_name(versions, shadows, words):
    with pytest.raises(ValueError, match=words):
        Rollout.of(versions, shadows)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", '{"shares":{}}', '{"shares":{"1":0}}', '{"shares":{"x":1}}', '{"shares":{"1":1},"more":1}'),
        '{"shares":{"1":1},"since":"2026-01-01T00:00:00"}',  # of which time zone?
    ],
)
def test_wrong_records_are_refused(text):
    with pytest.raises(ValidationError):
        Rollout.read(text)


def test_last_change_wins_where_servers_differ():
    old, new = (Rollout({"1": 1}, since=datetime(2026, 1, day, tzinfo=UTC)) for day in (1, 2))
    assert newest([old, new, HALVES]) is new
    assert newest([]) is None


@pytest.mark.parametrize("client", ["client {}", ""], ids=["by client", "at random, without a client"])
def test_each_version_gets_its_share(client):
    rollout = Rollout({"1": 90, "2": 10})
    found = Counter(rollout.choose("flowers", client.format(number)) for number in range(10_000))
    assert abs(found["2"] - 1_000) < 150
    assert found.total() == 10_000


def test_larger_share_moves_only_the_clients_that_it_gains():
    clients = [f"client {number}" for number in range(2_000)]
    before, after = (Rollout.of([f"2={share}", f"1={100 - share}"]) for share in (10, 30))
    moved = {after.choose("flowers", client) for client in clients if before.choose("flowers", client) == "2"}
    assert moved == {"2"}


def test_models_split_their_clients_independently():
    clients = [f"client {number}" for number in range(500)]
    assert [HALVES.choose("a", client) for client in clients] != [HALVES.choose("b", client) for client in clients]
