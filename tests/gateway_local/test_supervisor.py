"""Processes are watched: restarts, liveness, and groups that end as a whole."""

import asyncio
import contextlib
import subprocess
import sys

import psutil
import pytest

from gateway_local.groups import kill_group
from gateway_local.liveness import reason_to_restart
from gateway_local.reaper import watch
from gateway_local.supervisor import (
    CHECK_SECONDS,
    HANGS_AFTER,
    MAX_DEATHS,
    STEADY_SECONDS,
    GivenUp,
    Readiness,
    Supervisor,
)
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import MODEL
from tests.processes import PROJECT, is_gone, wait_for


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class Kept:
    """A process in name only."""

    name = "Triton"

    def __init__(self):
        self.code = None
        self.silent = self.loading = False
        self.starts = 0
        self.graces = []

    alive = property(lambda self: self.code is None)

    def poll(self):
        return self.code

    def start(self):
        self.starts += 1
        self.code = None
        self.silent = False

    def stop(self, grace_seconds):
        self.graces.append(grace_seconds)

    def ready(self):
        return not self.silent and not self.loading

    def answers(self):
        return not self.silent

    def hangs(self):
        return self.silent


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def said():
    return []


@pytest.fixture
def keeper(kept, said, clock):
    return Supervisor(kept, said.append, start_timeout_seconds=30, clock=clock)


def run(keeper, clock, seconds):
    end = clock.now + seconds
    while clock.now < end:
        keeper.check()
        clock.now += 0.25


def test_dead_process_is_restarted_after_a_pause(keeper, kept, said, clock):
    kept.code = -9
    keeper.check()
    assert kept.graces == [0]
    assert kept.starts == 0
    assert said == ["Triton ended with code -9; starting it again in 0.5 s"]
    run(keeper, clock, 0.5 + CHECK_SECONDS + 0.5)
    assert kept.starts == 1
    assert said[-1].startswith("Triton answers again after")


def test_hanging_process_is_restarted(keeper, kept, said, clock):
    kept.silent = True
    run(keeper, clock, CHECK_SECONDS * HANGS_AFTER + 2)
    assert kept.starts == 1
    assert said[0] == "Triton does not answer; starting it again in 0.5 s"


def test_single_missed_answer_is_not_a_hang(keeper, kept, said, clock):
    kept.silent = True
    run(keeper, clock, CHECK_SECONDS + 0.5)
    kept.silent = False
    run(keeper, clock, 60)
    assert kept.starts == 0
    assert said == []


def test_pauses_grow_until_the_supervisor_gives_up(keeper, kept, said, clock):
    kept.code = 1
    for _ in range(MAX_DEATHS):
        kept.code = 1
        run(keeper, clock, 20)
    kept.code = 1
    with pytest.raises(GivenUp, match=rf"Triton ended with code 1 {MAX_DEATHS + 1} times in a row"):
        keeper.check()
    assert kept.starts == MAX_DEATHS
    pauses = [line.rpartition(" in ")[2] for line in said if "starting it again" in line]
    assert pauses == ["0.5 s", "1 s", "2 s", "4 s", "8 s"]


def test_deaths_long_apart_are_not_added_up(keeper, kept, clock):
    for _ in range(3 * MAX_DEATHS):
        kept.code = 1
        run(keeper, clock, STEADY_SECONDS + 5)
    assert kept.starts == 3 * MAX_DEATHS


def test_process_not_ready_in_time_is_restarted(keeper, kept, said, clock):
    kept.code = 1
    run(keeper, clock, 1)
    kept.loading = True
    run(keeper, clock, 30 + 2 * CHECK_SECONDS)
    assert "Triton was not ready after 30 s; starting it again in 1 s" in said


def test_process_that_hangs_while_it_starts_is_restarted(keeper, kept, said, clock):
    kept.code = 1
    run(keeper, clock, 1)
    kept.silent = True
    run(keeper, clock, CHECK_SECONDS * HANGS_AFTER + 2)
    assert "Triton does not answer; starting it again in 1 s" in said


def test_readiness_is_reported_when_lost_and_regained(clock, said):
    """A Triton that answers again may still load the default model: only a real inference makes the service ready."""
    answers = [(True, "")]
    readiness = Readiness(lambda: answers[-1], said.append, clock=clock)
    run(readiness, clock, 3 * CHECK_SECONDS)
    assert said == []
    answers.append((False, "classifier: no memory"))
    run(readiness, clock, 3 * CHECK_SECONDS)
    answers.append((False, "classifier: no labels"))
    run(readiness, clock, 3 * CHECK_SECONDS)
    answers.append((True, ""))
    run(readiness, clock, 3 * CHECK_SECONDS)
    assert said[:2] == ["not ready: classifier: no memory", "not ready: classifier: no labels"]
    assert said[2].startswith("ready again after 1")
    assert len(said) == 3


def reason(triton: FakeTriton, patience_seconds: float = 0.1, later=None) -> str | None:
    async def ask() -> str | None:
        if later is not None:
            asyncio.get_running_loop().call_later(0.05, later)
        endpoint = FakeEndpoint("127.0.0.1:8001", triton)
        return await reason_to_restart(endpoint, MODEL, patience_seconds=patience_seconds, pause_seconds=0.01)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({}, None),
        ({"failing": {"net"}}, MODEL),
        ({"away": True}, "127.0.0.1:8001"),
        ({"unloaded": {"net"}}, None),
        ({"ensembles": {}}, None),
    ],
    ids=["answers", "fails", "away", "unloaded", "no model"],
)
def test_restart_has_a_reason(behaviour, words):
    found = reason(FakeTriton(**behaviour), patience_seconds=0.1 if words else 60)
    assert (found is None) == (words is None)
    assert words is None or words in found


def test_wrong_configuration_is_no_reason_to_restart():
    class Wrong(FakeTriton):
        def config(self, name):
            config = super().config(name)
            del config.output[:]
            return config

    assert reason(Wrong()) is None


def test_triton_that_recovers_in_time_is_alive():
    triton = FakeTriton(failing={"net"})
    assert reason(triton, patience_seconds=30, later=triton.failing.clear) is None


LEADER = "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)']).pid, flush=True); time.sleep(float(sys.argv[1]))"  # noqa: E501  # a program
PARENT = """
import subprocess, sys, time
from gateway_local.groups import REAPER, kill_group
leader = subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1], "600"], start_new_session=True)
REAPER.watch(leader.pid)
while True:
    REAPER.check()
    time.sleep(0.05)
"""


def start(seconds):
    leader = subprocess.Popen(
        [sys.executable, "-S", "-c", LEADER, str(seconds)], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    with leader.stdout:
        return leader, psutil.Process(int(leader.stdout.readline()))


def test_group_is_killed_with_its_leader():
    leader, child = start(600)
    kill_group(leader)
    assert leader.returncode is not None
    wait_for(lambda: is_gone(child))


def test_group_is_killed_after_its_leader_has_ended():
    leader, child = start(0)
    leader.wait(30)
    assert not is_gone(child)
    kill_group(leader)
    wait_for(lambda: is_gone(child))


def test_group_dies_with_the_process_that_started_it():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, LEADER], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        wait_for(lambda: len(psutil.Process(parent.pid).children()) == 2)
        parent.kill()
        wait_for(lambda: is_gone(child))


def test_killed_reaper_is_replaced_and_watches_the_group():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, LEADER], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            wait_for(lambda: watcher_of(parent.pid))
            watcher = watcher_of(parent.pid)
            watcher.kill()
            wait_for(lambda: watcher_of(parent.pid) not in (None, watcher))
            assert not is_gone(child)
        finally:
            parent.kill()
        wait_for(lambda: is_gone(child))


def watcher_of(pid):
    for process in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            # Between its birth and its program, and after its death, a process has no command line.
            if not is_gone(process) and any(part.endswith("reaper.py") for part in process.cmdline()[-1:]):
                return process
    return None


def test_reaper_forgets_ended_groups():
    assert watch(["+5\n", "+7\n", "-5\n", "-9\n"]) == {7}
