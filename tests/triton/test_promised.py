"""A version that gets a share of the requests and is not there is named, with what to do."""

import structlog

from gateway.triton.fake_endpoint import FakeTriton
from tests.triton.fleet import MODEL, run, watch_of

STEPS = ("preprocessor", "net")


def lacking(watch) -> list[str]:
    return [warning for warning in watch.health().warnings if "so its share of the requests" in warning]


def test_a_version_that_a_split_names_and_nobody_serves_is_named_with_what_to_do():
    async def test() -> None:
        watch = watch_of(FakeTriton(), split={MODEL: {"1": 90, "7": 10}})
        await watch.try_all()
        (warning,) = lacking(watch)
        assert warning.startswith(f"{MODEL} has no version 7 ")
        assert "--version 7" in warning
        assert f"POST /models/{MODEL}/load" in warning
        assert "GATEWAY_MODEL_SPLIT" in warning

    run(test())


def test_the_triton_stays_ready_for_the_shares_that_are_there():
    async def test() -> None:
        watch = watch_of(FakeTriton(), split={MODEL: {"7": 100}})
        await watch.try_all()
        assert lacking(watch)
        assert watch.ready

    run(test())


def test_a_version_may_have_an_ensemble_of_its_own():
    async def test() -> None:
        watch = watch_of(FakeTriton(ensembles={MODEL: STEPS, f"{MODEL}.v7": STEPS}), split={MODEL: {"7": 100}})
        await watch.try_all()
        assert lacking(watch) == []

    run(test())


def test_a_version_that_is_unloaded_lacks_until_it_is_loaded_and_is_logged_once():
    async def test() -> None:
        triton = FakeTriton(ensembles={MODEL: STEPS, f"{MODEL}.v7": STEPS}, unloaded={f"{MODEL}.v7"})
        watch = watch_of(triton, split={MODEL: {"7": 100}})
        with structlog.testing.capture_logs() as captured:
            await watch.try_all()
            assert lacking(watch)
            triton.unloaded.clear()

            async def try_again() -> bool:
                await watch.try_all()
                return not lacking(watch)

            while not await try_again():
                pass
        events = [event for event in captured if event["event"] == "contract" and "version 7" in event["problem"]]
        assert [event["log_level"] for event in events] == ["warning"]

    run(test())


def test_without_a_split_nothing_is_lacking():
    async def test() -> None:
        watch = watch_of(FakeTriton())
        await watch.try_all()
        assert lacking(watch) == []

    run(test())
