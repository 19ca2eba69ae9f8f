"""A process group ends as a whole, whichever process ends first."""

import contextlib
import subprocess
import sys

import psutil

from gateway_local.groups import kill_group
from gateway_local.reaper import watch
from tests.processes import PROJECT, is_gone, wait_for

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
