"""The contract of TritonEndpoint: the fake endpoint and the real one, with a real Triton, pass the same tests."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.errors import (
    DeadlineExceeded,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    TritonUnreachable,
)
from gateway.inference.backend import Call, SequenceStep
from gateway.timing import Deadline
from gateway.triton.client import FORCE_RELOAD_PARAMETER, SequenceLost, StubDied, TritonEndpoint
from gateway.triton.configs import parameters, steps
from gateway.triton.contract import FEATURES, IMAGE_STATUS, PREDICTION
from gateway_local.runtime.base import TritonRuntime
from tests.doubles.triton import (
    EMBEDDING_SIZE,
    FAILS,
    KILLER,
    LABELS,
    SCORES,
    SLOW,
    UNDECODABLE,
    FakeEndpoint,
    FakeTriton,
)
from tests.gateway.triton.fleet import MODEL
from tests.gateway.triton.small_repository import write_repository
from tests.tritons import running_triton

FAKE = "10.0.0.1:8001"


@pytest.fixture(scope="module")
def real_address(runtime: TritonRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_triton(runtime, write_repository(tmp_path_factory.mktemp("small") / "models")) as server:
        yield server.url


@pytest.fixture(scope="module", autouse=True)
async def one_event_loop() -> AsyncIterator[None]:
    """Run all of these tests in one event loop.

    gRPC reports the end of a cancelled call later, to the loop of the call. If that is closed, an error comes up in the
    loop of another test.
    """
    yield  # noqa: PT022  # a fixture with a teardown keeps the loop open until then


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.triton)])
def address(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("real_address") if request.param == "real" else FAKE


@pytest.fixture
async def endpoint(address: str) -> AsyncIterator[TritonEndpoint]:
    fake = FakeEndpoint(address, FakeTriton(embedding_size=EMBEDDING_SIZE))
    made: TritonEndpoint = fake if address == FAKE else TritonEndpoint(address)
    yield made
    await made.close()


def call(*images: bytes, model: str = MODEL, version: str = "", seconds: float = 30) -> Call:
    return Call(images or (b"image",), model, version, None, Deadline.after(seconds), "test")


def step(sequence_id: int, *, start: bool = False, end: bool = False) -> SequenceStep:
    scores = np.array([0.25, 0.75], np.float32)
    return SequenceStep("sequence_model", sequence_id, scores, {}, Deadline.after(30), "test", start, end)


async def settled_state(endpoint: TritonEndpoint, model: str) -> RepositoryIndexResponse.ModelIndex:
    """The state of a model once Triton has completed unloading it."""
    while True:
        (found,) = [each for each in (await endpoint.index()).models if each.name == model]
        if found.state != "UNLOADING":
            return found
        await asyncio.sleep(0.01)


async def recover(endpoint: TritonEndpoint, model: str) -> None:
    await endpoint.unload(model)
    await endpoint.load(model)
    await endpoint.load(MODEL)


@pytest.mark.parametrize("class_count", [1, 2, 2**31 - 1])
async def test_class_count_returns_the_best_classes_with_labels(endpoint, class_count):
    rows = await endpoint.infer(call(b"one", b"two"), class_count=class_count)
    assert [(row.model_version, row.error) for row in rows] == [("1", None)] * 2
    for row in rows:
        assert row.scores is None
        found = [(each.label, each.class_id, each.score) for each in row.predictions]
        assert found == [(LABELS[i], i, pytest.approx(SCORES[i])) for i in range(min(2, class_count))]


async def test_class_count_none_returns_all_scores_without_labels(endpoint):
    for row in await endpoint.infer(call(b"one", b"two"), class_count=None):
        assert not row.predictions
        assert row.scores is not None
        assert row.scores.dtype == np.float32
        assert row.scores.tolist() == pytest.approx(SCORES)
        assert row.embedding is None


@pytest.mark.parametrize("class_count", [None, 1])
async def test_embeddings_come_with_classes_and_scores(endpoint, class_count):
    (row,) = await endpoint.infer(call(), class_count=class_count, embeddings=True)
    assert row.embedding is not None
    assert (row.embedding.dtype, row.embedding.tolist()) == (np.float32, [1.0] * EMBEDDING_SIZE)
    assert (row.scores is None) == (class_count == 1)


@pytest.mark.parametrize("class_count", [None, 1])
async def test_image_that_is_not_decoded_fails_alone(endpoint, class_count):
    images = (b"one", UNDECODABLE, b"two")
    rows = await endpoint.infer(call(*images), class_count=class_count, embeddings=True)
    assert [row.error is None for row in rows] == [True, False, True]
    assert (list(rows[1].predictions), rows[1].scores, rows[1].embedding) == ([], None, None)


@pytest.mark.parametrize(("model", "version"), [("unknown", ""), (MODEL, "7")])
async def test_unknown_model_or_version_is_not_found(endpoint, model, version):
    with pytest.raises(ModelNotFound):
        await endpoint.infer(call(model=model, version=version), class_count=1)
    with pytest.raises(ModelNotFound):
        await endpoint.config(model, version)
    assert (await endpoint.infer(call(version="1"), class_count=1))[0].model_version == "1"
    assert (await endpoint.config(MODEL, "1")).name == MODEL


@pytest.mark.parametrize(("images", "class_count"), [((b"image", FAILS), 1), ((b"image",), 0)])
async def test_failure_of_a_model_is_an_error(endpoint, images, class_count):
    with pytest.raises(InferenceFailed):
        await endpoint.infer(call(*images), class_count=class_count)
    await endpoint.infer(call(), class_count=1)


async def test_call_ends_at_its_deadline(endpoint):
    with pytest.raises(DeadlineExceeded):
        await endpoint.infer(call(SLOW, seconds=0.2), class_count=1)
    assert (await endpoint.infer(call(), class_count=1))[0].error is None


async def test_cancelled_call_ends_and_leaves_the_endpoint_usable(endpoint):
    await endpoint.fetch_server_metadata()
    task = asyncio.create_task(endpoint.infer(call(SLOW), class_count=1))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await endpoint.infer(call(), class_count=1))[0].error is None


async def test_dead_process_names_its_model_until_a_reload(endpoint):
    for image in (KILLER, b"image"):
        with pytest.raises(StubDied) as raised:
            await endpoint.infer(call(image), class_count=1)
        assert raised.value.step == "preprocessor"
    await recover(endpoint, "preprocessor")
    assert (await endpoint.infer(call(), class_count=1))[0].error is None


async def test_unloaded_step_makes_its_ensemble_unavailable(endpoint):
    await endpoint.unload("net")
    with pytest.raises(ModelUnavailable):
        await endpoint.infer(call(), class_count=1)
    with pytest.raises(ModelUnavailable):
        await endpoint.config("net")
    state = await settled_state(endpoint, "net")
    assert (state.version, state.state, state.reason) == ("1", "UNAVAILABLE", "unloaded")
    await endpoint.load("net")
    await endpoint.load(MODEL)
    assert (await endpoint.infer(call(), class_count=1))[0].error is None


async def test_index_lists_the_models_with_their_states(endpoint):
    found = {(model.name, model.version, model.state) for model in (await endpoint.index()).models}
    assert found >= {(name, "1", "READY") for name in (MODEL, "preprocessor", "net")}


async def test_configuration_has_outputs_and_steps(endpoint):
    config = await endpoint.config(MODEL)
    assert steps(config) == ("preprocessor", "net")
    assert {output.name for output in config.output} == {PREDICTION, IMAGE_STATUS, FEATURES}
    (prediction,) = [output for output in (await endpoint.config("net")).output if output.name == PREDICTION]
    assert prediction.label_filename == "labels.txt"


async def test_statistics_count_the_answers_of_loaded_models(endpoint):
    async def answers() -> int:
        return sum(model.inference_stats.success.count for model in (await endpoint.statistics(MODEL)).model_stats)

    before = await answers()
    await endpoint.infer(call(), class_count=1)
    async with asyncio.timeout(60):  # Triton counts an answer after it has sent it
        while await answers() == before:  # noqa: ASYNC110 - it is Triton's count
            await asyncio.sleep(0.01)
    assert await answers() == before + 1
    await endpoint.unload("net")
    for model in ("net", "unknown"):
        with pytest.raises(ModelUnavailable):
            await endpoint.statistics(model)
    await endpoint.load("net")
    await endpoint.load(MODEL)


async def test_force_reload_keeps_a_known_model_in_service(endpoint):
    """Triton reloads a model only if its configuration has changed."""
    given = []
    for _ in range(2):
        await endpoint.force_reload("net")
        assert (await endpoint.infer(call(), class_count=1))[0].error is None
        given.append(parameters(await endpoint.config("net")).get(FORCE_RELOAD_PARAMETER))
    assert given[0] != given[1] or endpoint.address == FAKE
    with pytest.raises(InferenceFailed):
        await endpoint.load("unknown")
    with pytest.raises(ModelNotFound):
        await endpoint.force_reload("unknown")


async def test_sequence_counts_its_frames_until_it_ends(endpoint):
    for frame in (1, 2, 3):
        answer = await endpoint.infer_sequence(step(42, start=frame == 1))
        assert (answer.frames, answer.scores.dtype, answer.restarted) == (frame, np.float32, False)
        assert answer.scores.tolist() == pytest.approx([0.25, 0.75])
    await endpoint.infer_sequence(step(42, end=True))
    for ended_or_not_started in (42, 43):
        with pytest.raises(SequenceLost):
            await endpoint.infer_sequence(step(ended_or_not_started))


async def test_server_metadata_is_a_version(endpoint):
    assert [part.isdigit() for part in (await endpoint.fetch_server_metadata()).split(".")] == [True] * 3


@pytest.mark.parametrize("kind", ["fake", "real"])
async def test_every_method_reports_an_unreachable_triton(kind):
    address = "127.0.0.1:1"
    fake = FakeEndpoint(address, FakeTriton(away=True))
    endpoint: TritonEndpoint = TritonEndpoint(address) if kind == "real" else fake
    assert endpoint.address == address
    for method in (
        endpoint.infer(call(), class_count=1),
        endpoint.infer_sequence(step(1, start=True)),
        endpoint.fetch_server_metadata(),
        endpoint.index(),
        endpoint.config(MODEL),
        endpoint.statistics(MODEL),
        endpoint.load(MODEL),
        endpoint.force_reload(MODEL),
        endpoint.unload(MODEL),
    ):
        with pytest.raises(TritonUnreachable):
            await method
    await endpoint.close()
