"""How many calls keep a Triton busy, and which images may share one."""

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from gateway.inference.backend import CallLimits
from gateway.triton.ensemble import Ensemble, StepWorkload, has_cache
from gateway.triton.wire import ImageCodec
from tests.doubles.triton import FakeTriton
from tests.gateway.triton.fleet import MODEL, call_of, fleet_of


def ensemble(*steps: tuple[int, int, float | None], round_trip_seconds: float = 0.0) -> Ensemble:
    """An ensemble whose steps have these instances, preferred batches and seconds for an image."""
    workloads = [StepWorkload(*step) for step in steps]
    return Ensemble("m", ImageCodec(most_images=64), False, workloads, round_trip_seconds)


@pytest.mark.parametrize(
    ("found", "max_images", "limits"),
    [
        (ensemble((2, 8, 0.0021), (2, 8, 0.0032)), 8, CallLimits(3, 8)),  # 2 in the slower step, 1.3 in the other one
        (ensemble((2, 8, 0.0021), (2, 8, 0.0032)), 32, CallLimits(3, 18)),
        (ensemble((2, 8, 0.003), (2, 8, 0.025)), 8, CallLimits(3, 3)),  # one waits for an instance of the slower step
        (ensemble((2, 8, 0.003), (2, 8, 0.25)), 8, CallLimits(3, 2)),
        (ensemble((2, 8, None), (2, 8, 0.0032)), 8, CallLimits(5, 8)),  # one for each instance, and one that waits
        (ensemble((14, 8, 0.0022), (2, 8, 0.0001)), 8, CallLimits(15, 8)),
        (ensemble((14, 8, 0.0022), (2, 32, 0.0003)), 8, CallLimits(22, 8)),  # four calls fill a batch of the network
        (ensemble((2, 8, 0.0021), (2, 8, 0.0032), round_trip_seconds=0.02), 8, CallLimits(5, 8)),  # far away
        (ensemble(), 8, CallLimits(1, 8)),
    ],
)
def test_limits_follow_from_instances_and_measured_times(found, max_images, limits):
    assert found.limits(max_images) == limits


def statistics(*batches: tuple[int, int, float], success: int = 0, misses: int = 0) -> ModelStatisticsResponse:
    """Statistics of batches: size, count, and milliseconds of each."""
    response = ModelStatisticsResponse()
    model = response.model_stats.add(name="m")
    model.inference_stats.success.count = success
    model.inference_stats.cache_miss.count = misses
    for size, count, milliseconds in batches:
        batch = model.batch_stats.add(batch_size=size)
        for part, share in (("compute_input", 0.25), ("compute_infer", 0.5), ("compute_output", 0.25)):
            getattr(batch, part).count = count
            getattr(batch, part).ns = int(count * milliseconds * share * 1e6)
    return response


def test_step_is_read_from_configuration_and_statistics():
    config = ModelConfig()
    config.instance_group.add(count=2, gpus=[0, 1, 2])
    config.instance_group.add(count=1)
    config.dynamic_batching.preferred_batch_size.extend([4, 8])
    step = StepWorkload.of(config, statistics((1, 10, 3.0), (8, 10, 12.0)))
    assert (step.instances, step.preferred_images) == (7, 8)
    assert step.seconds_per_image == pytest.approx((10 * 0.003 + 10 * 0.012) / 90)
    assert StepWorkload.of(ModelConfig(), statistics()) == StepWorkload(1, 1, None)


@pytest.mark.parametrize(
    ("enabled", "success", "misses", "cached"),
    [(False, 0, 0, False), (True, 0, 0, True), (True, 9, 0, False), (True, 9, 1, True)],
)
def test_cache_is_assumed_until_statistics_show_none(enabled, success, misses, cached):
    config = ModelConfig()
    config.response_cache.enable = enabled
    assert has_cache(config, statistics(success=success, misses=misses)) is cached


async def test_limits_are_known_after_the_first_call_and_added_over_tritons():
    async with fleet_of(2, instances=3) as fleet:
        assert fleet.backend.call_limits("nope", "", 8) is None
        assert fleet.backend.call_limits(MODEL, "", 8) is None
        await fleet.backend.infer(call_of(b"image"))
        limits = fleet.backend.call_limits(MODEL, "", 8)
        per_triton = 3 * len(FakeTriton().ensembles[MODEL])
        assert limits == CallLimits(2 * (per_triton + 1), 8)
        assert fleet.backend.call_limits(MODEL, "", 100).images == 8  # the model's max_batch_size


async def test_images_sent_before_are_known_until_others_follow(monkeypatch):
    monkeypatch.setattr("gateway.triton.backend.RECENT_IMAGES", 3)
    async with fleet_of(1) as fleet:
        known = [fleet.backend.needs_own_call(signature, MODEL, "") for signature in map(str.encode, "abacdba")]
    assert known == [False, False, True, *[False] * 4]


async def test_image_sent_before_has_a_call_of_its_own_where_there_may_be_a_cache():
    async with fleet_of(1) as fleet:
        backend = fleet.backend
        first = backend.sign(b"one")
        assert not backend.needs_own_call(first, MODEL, "")
        assert backend.needs_own_call(first, MODEL, "")  # nothing is known before the first call
        await backend.infer(call_of(b"image"))
        assert not backend.needs_own_call(first, MODEL, "")
