"""The models of one Triton, some of which have failed; concurrent requests share one read."""

import asyncio
import traceback
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import DataType

from gateway.errors import ContractBroken, GatewayError, InferenceFailed, LoadFailed, ModelNotFound, NoFeatures
from gateway.inference.backend import Call, Embeddings
from gateway.inference.result import Selection
from gateway.triton import replica
from gateway.triton.contract import SEQUENCE_MODEL
from gateway.triton.health.state import ExpectedModels, HealthState, Schedule
from gateway.triton.replica import Remembered, Replica
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import MODEL, call_of, fleet_of


@pytest.fixture
def triton():
    return FakeTriton({"good": ("preprocessor", "net"), "bad": ("preprocessor", "broken")}, failing={"broken"})


def health_of(model: str = MODEL) -> HealthState:
    return HealthState("10.0.0.1:8001", ExpectedModels(model), Schedule(1.0, 1.0))


def replica_of(triton: FakeTriton, health: Any = None) -> Replica:
    return Replica(FakeEndpoint("10.0.0.1:8001", triton), health or health_of(), None)


async def test_failed_model_does_not_break_the_list(triton):
    bad, good = await replica_of(triton).describe_all()
    assert (good.name, good.ready, good.labels) == ("good", True, ("cat", "dog"))
    assert (bad.name, bad.ready, bad.labels) == ("bad", False, ())
    assert bad.reason
    assert (bad.classes, bad.versions, bad.steps) == (2, ("1",), ("preprocessor", "broken"))


async def test_one_model_is_described_without_the_others(triton):
    asked: list[str] = []

    class Counting(FakeEndpoint):
        async def config(self, name, version=""):
            asked.append(name)
            return await super().config(name, version)

    found = Replica(Counting("10.0.0.1:8001", triton), health_of(), None)
    good = await found.describe("good")
    assert "bad" not in asked
    assert [good] == [info for info in await found.describe_all() if info.name == "good"]
    for name in ("net", "nothing"):
        assert await found.describe(name) is None


async def test_failure_of_a_model_that_breaks_the_contract_has_that_code(triton):
    """Readiness knows why, so the answer says it too, instead of 502 inference_failed."""
    health = health_of("bad")
    found = replica_of(triton, health)
    with pytest.raises(InferenceFailed):
        await found.infer(replace(call(Embeddings.NONE), model_name="bad"))
    health.record(health.default, ContractBroken("no IMAGE_STATUS"), 0.0)
    with pytest.raises(ContractBroken, match="'bad' does not fit"):
        await found.infer(replace(call(Embeddings.NONE), model_name="bad"))


@pytest.mark.parametrize(
    ("data_type", "tensor"),
    [(DataType.TYPE_FP32, "fp32"), (DataType.TYPE_UINT8, "uint8"), (DataType.TYPE_FP16, None)],
)
async def test_model_reports_its_input_tensor(data_type, tensor):
    (good,) = await replica_of(FakeTriton({"good": ("preprocessor", "net")}, image_type=data_type)).describe_all()
    assert (good.tensor, good.input_height, good.input_width) == (tensor, 224, 224)


@pytest.mark.parametrize(
    ("size", "wanted", "given"),
    [(3, Embeddings.NEEDED, 3), (3, Embeddings.IF_ANY, 3), (3, Embeddings.NONE, None), (0, Embeddings.IF_ANY, None)],
)
async def test_embeddings_are_requested_when_wanted_and_available(size, wanted, given):
    found = replica_of(FakeTriton(embedding_size=size))
    (row,) = await found.infer(call(wanted))
    assert (None if row.embedding is None else len(row.embedding)) == given
    (info,) = await found.describe_all()
    assert info.embedding_size == size


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("top_k", [1, 2, 3])
async def test_best_classes_are_those_before_the_selection(top_k, least):
    found = replica_of(FakeTriton())
    (row,) = await found.infer(replace(call(Embeddings.NONE), selection=Selection(top_k), least_classes=least))
    assert (len(row.predictions), len(row.best)) == (min(top_k, 2), least)


@pytest.mark.parametrize(("description", "reference"), [("", ""), ('Cats, and "dogs".', '{"images": 500}')])
async def test_description_and_reference_are_those_of_the_record(description, reference):
    """The gateway does not read the reference: the prediction log does."""
    found = replica_of(FakeTriton(description=description, drift_reference=reference))
    (info,) = await found.describe_all()
    (row,) = await found.infer(call(Embeddings.NONE))
    assert (info.description, row.drift_reference) == (description or None, reference)


async def test_model_without_embeddings_raises_an_error_with_the_command():
    seen = []
    health = SimpleNamespace(suspect=lambda *result: seen.append(result), answered=lambda *result: seen.append(result))
    found = replica_of(FakeTriton(), health)
    with pytest.raises(NoFeatures, match="gateway model add … --embeddings"):
        await found.infer(call(Embeddings.NEEDED))
    assert seen == []


async def test_version_that_has_not_answered_has_the_limits_of_its_model():
    """Clients choose versions, also such as do not exist; images of others must not wait for calls without limits."""
    found = replica_of(FakeTriton())
    assert found.call_limits("ensemble_model", "", 8) is None
    await found.infer(call(Embeddings.NONE))
    limits = found.call_limits("ensemble_model", "", 8)
    for version in ("1", "7"):
        with suppress(ModelNotFound, NoFeatures):
            await found.infer(replace(call(Embeddings.NEEDED), model_version=version))
        assert found.call_limits("ensemble_model", version, 8) == limits


async def test_version_is_described_by_its_own_ensemble():
    found = replica_of(FakeTriton({"good.v2": ("preprocessor", "net")}))
    assert await found.labels("good", "2") == ("cat", "dog")
    assert await found.sequence_model("good", "2") == SEQUENCE_MODEL
    for read in (found.labels, found.resize, found.sequence_model):
        with pytest.raises(ModelNotFound):
            await read("good", "3")


async def test_model_is_loaded_and_unloaded_with_versions_and_own_steps():
    ensembles = {"good": ("shared", "net"), "good.v2": ("shared", "net:2"), "other": ("shared", "its own")}
    triton = FakeTriton(ensembles)
    found = replica_of(triton)
    await found.load("good")
    assert set(triton.done) == {("load", "good"), ("load", "good.v2")}
    triton.done.clear()
    assert await found.unload("good") == {"good", "good.v2"}
    assert set(triton.done) == {("unload", "good"), ("unload", "good.v2"), ("unload", "net")}


async def test_failed_load_reports_the_reason_of_triton():
    found = replica_of(FakeTriton(refuses_to_load={"ensemble_model"}))
    with pytest.raises(
        LoadFailed, match=r"Triton cannot load 'ensemble_model': load failed for model 'ensemble_model': no memory"
    ):
        await found.load("ensemble_model")
    with pytest.raises(ModelNotFound, match=r"no model 'nothing' in Triton's repository"):
        await found.load("nothing")


async def test_versions_of_a_model_are_loaded_with_pauses(monkeypatch):
    """One after the other: calls get the cores between them."""
    loads = []

    async with fleet_of(1) as fleet:
        (triton,) = fleet.tritons.values()
        monkeypatch.setattr(replica, "pause_seconds", lambda _: loads.append(len(triton.done)) or 0.0)
        triton.ensembles.update({f"ensemble_model.v{number}": ("preprocessor", "net") for number in (1, 2, 3)})
        with suppress(GatewayError):
            await fleet.backend.load("ensemble_model")
    assert loads == [1, 2, 3, 4]


def call(embeddings: Embeddings) -> Call:
    return replace(call_of(b"image"), embeddings=embeddings)


KEY = ("flowers", "1")


class Reader:
    """A read that the test ends; it returns how often it was started, or raises."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, name: str, version: str) -> int:
        assert (name, version) == KEY
        self.begun += 1
        number = self.begun
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return number


async def started(remembered: Remembered[int], count: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(remembered.get(*KEY)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the read
    return tasks


async def test_error_is_raised_for_all_and_not_remembered():
    """The traceback of the error does not grow with each request."""
    reader = Reader()
    remembered = Remembered(reader, 60)
    reader.error = ModelNotFound()
    tasks = await started(remembered, 50)
    reader.go_on.set()
    assert await asyncio.gather(*tasks, return_exceptions=True) == [reader.error] * 50
    assert len(list(traceback.walk_tb(reader.error.__traceback__))) < 10
    reader.error = None
    assert await remembered.get(*KEY) == 2


async def test_read_that_began_before_a_reload_is_not_remembered():
    reader = Reader()
    remembered = Remembered(reader, 60)
    tasks = await started(remembered, 2)
    remembered.forget("flowers")
    reader.go_on.set()
    assert await asyncio.gather(*tasks) == [1, 1]
    assert await remembered.get(*KEY) == 2


async def test_cancelled_request_does_not_end_the_read_of_others():
    reader = Reader()
    tasks = await started(Remembered(reader, 60), 3)
    task = tasks.pop(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    reader.go_on.set()
    assert await asyncio.gather(*tasks) == [1, 1]
