"""A missing model is reported, answered with 503, and loaded as soon as possible."""

import pytest
import structlog
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway import metrics
from gateway.errors import ModelNotFound, ModelUnavailable, TritonUnreachable
from gateway.triton.health.checker import HealthChecker
from gateway.triton.health.state import NOT_LISTED, ExpectedModels, HealthState
from gateway.values.rollout import Rollout
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import MODEL, SCHEDULE, STEPS, TWO, call_of, checker_of, fleet_of, running, wait_until

VERSIONS = {MODEL: STEPS, f"{MODEL}.v1": STEPS, f"{MODEL}.v2": STEPS}


def index_of(**states: str) -> RepositoryIndexResponse:
    """Models by name: READY, LOADING, UNLOADING, unloaded, new (never loaded), or Triton's reason for a failure."""
    index = RepositoryIndexResponse()
    for name, state in states.items():
        if state == "new":
            index.models.add(name=name)
        elif state in {"READY", "LOADING", "UNLOADING"}:
            index.models.add(name=name, version="1", state=state)
        else:
            index.models.add(name=name, version="1", state="UNAVAILABLE", reason=state)
    return index


def missing(expected: ExpectedModels) -> dict[str, str]:
    return {each.name: each.reason for each in expected.missing}


SERVED, NEW = {"ensemble": "READY", "flowers": "READY"}, {"ensemble": "READY", "flowers": "new"}


@pytest.mark.parametrize(
    ("load", "indexes", "names"),
    [
        ([], [{"ensemble": "READY", "net": "no memory"}], {"net"}),
        # The default model is always expected.
        *(([], [{"ensemble": state} if state else {}], {"ensemble"}) for state in ("", "new", "unloaded", "no memory")),
        # An operator may have started Triton with some of the repository's models.
        ([], [NEW], set()),
        (["flowers"], [NEW], {"flowers"}),
        (["*"], [NEW], {"flowers"}),
        # All models means the models next to the default one once the storage is mounted; requests load later ones.
        (["*"], [{}, {"ensemble": "new"}, NEW, NEW | {"b": "new"}], {"flowers"}),
        # After a restart of Triton, a model that it served.
        ([], [SERVED, NEW], {"flowers"}),
        # Unloaded on purpose.
        (["flowers"], [SERVED, SERVED | {"flowers": "UNLOADING"}], set()),
        (["flowers"], [SERVED, SERVED | {"flowers": "unloaded"}, NEW], set()),
        # Removed from the repository, and a repository whose storage is not mounted.
        ([], [SERVED, {"ensemble": "READY"}], set()),
        ([], [SERVED, {}], {"ensemble", "flowers"}),
        ([], [{"ensemble": "READY", "net": "no memory"}, {"ensemble": "READY", "net": "LOADING"}], {"net"}),
        ([], [{"ensemble": "READY", "net": "no memory"}, {"ensemble": "READY", "net": "READY"}], set()),
        # The old instances of a reloaded model answer meanwhile.
        ([], [{"ensemble": "READY", "net": "READY"}, {"ensemble": "LOADING", "net": "LOADING"}], set()),
    ],
)
def test_models_that_are_missing(load, indexes, names):
    expected = ExpectedModels("ensemble", load=load)
    for states in indexes:
        expected.update(index_of(**states), 0.0)
    assert set(missing(expected)) == names
    assert [expected.lacks(name) for name in names] == [True] * len(names)


def test_reason_of_a_missing_model_and_of_a_version():
    expected = ExpectedModels("ensemble")
    expected.update(index_of(), 0.0)
    assert missing(expected) == {"ensemble": NOT_LISTED}
    expected.update(index_of(ensemble="READY", net="no memory"), 0.0)
    assert (missing(expected), expected.lacks("ensemble")) == ({"net": "no memory"}, False)
    expected.update(index_of(ensemble="READY", net="LOADING"), 0.0)
    assert [(each.state, each.reason) for each in expected.missing] == [("LOADING", "no memory")]
    index = index_of(ensemble="READY")
    index.models.add(name="ensemble", version="2", state="UNAVAILABLE", reason="no memory")
    expected.update(index, 0.0)
    assert [expected.lacks("ensemble", version) for version in ("2", "1", "")] == [True, False, False]


async def test_missing_model_leaves_the_others_alone():
    async with fleet_of(ensembles=TWO) as fleet:
        (triton,) = fleet.tritons.values()
        await wait_until(lambda: len(fleet.backend.health()[0].models) == 2)
        triton.refuses_to_load = {"flowers_net"}
        triton.restart()
        await wait_until(lambda: ("load", "flowers_net") in triton.done)
        await fleet.backend.infer(call_of(b"image"))
        with pytest.raises(ModelUnavailable):
            await fleet.backend.infer(call_of(b"image", model="flowers"))
        with pytest.raises(ModelNotFound):
            await fleet.backend.infer(call_of(b"image", model="unknown"))
        triton.refuses_to_load = set()
        # Not `ready` alone: until the next probe, a model that is missing has the state of its last one.
        await wait_until(lambda: not fleet.backend.health()[0].models_not_ready)
        await fleet.backend.infer(call_of(b"image", model="flowers"))
        assert {name for what, name in triton.done if what == "load"} <= {"flowers", "flowers_net"}


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "not in the repository"])
async def test_model_is_requested_only_where_it_is(missing):
    async with fleet_of(2, ensembles=TWO) as fleet:
        other, owner = fleet.tritons.values()
        await wait_until(lambda: all(len(health.models) == 2 for health in fleet.backend.health()))
        if missing:
            other.refuses_to_load = {"flowers_net"}
            other.restart()
            await wait_until(lambda: ("load", "flowers_net") in other.done)
        else:
            other.ensembles = {MODEL: STEPS}
            await wait_until(lambda: len(fleet.backend.health()[0].models) == 1)
        for _ in range(20):
            await fleet.backend.infer(call_of(b"image", model="flowers"))
        assert not [call for call in other.calls if call.request_id == "test"]
        owner.away = True
        await wait_until(lambda: fleet.ready() == 1)
        with pytest.raises((ModelUnavailable, TritonUnreachable)):
            await fleet.backend.infer(call_of(b"image", model="flowers"))


async def test_missing_model_is_logged_once_and_counted():
    triton = FakeTriton(refuses_to_load={"net"})
    checker = checker_of(triton)
    with structlog.testing.capture_logs() as captured:
        triton.restart()
        for _ in range(3):
            await checker.probe_all()
        gauge = metrics.MODEL_MISSING.labels("10.0.0.1:8001", "net")
        assert gauge._value.get() == 1
        triton.refuses_to_load = set()
        await checker.load_missing()
        await checker.probe_all()
        assert gauge._value.get() == 0
    events = [event for event in captured if event["event"] == "model_missing" and event["model"] == "net"]
    assert [event["cause"] for event in events] == ["no memory"]
    assert checker.state.ready


async def test_triton_that_refuses_load_requests_is_reported():
    triton = FakeTriton(refuses_to_load={"net"}, loads_by_itself=True)
    triton.restart()
    checker = checker_of(triton)
    async with running(checker):
        await wait_until(lambda: "--model-control-mode=explicit" in checker.state.summary().healing)
        assert checker.state.lacks(MODEL)
        triton.loads_by_itself, triton.refuses_to_load = False, set()
        triton.restart()  # by its operator
        await wait_until(lambda: checker.state.ready)


async def test_without_recovery_nothing_is_loaded():
    triton = FakeTriton(refuses_to_load={"net"})
    triton.restart()
    triton.kill("preprocessor")
    checker = HealthChecker(FakeEndpoint("10.0.0.1:8001", triton), HealthState("", ExpectedModels(MODEL), SCHEDULE))
    async with running(checker):
        await wait_until(lambda: checker.state.lacks(MODEL))
        probed_at = checker.state.default.probed_at
        await wait_until(lambda: checker.state.default.probed_at > probed_at + 0.1)
    assert triton.done == []
    assert checker.state.summary().healing == "off"


def lacking(checker) -> list[str]:
    return [warning for warning in checker.state.summary().warnings if "so its share of the requests" in warning]


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        (Rollout({"2": 90, "7": 10}), (f"{MODEL} has no version 7 ", f"POST /models/{MODEL}/load", "model use")),
        (Rollout({"7": 100}), (f"{MODEL} has no version 7 ",)),  # though every request gets 503
        (Rollout({"2": 1}, {"7": 100}), (f"{MODEL} has no version 7 ",)),
        (Rollout({"1": 1, "2": 1}), ()),  # a version may have its own ensemble
    ],
)
async def test_missing_version_that_answers_is_a_warning_with_a_remedy(rollout, words):
    """The Triton stays ready for the served versions."""
    checker = checker_of(FakeTriton(ensembles=VERSIONS, rollouts={MODEL: rollout.text}))
    await checker.follow()
    await checker.probe_all()
    warnings = lacking(checker)
    assert (len(warnings), checker.state.ready) == (bool(words), True)
    assert all(word in warnings[0] for word in words)


async def test_rollouts_are_followed_and_the_last_good_record_applies():
    first, second = Rollout({"1": 90, "2": 10}), Rollout({"2": 100}, {"1": 5})
    triton = FakeTriton(ensembles={**VERSIONS, "flowers": STEPS})
    endpoint, expected, changed = FakeEndpoint("10.0.0.1:8001", triton), ExpectedModels(MODEL), []
    checker = HealthChecker(endpoint, HealthState("", expected, SCHEDULE), model_changed=changed.append)

    async def followed(text: str) -> Rollout | None:
        triton.rollouts = {"flowers": first.text, MODEL: text}
        await checker.follow()
        expected.update(await endpoint.index(), 0.0)
        assert expected.rollouts.keys() <= {MODEL}  # flowers has one version
        return expected.rollouts.get(MODEL)

    assert await followed("") is None
    assert [await followed(first.text), await followed(first.text), changed] == [first, first, [MODEL]]
    assert (await followed("{}"), changed) == (first, [MODEL])
    assert "parameter 'rollout': shares: is missing" in expected.warnings[0]
    assert (await followed(second.text), changed, expected.warnings) == (second, [MODEL] * 2, ())
    triton.unloaded.add(MODEL)  # as while it is loaded again
    assert await followed(first.text) == second
    triton.unloaded.clear()
    del triton.ensembles[MODEL]
    assert (await followed(first.text), changed) == (None, [MODEL] * 3)


def test_models_on_demand_are_not_expected():
    """Requests load them; only the default model and the named ones are kept loaded."""
    expected = ExpectedModels("ensemble", load=["flowers"], on_demand=True)
    expected.update(index_of(ensemble="READY", flowers="READY", birds="READY", trees="no memory"), 0.0)
    expected.update(index_of(ensemble="new", flowers="new", birds="new", trees="no memory"), 0.0)
    assert missing(expected).keys() == {"ensemble", "flowers"}
