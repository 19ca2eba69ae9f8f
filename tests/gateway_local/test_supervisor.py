"""Triton is watched: restarts, liveness, and its end with the process that started it."""

import subprocess
import sys

import psutil
import pytest

from gateway.server.workers import MAX_DEATHS, STEADY_SECONDS
from gateway_local.supervise import ANSWER_SECONDS, HANGS_AFTER, GivenUp, TritonRestarter
from tests.processes import PROJECT, is_gone, wait_for


class Kept:
    """A Triton in name only, what restarts it, and the reports; checked four times a second of its own clock."""

    def __init__(self):
        self.code = None
        self.silent = self.loading = False
        self.starts, self.now = 0, 1_000.0
        self.graces, self.said = [], []
        self.restarter = TritonRestarter(self, self.said.append, start_timeout_seconds=30, clock=lambda: self.now)

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

    def run(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.restarter.check()
            self.now += 0.25


@pytest.fixture
def kept():
    return Kept()


def test_dead_process_is_restarted_after_a_pause(kept):
    kept.code = -9
    kept.restarter.check()
    assert kept.graces == [0]
    assert kept.starts == 0
    assert kept.said == ["Triton ended with code -9; starting it again in 0.5 s"]
    kept.run(0.5 + ANSWER_SECONDS + 0.5)
    assert kept.starts == 1
    assert kept.said[-1].startswith("Triton answers again after")


@pytest.mark.parametrize(
    ("dies", "fault", "seconds", "said"),
    [
        (False, "silent", ANSWER_SECONDS * HANGS_AFTER + 2, "Triton does not answer; starting it again in 0.5 s"),
        (True, "silent", ANSWER_SECONDS * HANGS_AFTER + 2, "Triton does not answer; starting it again in 1 s"),
        (True, "loading", 30 + 2 * ANSWER_SECONDS, "Triton was not ready after 30 s; starting it again in 1 s"),
    ],
    ids=["hangs", "hangs while it starts", "is not ready in time"],
)
def test_process_without_answers_is_restarted(kept, dies, fault, seconds, said):
    if dies:
        kept.code = 1
        kept.run(1)
    setattr(kept, fault, True)
    kept.run(seconds)
    assert said in kept.said
    assert kept.starts == 1 + dies


def test_single_missed_answer_is_not_a_hang(kept):
    kept.silent = True
    kept.run(ANSWER_SECONDS + 0.5)
    kept.silent = False
    kept.run(60)
    assert kept.starts == 0
    assert kept.said == []


def test_pauses_grow_until_the_supervisor_gives_up(kept):
    kept.code = 1
    for _ in range(MAX_DEATHS):
        kept.code = 1
        kept.run(20)
    kept.code = 1
    with pytest.raises(GivenUp, match=rf"Triton ended with code 1 {MAX_DEATHS + 1} times in a row"):
        kept.restarter.check()
    assert kept.starts == MAX_DEATHS
    pauses = [line.rpartition(" in ")[2] for line in kept.said if "starting it again" in line]
    assert pauses == ["0.5 s", "1 s", "2 s", "4 s", "8 s"]


def test_deaths_long_apart_are_not_added_up(kept):
    for _ in range(3 * MAX_DEATHS):
        kept.code = 1
        kept.run(STEADY_SECONDS + 5)
    assert kept.starts == 3 * MAX_DEATHS


LEADER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, sys
from gateway_local.server import REAPER
leader = subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1]], start_new_session=True)
reaper = subprocess.Popen([*REAPER, str(leader.pid)], stdin=subprocess.PIPE, start_new_session=True)
sys.stdin.read()
"""


def test_group_dies_with_the_process_that_started_it():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            wait_for(lambda: any("reaper" in each.cmdline() for each in psutil.Process(parent.pid).children()))
            assert not is_gone(child)
        finally:
            parent.kill()
        wait_for(lambda: is_gone(child))
