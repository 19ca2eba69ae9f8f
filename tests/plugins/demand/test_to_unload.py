"""Which models are unloaded for another one, how they are measured, and how often they are used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from gateway_plugins.demand.memory import (
    HOST,
    Budget,
    Claim,
    LoadedModel,
    LocalMeter,
    MetricsMeter,
    grown,
    to_unload,
    total,
    used,
)
from gateway_plugins.demand.usage import HALF_LIFE_SECONDS, TritonUsage, Usage, percentile

GPU = "GPU-1"
EXPOSITION = """
# HELP nv_cpu_memory_used_bytes CPU used memory in bytes
# TYPE nv_cpu_memory_used_bytes gauge
nv_cpu_memory_used_bytes 1.5e+09
# HELP nv_gpu_memory_used_bytes GPU used memory, in bytes
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 300000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"} 0
"""


def model(name: str, idle_seconds: float, *, host=100, gpu=0, stays=False, busy=False) -> LoadedModel:
    return LoadedModel(name, {HOST: host, GPU: gpu}, stays, busy, idle_seconds)


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


def test_prefetched_model_replaces_only_models_idle_for_longer():
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


def test_memory_is_read_from_triton_metrics():
    assert used(EXPOSITION) == {HOST: 1_500_000_000, "GPU-1": 300_000_000, "GPU-2": 0}


def test_growth_leaves_out_what_one_reading_lacks():
    assert grown({HOST: 100, "GPU-1": 50}, {HOST: 90, "GPU-1": 80, "GPU-2": 7}) == {HOST: 0, "GPU-1": 30}


async def test_meter_without_metrics_reads_nothing(tmp_path):
    for meter in (MetricsMeter(0), LocalMeter(0, tmp_path), MetricsMeter(1)):
        assert not await meter.machine("127.0.0.1:8001")
        assert not await meter.models("127.0.0.1:8001")
        await meter.close()


def test_mean_interval_is_that_of_steady_requests():
    usage = Usage()
    for second in range(0, 1_000, 10):
        usage.request(float(second))
    assert usage.interval_seconds(990.0) == pytest.approx(10, rel=0.1)
    assert usage.interval_seconds(990.0 + HALF_LIFE_SECONDS) == pytest.approx(20, rel=0.1)
    assert Usage().interval_seconds(0.0) == float("inf")


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
