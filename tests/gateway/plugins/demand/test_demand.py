"""Models are loaded when requests need them, and the least recently used ones make room; its settings."""

import asyncio
import contextlib
import time
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from pydantic import ValidationError

from gateway.app import create_app
from gateway.errors import (
    DeadlineExceeded,
    LoadFailed,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    TritonUnreachable,
)
from gateway.plugins.demand import loader
from gateway.plugins.demand.backend import DemandBackend
from gateway.plugins.demand.models import GPU, HOST, Budget, LoadedModel, to_unload
from gateway.plugins.demand.plugin import Demand
from gateway.timing import Deadline
from gateway.triton.pool import rendezvous_order
from tests.doubles.backend import PNG, StubBackend
from tests.gateway.plugins.demand.fleet import DemandGateway, gateways_of, loaded
from tests.gateway.triton.fleet import MODEL, call_of, wait_until
from tests.services import client_of_app
from tests.settings import Settings


async def classify(gateway: DemandGateway, model: str, *, seconds: float = 20, client: str = "") -> str:
    """Take an image through the two steps of a request: wait for its model, then the call; the model that answered."""
    await gateway.loader.loaded(model, Deadline.after(seconds), client)
    asked = call_of(b"image", model=model, seconds=seconds)
    (row,) = await gateway.backend.infer(asked)
    assert row.error is None
    calls = [call for triton in gateway.tritons.values() for call in triton.calls]
    return next(call.model_name for call in calls if call.deadline == asked.deadline)


def loads(gateway: DemandGateway) -> list[str]:
    return [name for triton in gateway.tritons.values() for action, name in triton.done if action == "load"]


def probes() -> float:
    return REGISTRY.get_sample_value("gateway_probes_total") or 0.0


async def test_first_requests_share_one_load():
    async with gateways_of(triton={"load_seconds": 0.05}) as (gateway,):
        assert loaded(gateway.triton) == {MODEL}
        assert await asyncio.gather(*(classify(gateway, "m1") for _ in range(20))) == ["m1"] * 20
        assert await classify(gateway, "m1") == "m1"
        assert loaded(gateway.triton) == {MODEL, "m1"}
        assert loads(gateway) == ["m1"]


async def test_least_recently_used_model_is_unloaded():
    async with gateways_of(room=3) as (gateway,):
        for name in ("m0", "m1"):
            await classify(gateway, name)
        for name in ("m0", "m2"):
            await classify(gateway, name)
        assert loaded(gateway.triton) == {MODEL, "m0", "m2"}
        assert await classify(gateway, "m1") == "m1"
        assert len(loaded(gateway.triton)) == 3


async def test_models_that_stay_are_never_unloaded():
    async with gateways_of(room=3, load=("m0",)) as (gateway,):
        await wait_until(lambda: "m0" in loaded(gateway.triton))
        for name in ("m1", "m2", "m3"):
            assert await classify(gateway, name) == name
            assert {MODEL, "m0"} < loaded(gateway.triton)


async def test_model_that_was_just_loaded_stays():
    async with gateways_of(room=2, kept_seconds=60, load_seconds=0.5) as (gateway,):
        await classify(gateway, "m0")
        with pytest.raises(ModelUnavailable, match="no memory"):
            await gateway.wait_for("m1")
        assert loaded(gateway.triton) == {MODEL, "m0"}


async def test_images_in_flight_are_finished_before_their_model_is_unloaded():
    async with gateways_of(room=2) as (gateway,):
        await classify(gateway, "m0")
        with gateway.loader.call("m0", 1):
            waiting = asyncio.create_task(classify(gateway, "m1"))
            await asyncio.sleep(0.3)
            assert "m0" in loaded(gateway.triton)
        assert await waiting == "m1"


async def test_client_that_needs_more_models_than_fit_waits_for_one_load_at_a_time():
    async with gateways_of(room=4, models=6, triton={"load_seconds": 0.3}) as (gateway,):
        greedy = [asyncio.create_task(classify(gateway, f"m{index}", client="greedy")) for index in range(3)]
        await wait_until(lambda: bool(gateway.loader.models.loading))
        assert await classify(gateway, "m5", client="other") == "m5"
        assert len(loads(gateway)) <= 3, "the other client's load has not waited for all of these"
        assert await asyncio.gather(*greedy) == ["m0", "m1", "m2"]


async def test_busy_models_make_room_in_turns():
    """Requests for more models than fit, without a pause: each is answered, and none has its model taken away."""
    async with gateways_of(room=2, kept_seconds=0.3, triton={"latency_seconds": lambda: 0.005}) as (gateway,):
        until = time.monotonic() + 4

        async def client(model: str) -> int:
            answers = 0
            while time.monotonic() < until:
                assert await classify(gateway, model) == model
                answers += 1
            return answers

        assert all(await asyncio.gather(*(client(model) for model in ("m0", "m0", "m0", "m1", "m1", "m1"))))


async def test_every_request_of_clients_that_thrash_is_answered_within_the_budget():
    """Four clients request eight models in turn, of which two fit next to the default one."""
    async with gateways_of(room=3, models=8, kept_seconds=0.05) as (gateway,):
        most = 0

        async def client(number: int) -> int:
            nonlocal most
            for index in range(10):
                name = f"m{(number * 3 + index) % 8}"
                assert await classify(gateway, name, client=f"client{number}") == name
                most = max(most, len(loaded(gateway.triton)))
            return 10

        assert await asyncio.gather(*map(client, range(4))) == [10] * 4
        assert most <= 3
        assert len(loads(gateway)) > 8


async def classify_until_room(gateway: DemandGateway, model: str) -> str:
    """Like `classify`, and again while the models in use leave no room."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(ModelUnavailable):
            return await classify(gateway, model)
    raise TimeoutError


async def test_wait_ends_at_the_deadline_and_the_load_goes_on():
    async with gateways_of(triton={"load_seconds": 0.3}) as (gateway,):
        with pytest.raises(DeadlineExceeded):
            await gateway.wait_for("m1", seconds=0.05)
        await wait_until(lambda: "m1" in loaded(gateway.triton))
        assert await classify(gateway, "m1") == "m1"
        assert loads(gateway) == ["m1"]


@pytest.mark.parametrize(
    ("options", "model", "error", "words"),
    [
        ({"triton": {"load_seconds": 0.3}, "load_seconds": 0.05}, "m1", ModelUnavailable, r"within 0\.05 s"),
        ({"model_bytes": {"m0": 200, "m1": 201}}, "m1", LoadFailed, "models_memory_bytes"),
        # The default model counts before any load, so the first model takes no memory that is not there.
        ({"model_bytes": {MODEL: 201}}, "m0", LoadFailed, "always stay loaded"),
        ({}, "nope", ModelNotFound, "'nope'"),
    ],
    ids=["slow", "larger than the budget", "beside the default model", "unknown"],
)
async def test_model_that_cannot_be_loaded_is_refused(options, model, error, words):
    async with gateways_of(room=3, **options) as (gateway,):
        with pytest.raises(error, match=words):
            await gateway.wait_for(model)
        assert error is ModelUnavailable or loads(gateway) == []


async def test_images_that_wait_have_a_limit():
    async with gateways_of(triton={"load_seconds": 0.3}, max_waiting=2) as (gateway,):
        waiting = [asyncio.create_task(classify(gateway, "m1")) for _ in range(2)]
        await asyncio.sleep(0)  # both begin to wait
        with pytest.raises(Overloaded) as refused:
            await gateway.wait_for("m2")
        assert refused.value.details == {"limit": "max_images_waiting", "value": 2}
        assert await asyncio.gather(*waiting) == ["m1", "m1"]
        assert await classify(gateway, "m2") == "m2"


@pytest.mark.parametrize(
    ("readable", "step", "needed"), [(True, "trunk", []), (False, "m1_classifier", []), (False, "trunk", ["trunk"])]
)
async def test_step_is_refused(readable, step, needed, monkeypatch):
    """By the repository, or if it cannot be read, by the name that `gateway model add` gives to a step.

    Only a load shows what a step of another name is: it is unloaded again, and never loaded again.
    """
    monkeypatch.setattr(loader, "FAILED_SECONDS", 0.0)
    async with gateways_of(readable=readable) as (gateway,):
        gateway.triton.ensembles["m1"] = ("m1_preprocessor", step)
        gateway.triton.never_loaded.add(step)
        for _ in range(2):
            with pytest.raises(ModelNotFound, match="no model that classifies images"):
                await gateway.wait_for(step)
        assert loads(gateway) == needed
        assert gateway.triton.unloaded >= set(needed)
        assert step not in {info.name for info in await gateway.backend.models()}
        assert await classify(gateway, "m1") == "m1"


async def test_loaded_model_that_classifies_no_images_stays_loaded():
    """It belongs to somebody else who uses this Triton; a client of the gateway must not be able to unload it."""
    async with gateways_of(readable=False) as (gateway,):
        gateway.triton.ensembles["m1"] = ("m1_preprocessor", "detector")
        for _ in range(2):
            with pytest.raises(ModelNotFound, match="no model that classifies images"):
                await gateway.wait_for("detector")
        assert not loads(gateway)
        assert "detector" not in gateway.triton.unloaded


async def test_model_that_cannot_be_loaded_is_not_tried_again_at_once():
    """Its steps, which were loaded before it, do not stay."""
    async with gateways_of(triton={"refuses_to_load": {"m1"}}) as (gateway,):
        for _ in range(3):
            with pytest.raises(LoadFailed, match="no memory"):
                await gateway.wait_for("m1")
            assert gateway.triton.unloaded == {"m1_preprocessor", "m1_classifier"}
        assert gateway.triton.done.count(("load", "m1")) <= 1
        gateway.triton.refuses_to_load.clear()
        gateway.loader.forget_failure("m1")
        assert await classify(gateway, "m1") == "m1"


async def test_model_that_takes_more_than_expected_makes_others_go():
    """The memory of a model that a remote Triton has never loaded is unknown before."""
    async with gateways_of(room=3, model_bytes={"m1": 200}, readable=False) as (gateway,):
        await classify(gateway, "m0")
        await classify(gateway, "m1")
        await wait_until(lambda: loaded(gateway.triton) == {MODEL, "m1"})


async def test_model_that_another_gateway_unloads_is_loaded_again():
    async with gateways_of(2, room=2) as (first, second):
        assert await classify(first, "m0") == "m0"
        assert await classify_until_room(second, "m1") == "m1"
        assert await classify_until_room(first, "m0") == "m0"
        assert await classify_until_room(second, "m1") == "m1"


async def test_call_loads_a_model_that_was_unloaded_since_its_wait_and_none_for_an_unknown_version():
    async with gateways_of() as (gateway,):
        await classify(gateway, "m0")
        with pytest.raises(ModelNotFound):
            await gateway.backend.infer(call_of(b"image", model="m0", version="7"))
        assert loads(gateway) == ["m0"]
        gateway.triton.unloaded |= {"m0", *gateway.triton.ensembles["m0"]}
        (row,) = await gateway.backend.infer(call_of(b"image", model="m0"))
        assert row.error is None
        assert loaded(gateway.triton) == {MODEL, "m0"}


async def test_each_model_is_loaded_on_one_triton():
    async with gateways_of(2, tritons=3, models=12, room=13) as (first, second):
        for index in range(12):
            assert await classify(first, f"m{index}") == f"m{index}"
            assert await classify(second, f"m{index}") == f"m{index}"
        held = [loaded(triton) - {MODEL} for triton in first.tritons.values()]
        assert sum(map(len, held)) == 12
        assert all(held), "rendezvous hashing spreads the models"


async def test_model_is_loaded_elsewhere_while_its_triton_is_away():
    async with gateways_of(tritons=2) as (gateway,):
        await classify(gateway, "m0")
        holder = next(triton for triton in gateway.tritons.values() if "m0" in loaded(triton))
        holder.away = True
        with pytest.raises(TritonUnreachable):
            await classify(gateway, "m0")
        await wait_until(lambda: not all(replica.health.reachable for replica in gateway.pool.replicas))
        assert await classify(gateway, "m0") == "m0"
        holders = [triton for triton in gateway.tritons.values() if "m0" in loaded(triton)]
        assert len(holders) == 2


async def test_model_is_loaded_elsewhere_if_its_triton_ends_during_the_load():
    async with gateways_of(tritons=2, triton={"load_seconds": 0.3}) as (gateway,):
        waiting = asyncio.create_task(classify(gateway, "m0"))
        first, other = rendezvous_order(gateway.tritons, "m0")
        await wait_until(lambda: (first, "m0") in gateway.loader.models.loading)
        gateway.tritons[first].away = True
        assert await waiting == "m0"
        assert "m0" in loaded(gateway.tritons[other])


async def test_model_is_loaded_elsewhere_while_its_triton_hangs():
    """The gateway knows only after some probes that it is not ready."""
    async with gateways_of(tritons=2) as (gateway,):
        first, other = rendezvous_order(gateway.tritons, "m0")
        gateway.tritons[first].hangs = True
        await gateway.wait_for("m0")
        assert "m0" in loaded(gateway.tritons[other])


async def test_only_triton_that_is_away_is_reported():
    async with gateways_of() as (gateway,):
        gateway.triton.away = True
        with pytest.raises(TritonUnreachable):
            await classify(gateway, "m0")


async def test_one_client_cannot_take_all_waits():
    async with gateways_of(triton={"load_seconds": 0.3}, max_waiting=8) as (gateway,):
        waiting = [asyncio.create_task(classify(gateway, "m1", client="greedy")) for _ in range(6)]
        await asyncio.sleep(0)  # all begin to wait
        with pytest.raises(Overloaded):
            await classify(gateway, "m2", client="greedy")
        assert await classify(gateway, "m2", client="other") == "m2"
        assert await asyncio.gather(*waiting) == ["m1"] * 6


async def test_model_that_is_used_elsewhere_is_not_expected():
    """Recovery loads neither models that another gateway has unloaded, nor models that could not be loaded."""
    async with gateways_of(triton={"refuses_to_load": {"m1"}}) as (gateway,):
        await classify(gateway, "m0")
        with pytest.raises(LoadFailed):
            await gateway.wait_for("m1")
        gateway.triton.unloaded |= {"m0", *gateway.triton.ensembles["m0"]}
        before = list(gateway.triton.done)
        probed = probes()
        await wait_until(lambda: probes() > probed + 3)
        assert gateway.triton.done == before
        assert not gateway.backend.health()[0].models_not_ready


async def test_list_has_models_that_are_not_loaded_and_a_description_loads_one():
    async with gateways_of(models=2) as (gateway,):
        await classify(gateway, "m0")
        found = {info.name: info for info in await gateway.backend.models()}
        assert {name: info.loaded for name, info in found.items()} == {MODEL: True, "m0": True, "m1": False}
        assert not found["m1"].ready
        info = await gateway.backend.model("m1")
        assert (info.loaded, info.ready, info.classes) == (True, True, 2)
        with pytest.raises(ModelNotFound, match="GET /models lists"):
            await gateway.backend.model("m11")


async def test_administrator_loads_and_unloads():
    async with gateways_of() as (gateway,):
        await gateway.backend.load("m0")
        assert "m0" in loaded(gateway.triton)
        await gateway.backend.load("m0")
        assert loads(gateway) == ["m0", "m0"]
        await gateway.backend.unload("m0")
        assert "m0" not in loaded(gateway.triton)
        assert await classify(gateway, "m0") == "m0"
        with pytest.raises(ModelNotFound):
            await gateway.backend.unload("nope")


DEMAND = {"models_memory_bytes": 2**30, "load_models": ("flowers",)}
NOBODY = "127.0.0.1:1"
"""No Triton listens there."""


async def test_backend_is_that_of_the_settings():
    assert Demand(Settings(_env_file=None)).backend() is None
    backend = Demand(Settings(_env_file=None, triton_url=NOBODY, **DEMAND)).backend()
    assert isinstance(backend, DemandBackend)
    assert backend.loader.is_fixed("flowers")
    assert not backend.loader.is_fixed("birds")
    await backend.close()


def test_model_is_loaded_for_the_address_of_a_client_without_a_key():
    """Clients without a key were one client, so that each could keep models of the others unloaded."""
    clients = []

    async def note(model_name: str, deadline: Deadline, client: str) -> None:
        clients.append((model_name, client))

    class Loads(Demand):
        def __init__(self, settings: Settings) -> None:
            super().__init__(settings)
            self.loader = SimpleNamespace(loaded=note)

    with client_of_app(create_app(Settings(_env_file=None), StubBackend(), [Loads])) as service:
        assert service.post("/predict", files={"f": ("c.png", PNG)}).status_code == HTTPStatus.OK
    assert clients == [(MODEL, "address 127.0.0.1")]


def test_models_on_demand_are_not_all_loaded():
    with pytest.raises(ValidationError, match="name the models that always stay loaded"):
        Settings(_env_file=None, load_models="*", models_memory_bytes="16GiB")
    chosen = Settings(_env_file=None, load_models="flowers,birds", models_memory_bytes="16GiB")
    assert chosen.load_models == ("flowers", "birds")


def model(name: str, megabytes: int, used_at: float, **more: bool) -> LoadedModel:
    return LoadedModel(name, {HOST: megabytes}, **{"stays": False, "busy": False, **more}, used_at=used_at)


@pytest.mark.parametrize(
    ("loaded_models", "needed", "chosen"),
    [
        ([model("a", 40, 1), model("b", 40, 2)], {HOST: 20}, []),
        ([model("a", 40, 1), model("b", 40, 2)], {HOST: 60}, ["a"]),
        ([model("a", 40, 1), model("b", 40, 2)], {HOST: 100}, ["a", "b"]),
        ([model("a", 40, 1), model("b", 40, 2)], {HOST: 101}, None),
        ([model("a", 40, 1, stays=True), model("b", 40, 2)], {HOST: 60}, ["b"]),
        ([model("a", 40, 1, busy=True), model("b", 40, 2)], {HOST: 60}, ["b"]),
        ([model("a", 80, 1, busy=True)], {HOST: 60}, ["a"]),
        ([LoadedModel("gpu", {GPU: 40}, False, False, 1), model("b", 60, 2)], {HOST: 60}, ["b"]),
        ([LoadedModel("gpu", {GPU: 40}, False, False, 1), model("b", 60, 2)], {GPU: 20}, ["gpu"]),
    ],
)
def test_least_recently_used_models_that_help_are_unloaded(loaded_models, needed, chosen):
    assert to_unload(loaded_models, needed, Budget(100, 50)) == chosen
