"""A watch knows which models answer, and has those mended that do not."""

import asyncio
import contextlib

import pytest

from gateway import metrics
from gateway.errors import InferenceFailed, TritonUnreachable
from gateway.triton.error_table import StubDied
from gateway.triton.fake_endpoint import FakeTriton
from gateway.triton.health.recovery import FRESH_SECONDS
from tests.gateway.triton.fleet import MODEL, SCHEDULE, run, wait_until, watch_of

THREE = {
    MODEL: ("preprocessor", "net"),
    "flowers": ("flowers_preprocessor", "flowers_net"),
    "flowers.v1": ("flowers_preprocessor", "flowers_net"),
}


async def settled(watch) -> None:
    for _ in range(3):
        await watch.try_all()
        await watch.heal()


def ready(watch) -> dict[str, bool]:
    return {model.name: model.ready for model in watch.health().models}


def test_every_ensemble_that_triton_lists_and_that_keeps_the_contract_is_tried():
    async def test() -> None:
        watch = watch_of(FakeTriton(ensembles=THREE))
        await settled(watch)
        assert ready(watch) == dict.fromkeys(THREE, True)

    run(test())


@pytest.mark.parametrize("step", ["preprocessor", "net", "flowers_preprocessor", "flowers_net"])
def test_a_dead_step_of_any_model_is_reloaded_and_every_ensemble_over_it_answers_again(step):
    async def test() -> None:
        triton = FakeTriton(ensembles=THREE)
        watch = watch_of(triton)
        await settled(watch)
        triton.kill(step)
        using = {name for name, steps in THREE.items() if step in steps}
        watch.suspect(next(iter(using)), StubDied(step), float("inf"))
        assert {name for name, answers in ready(watch).items() if not answers} == using
        await settled(watch)
        assert ready(watch) == dict.fromkeys(THREE, True)
        assert triton.done[:2] == [("unload", step), ("load", step)]
        assert {name for what, name in triton.done if what == "load"} == {step, *using}

    run(test())


def test_the_default_models_death_leaves_the_others_ready():
    async def test() -> None:
        triton = FakeTriton(ensembles=THREE)
        watch = watch_of(triton, heal=False)
        await settled(watch)
        triton.kill("net")
        for _ in range(4):
            await watch.try_all()
            await asyncio.sleep(0.02)
        assert not watch.ready
        assert watch.answers("flowers")
        assert watch.answers("flowers", "1")

    run(test())


def test_a_model_that_fails_every_request_is_reloaded_though_nothing_died():
    async def test() -> None:
        triton = FakeTriton(ensembles=THREE)
        watch = watch_of(triton)
        await settled(watch)
        triton.failing.add("net")
        task = asyncio.create_task(watch.run())
        await wait_until(lambda: triton.healings("net") == 1)
        await wait_until(lambda: watch.ready)
        task.cancel()
        assert triton.healings("flowers_net") == 0

    run(test())


def test_one_failed_trial_is_no_reason_to_reload():
    async def test() -> None:
        triton = FakeTriton()
        watch = watch_of(triton)
        await settled(watch)
        triton.failing.add("net")
        for _ in range(SCHEDULE.failures - 1):
            await asyncio.sleep(0.02)
            await watch.try_all()
            await watch.heal()
        triton.failing.clear()
        await settled(watch)
        assert watch.ready
        assert triton.done == []

    run(test())


def test_what_reloading_does_not_mend_is_said_and_left_alone_longer_each_time():
    async def test() -> None:
        triton = FakeTriton(mended_by_reload=False)
        watch = watch_of(triton)
        await settled(watch)
        before = metrics.HEALINGS.labels("in vain")._value.get()
        triton.failing.add("net")
        task = asyncio.create_task(watch.run())
        await wait_until(lambda: "does not repair" in watch.health().healing)
        assert "restart this Triton" in watch.health().healing
        assert metrics.HEALINGS.labels("in vain")._value.get() == before + 1
        reloads = triton.healings("net")
        trials = len(triton.calls)
        await wait_until(lambda: len(triton.calls) > trials + 20)
        assert triton.healings("net") == reloads  # trials go on, reloads do not
        task.cancel()

    run(test())


def test_a_model_that_cannot_be_mended_does_not_hold_up_the_mending_of_another():
    async def test() -> None:
        triton = FakeTriton(ensembles=THREE, mended_by_reload=False)
        watch = watch_of(triton)
        await settled(watch)
        triton.failing.add("net")
        task = asyncio.create_task(watch.run())
        await wait_until(lambda: "does not repair" in watch.health().healing)
        triton.kill("flowers_net")
        await wait_until(lambda: triton.healings("flowers_net") == 1 and watch.answers("flowers"))
        task.cancel()

    run(test())


def test_a_step_that_could_not_be_loaded_again_is_loaded_later():
    async def test() -> None:
        triton = FakeTriton(refuses_to_load={"net"})
        watch = watch_of(triton)
        await settled(watch)
        triton.kill("net")
        task = asyncio.create_task(watch.run())
        await wait_until(lambda: ("load", "net") in triton.done)
        assert not watch.ready
        triton.refuses_to_load.clear()
        await wait_until(lambda: watch.ready)
        task.cancel()

    run(test())


def test_a_suspicion_that_is_out_of_date_reloads_nothing():
    async def test() -> None:
        clock = [0.0]
        triton = FakeTriton()
        watch = watch_of(triton, clock=lambda: clock[0])
        await settled(watch)
        watch.suspect(MODEL, StubDied("net"), float("inf"))
        clock[0] += FRESH_SECONDS  # another gateway has healed it meanwhile
        await settled(watch)
        assert watch.ready
        assert triton.done == []

    run(test())


def test_a_trial_from_before_a_reload_is_no_reason_for_another_one_nor_to_leave_the_model_out():
    async def test() -> None:
        triton, over = FakeTriton(), asyncio.Event()
        watch = watch_of(triton)
        await settled(watch)
        triton.kill("net")
        run_trial = watch._trials.run

        async def slowly(record):
            watch._trials.run = run_trial  # the next one takes no longer than it does
            tried = await run_trial(record)
            await over.wait()
            return tried

        watch._trials.run = slowly
        watch.suspect(MODEL, StubDied("net"), float("inf"))
        trial = asyncio.create_task(watch.try_all())
        await wait_until(lambda: watch._trials.run is run_trial)
        await watch.heal()
        assert triton.healings("net") == 1
        assert watch.ready
        over.set()
        await trial
        assert watch.ready
        await settled(watch)
        assert watch.ready
        assert triton.healings("net") == 1

    run(test())


def test_after_another_gateway_was_at_it_a_death_that_was_just_seen_is_proved_first():
    async def test() -> None:
        triton, turns = FakeTriton(), [False]
        watch = watch_of(triton, take_turn=lambda _: contextlib.nullcontext(turns[0]))
        await settled(watch)
        triton.kill("net")
        watch.suspect(MODEL, StubDied("net"), float("inf"))
        await watch.heal()
        triton.dead.clear()  # the other one has reloaded it, and here a late answer comes from before that
        turns[0] = True
        watch.suspect(MODEL, StubDied("net"), float("inf"))
        await settled(watch)
        assert watch.ready
        assert triton.done == []

    run(test())


def test_of_two_gateways_that_notice_at_once_one_reloads():
    async def test() -> None:
        triton = FakeTriton(instances=2, load_seconds=0.05)
        # They run on different machines.
        watches = [watch_of(triton, take_turn=taken_by_all, jitter_seconds=0.03) for _ in range(2)]
        tasks = [asyncio.create_task(watch.run()) for watch in watches]
        await wait_until(lambda: all(watch.ready for watch in watches))
        triton.kill("net")
        await wait_until(lambda: triton.healings("net") > 0)
        await wait_until(lambda: all(watch.ready for watch in watches))
        for task in tasks:
            task.cancel()
        assert not triton.dead

    run(test())


def test_a_model_left_unloaded_by_a_gateway_that_died_is_loaded():
    async def test() -> None:
        triton = FakeTriton()
        watch = watch_of(triton)
        await settled(watch)
        triton.unloaded.add("net")
        task = asyncio.create_task(watch.run())
        await wait_until(lambda: not watch.ready)
        await wait_until(lambda: watch.ready)
        task.cancel()
        assert triton.unloaded == set()

    run(test())


def test_what_raises_inside_a_watch_is_counted_and_the_watch_goes_on():
    async def test() -> None:
        triton = FakeTriton()
        watch = watch_of(triton)
        before = metrics.WATCH_FAULTS._value.get()
        triton.ensembles = None  # no Triton's error: a fault of the code
        task = asyncio.create_task(watch.run())
        await wait_until(lambda: metrics.WATCH_FAULTS._value.get() > before)
        triton.ensembles = {MODEL: ("preprocessor", "net")}
        await wait_until(lambda: watch.ready)
        task.cancel()

    run(test())


def test_answers_to_clients_make_trials_rarer_but_do_not_replace_them():
    async def test() -> None:
        clock = [0.0]
        triton = FakeTriton()
        watch = watch_of(triton, clock=lambda: clock[0])
        await settled(watch)
        trials = len(triton.calls)
        for _ in range(200):
            clock[0] += SCHEDULE.interval_seconds / 10
            watch.answered(MODEL, clock[0])
            await watch.try_all()
        assert watch.ready
        # 20 intervals: every fourth has a trial.
        assert 4 <= len(triton.calls) - trials <= 8

    run(test())


def test_without_traffic_every_interval_has_a_trial():
    async def test() -> None:
        clock = [0.0]
        triton = FakeTriton()
        watch = watch_of(triton, clock=lambda: clock[0])
        await settled(watch)
        trials = len(triton.calls)
        for _ in range(20):
            clock[0] += SCHEDULE.interval_seconds
            await watch.try_all()
        assert len(triton.calls) - trials == 20

    run(test())


def test_a_failed_request_brings_the_next_trial_forward():
    async def test() -> None:
        clock = [0.0]
        triton = FakeTriton()
        watch = watch_of(triton, clock=lambda: clock[0])
        await settled(watch)
        triton.away = True
        watch.suspect(MODEL, TritonUnreachable(), 1.0)
        assert not watch.ready
        trials = len(triton.calls)
        triton.away = False
        await watch.try_all()
        assert len(triton.calls) == trials + 1
        assert watch.ready

    run(test())


def test_one_request_that_failed_leaves_no_model_out():
    async def test() -> None:
        watch = watch_of(FakeTriton())
        await settled(watch)
        watch.suspect(MODEL, InferenceFailed(), float("inf"))
        assert watch.ready

    run(test())


def test_a_model_that_was_unloaded_on_purpose_is_watched_no_longer_and_stays_unloaded():
    async def test() -> None:
        triton = FakeTriton(ensembles=dict(THREE))
        watch = watch_of(triton)
        await settled(watch)
        triton.unloaded.update({"flowers", "flowers.v1"})
        watch.forget({"flowers", "flowers.v1"})
        task = asyncio.create_task(watch.run())
        trials = len(triton.calls)
        await wait_until(lambda: len(triton.calls) > trials + 10)
        task.cancel()
        assert ready(watch) == {MODEL: True}
        assert triton.done == []

    run(test())


def test_a_dead_step_shared_with_an_unloaded_ensemble_does_not_bring_that_back():
    async def test() -> None:
        triton = FakeTriton(ensembles=dict(THREE))
        watch = watch_of(triton)
        await settled(watch)
        triton.unloaded.add("flowers.v1")
        triton.kill("flowers_net")
        watch.suspect("flowers", StubDied("flowers_net"), float("inf"))
        await settled(watch)
        assert "flowers.v1" in triton.unloaded
        assert watch.answers("flowers")

    run(test())


def taken_by_all(_: str):
    import contextlib

    return contextlib.nullcontext(enter_result=True)
