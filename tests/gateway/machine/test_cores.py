"""How many cores a process may use."""

import os

import pytest

from gateway.machine.cores import usable_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with `cpus` CPUs, `threads` for each core, and without control groups."""

    def made(cpus: int, threads: int) -> dict:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
        for cpu in range(cpus):
            folder = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True)
            first = cpu - cpu % threads
            (folder / "thread_siblings_list").write_text(f"{first}-{first + threads - 1}\n")
        (tmp_path / "own").write_text("0::/\n")
        return {"cgroups": tmp_path / "groups", "own": tmp_path / "own", "cpus": tmp_path / "cpu"}

    return made


@pytest.mark.parametrize(("cpus", "threads", "cores"), [(4, 1, 4), (8, 2, 4), (7, 2, 4)])
def test_hyper_threads_of_a_core_count_once(machine, cpus, threads, cores):
    assert usable_cores(**machine(cpus, threads)) == cores


def test_machine_without_a_topology_counts_its_cpus(machine, tmp_path):
    assert usable_cores(**{**machine(4, 2), "cpus": tmp_path / "none"}) == 4


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 1.5), ("max 100000", 4), ("900000 100000", 4)])
def test_quota_of_the_control_group_is_a_limit(machine, tmp_path, quota, cores):
    places = machine(8, 2)
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "cpu.max").write_text(quota)
    assert usable_cores(**places) == cores
