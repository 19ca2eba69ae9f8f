"""Which models are unloaded for another one, and how they are used."""

from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from gateway_plugins.demand.choice import Budget, Claim, LoadedModel, to_unload, total
from gateway_plugins.demand.memory import GPU, HOST
from gateway_plugins.demand.usage import IN_USE_SECONDS, REMEMBERED_CLIENTS, TritonUsage, Usage, percentile


def model(name: str, idle_seconds: float, *clients: str, host=100, gpu=0, stays=False, busy=False) -> LoadedModel:
    return LoadedModel(name, {HOST: host, GPU: gpu}, stays, busy, idle_seconds, frozenset(clients))


def test_nothing_is_unloaded_at_the_limit():
    loaded = [model("a", 5), model("b", 9)]
    assert to_unload(loaded, {HOST: 100}, Budget(300)) == []
    assert to_unload(loaded, {HOST: 101}, Budget(300)) == ["b"]


def test_least_recently_used_models_go_first():
    loaded = [model("new", 1), model("old", 60), model("middle", 30)]
    assert to_unload(loaded, {HOST: 150}, Budget(300)) == ["old", "middle"]


def test_models_that_stay_are_not_unloaded():
    loaded = [model("fixed", 60, stays=True), model("new", 2)]
    for claim in (Claim(), Claim(busy_too=True)):
        assert to_unload(loaded, {HOST: 100}, Budget(200), claim) == ["new"]
        assert to_unload(loaded, {HOST: 101}, Budget(200), claim) is None


def test_busy_models_go_last_and_only_if_claimed():
    loaded = [model("busy", 60, busy=True), model("idle", 2)]
    assert to_unload(loaded, {HOST: 100}, Budget(200)) == ["idle"]
    assert to_unload(loaded, {HOST: 101}, Budget(200)) is None
    assert to_unload(loaded, {HOST: 100}, Budget(200), Claim(busy_too=True)) == ["idle"]
    assert to_unload(loaded, {HOST: 101}, Budget(200), Claim(busy_too=True)) == ["idle", "busy"]


def test_models_that_free_nothing_where_memory_is_short_stay():
    loaded = [model("on the host", 60), model("on the GPU", 5, gpu=100)]
    assert to_unload(loaded, {GPU: 100}, Budget(1_000, 100)) == ["on the GPU"]
    assert to_unload(loaded, {GPU: 100}, Budget(1_000)) == []


def test_model_on_a_further_triton_replaces_only_models_idle_for_long():
    loaded = [model("a", 20)]
    assert to_unload(loaded, {HOST: 100}, Budget(100), Claim(least_idle_seconds=21)) is None
    assert to_unload(loaded, {HOST: 100}, Budget(100), Claim(least_idle_seconds=20)) == ["a"]


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


def test_client_gives_up_its_own_model_before_it_takes_one():
    loaded = [model("theirs", 30, "other"), model("own", 5, "greedy")]
    assert to_unload(loaded, {HOST: 100}, Budget(200), Claim(client="greedy")) == ["own"]
    assert to_unload(loaded, {HOST: 100}, Budget(200), Claim(client="third")) == ["theirs"]
    assert to_unload(loaded, {HOST: 100}, Budget(200)) == ["theirs"]


def test_model_that_another_client_uses_stays_while_ones_own_was_just_loaded():
    loaded = [model("theirs", 30, "other"), model("own", 1, "greedy", stays=True)]
    assert to_unload(loaded, {HOST: 100}, Budget(200), Claim(client="greedy")) is None


def test_client_takes_models_from_one_that_has_more():
    loaded = [model("a", 30, "rich"), model("b", 20, "rich"), model("c", 10, "poor")]
    assert to_unload(loaded, {HOST: 100}, Budget(300), Claim(client="poor")) == ["a"]
    assert to_unload(loaded, {HOST: 200}, Budget(300), Claim(client="poor")) == ["c", "a"]


def test_client_without_a_model_takes_the_one_least_recently_used():
    loaded = [model("shared", 30, "a", "b"), model("other", 20, "b")]
    assert to_unload(loaded, {HOST: 100}, Budget(200), Claim(client="c")) == ["shared"]
    assert to_unload(loaded, {HOST: 100}, Budget(200), Claim(client="a")) == ["shared"]


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
    now = 100.0
    usage = TritonUsage(lambda: now)
    usage.update({"a", "b"}, statistics(a=5, b=5), {})
    now = 110.0
    usage.update({"a", "b"}, statistics(a=5, b=6), {})
    assert (usage.used_at("a"), usage.used_at("b")) == (100.0, 110.0)
    now = 120.0
    usage.update({"a", "b"}, None, {})  # Triton did not answer
    assert (usage.used_at("a"), usage.used_at("b")) == (100.0, 110.0)
    own = Usage()
    own.request(115.0)
    usage.update({"a", "b"}, statistics(a=6, b=7), {"a": own})
    assert (usage.used_at("a"), usage.used_at("b")) == (100.0, 120.0)


def test_versions_of_a_model_count_as_its_use():
    now = 100.0
    usage = TritonUsage(lambda: now)
    for now, answers in ((100.0, 1), (110.0, 2)):  # noqa: B007  # read by the clock
        usage.update({"a"}, statistics(a=5, a_v2=answers), {}, lambda name: name.partition("_")[0])
    assert usage.used_at("a") == 110.0


def test_model_that_was_away_counts_as_newly_loaded():
    now = 100.0
    usage = TritonUsage(lambda: now)
    usage.update({"a"}, statistics(), {})
    now = 200.0
    assert usage.loaded_seconds("a") == 100
    usage.update(set(), statistics(), {})
    usage.update({"a"}, statistics(), {})
    assert usage.loaded_seconds("a") == 0
