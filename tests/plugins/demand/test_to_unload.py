"""Which models are unloaded for another one, and how they are used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from gateway_plugins.demand.choice import Budget, Claim, LoadedModel, to_unload, total
from gateway_plugins.demand.memory import GPU, HOST
from gateway_plugins.demand.usage import IN_USE_SECONDS, REMEMBERED_CLIENTS, TritonUsage, Usage, percentile
from tests.doubles.clock import Clock


def model(name: str, idle_seconds: float, *clients: str, host=100, gpu=0, stays=False, busy=False) -> LoadedModel:
    return LoadedModel(name, {HOST: host, GPU: gpu}, stays, busy, idle_seconds, frozenset(clients))


IDLE = [model("a", 5), model("b", 9)]
ON_GPU = [model("on the host", 60), model("on the GPU", 5, gpu=100)]
STAYS = [model("fixed", 60, stays=True), model("new", 2)]
BUSY = [model("busy", 60, busy=True), model("idle", 2)]
OWN = [model("theirs", 30, "other"), model("own", 5, "greedy")]
RICH = [model("a", 30, "rich"), model("b", 20, "rich"), model("c", 10, "poor")]
SHARED = [model("shared", 30, "a", "b"), model("other", 20, "b")]


@pytest.mark.parametrize(
    ("loaded", "needed", "budget", "claim", "names"),
    [
        (IDLE, {HOST: 100}, Budget(300), Claim(), []),
        (IDLE, {HOST: 101}, Budget(300), Claim(), ["b"]),
        (
            [model("new", 1), model("old", 60), model("middle", 30)],
            {HOST: 150},
            Budget(300),
            Claim(),
            ["old", "middle"],
        ),
        # Models that stay.
        *((STAYS, {HOST: 100}, Budget(200), claim, ["new"]) for claim in (Claim(), Claim(busy_too=True))),
        *((STAYS, {HOST: 101}, Budget(200), claim, None) for claim in (Claim(), Claim(busy_too=True))),
        # Busy models go last, and only if they are claimed.
        (BUSY, {HOST: 100}, Budget(200), Claim(), ["idle"]),
        (BUSY, {HOST: 101}, Budget(200), Claim(), None),
        (BUSY, {HOST: 100}, Budget(200), Claim(busy_too=True), ["idle"]),
        (BUSY, {HOST: 101}, Budget(200), Claim(busy_too=True), ["idle", "busy"]),
        # Models that free nothing where memory is short.
        (ON_GPU, {GPU: 100}, Budget(1_000, 100), Claim(), ["on the GPU"]),
        (ON_GPU, {GPU: 100}, Budget(1_000), Claim(), []),
        # A model on a further Triton replaces only models that have long been idle.
        ([model("a", 20)], {HOST: 100}, Budget(100), Claim(least_idle_seconds=21), None),
        ([model("a", 20)], {HOST: 100}, Budget(100), Claim(least_idle_seconds=20), ["a"]),
        # A client gives up its own model before it takes one.
        (OWN, {HOST: 100}, Budget(200), Claim(client="greedy"), ["own"]),
        (OWN, {HOST: 100}, Budget(200), Claim(client="third"), ["theirs"]),
        (OWN, {HOST: 100}, Budget(200), Claim(), ["theirs"]),
        # Its own one was just loaded.
        ([OWN[0], model("own", 1, "greedy", stays=True)], {HOST: 100}, Budget(200), Claim(client="greedy"), None),
        # It takes models from a client that has more.
        (RICH, {HOST: 100}, Budget(300), Claim(client="poor"), ["a"]),
        (RICH, {HOST: 200}, Budget(300), Claim(client="poor"), ["c", "a"]),
        # A client without a model takes the least recently used one.
        *((SHARED, {HOST: 100}, Budget(200), Claim(client=client), ["shared"]) for client in "ca"),
    ],
)
def test_models_to_unload(loaded, needed, budget, claim, names):
    assert to_unload(loaded, needed, budget, claim) == names


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans(), st.booleans(), st.floats(0, 100)), max_size=8
    ),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_what_stays_fits_and_nothing_in_use_goes(models, host, gpu, host_budget, gpu_budget):
    loaded = [
        LoadedModel(str(index), {HOST: on_host, GPU: on_gpu}, stays, busy, idle_seconds)
        for index, (on_host, on_gpu, stays, busy, idle_seconds) in enumerate(models)
    ]
    budget, needed = Budget(host_budget, gpu_budget), {HOST: host, GPU: gpu}
    names = to_unload(loaded, needed, budget)
    if names is None:
        in_use = [each.amounts for each in loaded if each.stays or each.busy]
        assert budget.exceeded(total([needed, *in_use]))
        return
    gone = [each for each in loaded if each.name in names]
    assert not any(each.stays or each.busy for each in gone)
    assert not budget.exceeded(total([needed, *(each.amounts for each in loaded if each not in gone)]))


def test_clients_use_a_model_for_a_while():
    usage = Usage()
    for second, client in ((0.0, "a"), (30.0, "b")):
        usage.request(second, client)
    assert usage.clients(30.0) == {"a", "b"}
    assert usage.clients(IN_USE_SECONDS) == {"b"}
    for number in range(2 * REMEMBERED_CLIENTS):
        usage.request(40.0, f"client {number}")
    assert len(usage.clients(40.0)) == REMEMBERED_CLIENTS


def test_load_times_are_nearest_rank_percentiles():
    usage = Usage()
    assert usage.load_times(None) is None
    for seconds in range(1, 101):
        usage.add_load(float(seconds))
    times = usage.load_times(7)
    assert times is not None
    assert (times.loads, times.p50_seconds, times.p99_seconds, times.memory_bytes) == (100, 50, 99, 7)
    assert percentile([3.0], 50) == percentile([3.0], 99) == 3.0


def statistics(**answers: int) -> ModelStatisticsResponse:
    found = ModelStatisticsResponse()
    for name, count in answers.items():
        found.model_stats.add(name=name).inference_stats.success.count = count
    return found


def test_changed_count_shows_the_use_by_another_gateway():
    clock = Clock(100.0)
    usage = TritonUsage(clock)
    usage.update({"a", "b"}, statistics(a=5, b=5), {})
    clock.seconds = 110.0
    usage.update({"a", "b"}, statistics(a=5, b=6), {})
    assert (usage.used_at("a"), usage.used_at("b")) == (100.0, 110.0)
    clock.seconds = 120.0
    usage.update({"a", "b"}, None, {})  # Triton did not answer
    assert (usage.used_at("a"), usage.used_at("b")) == (100.0, 110.0)
    own = Usage()
    own.request(115.0)
    usage.update({"a", "b"}, statistics(a=6, b=7), {"a": own})
    assert (usage.used_at("a"), usage.used_at("b")) == (100.0, 120.0)
    # A version of a model counts as its use.
    for clock.seconds, answers in ((130.0, 1), (140.0, 2)):
        usage.update({"a"}, statistics(a=6, a_v2=answers), {}, lambda name: name.partition("_")[0])
    assert usage.used_at("a") == 140.0


def test_model_that_was_away_counts_as_newly_loaded():
    clock = Clock(100.0)
    usage = TritonUsage(clock)
    usage.update({"a"}, statistics(), {})
    clock.seconds = 200.0
    assert usage.loaded_seconds("a") == 100
    usage.update(set(), statistics(), {})
    usage.update({"a"}, statistics(), {})
    assert usage.loaded_seconds("a") == 0
