"""The threads of a lone image: timed, chosen and recorded next to the network."""

import shutil
from pathlib import Path

import pytest

from gateway.triton.configs import read_model_configs
from gateway.triton.footprint import LONE_BYTES, footprint
from gateway_local import elastic
from gateway_local.cpu_features import cpu_name, has_bf16
from gateway_local.elastic import Threads, candidates, choose, recorded, update, write
from gateway_local.elastic_timing import LEAST_RUNS, MOST_RUNS, timed

NOISY = {1: 0.0117, 2: 0.0089, 4: 0.0117}


@pytest.mark.parametrize(
    ("seconds", "threads"),
    [
        ({1: 0.0034, 2: 0.0036}, 1),  # MobileNetV3-small
        ({1: 0.0117, 2: 0.0071}, 2),  # EfficientNet-Lite0
        ({1: 0.0745, 2: 0.0425, 4: 0.0240}, 4),  # ResNet-50
        ({1: 0.0745, 2: 0.0425, 4: 0.0400}, 2),
        ({1: 0.0100, 2: 0.0080, 4: 0.0060}, 4),
        (NOISY, 2),
    ],
)
def test_more_threads_are_kept_while_they_gain(seconds, threads):
    assert choose(seconds).chosen == threads


@pytest.mark.parametrize(
    ("cores", "numbers"), [(0.5, [1]), (1.5, [1]), (2, [1, 2]), (3.5, [1, 2]), (8, [1, 2, 4]), (64, [1, 2, 4])]
)
def test_threads_fit_the_cores_of_the_container(cores, numbers):
    assert candidates(cores) == numbers


class Clock:
    """Session: each run takes this many seconds of the clock."""

    now = 0.0

    def __init__(self, seconds: float) -> None:
        self.seconds, self.inputs, self.outputs = seconds, ["x"], ["y"]

    def run(self, outputs, feed) -> None:
        Clock.now += self.seconds


@pytest.fixture
def clock(monkeypatch) -> None:
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(f"gateway_local.elastic_timing.time.{name}", lambda: Clock.now)
    monkeypatch.setattr(
        "gateway_local.elastic_timing.time.sleep", lambda seconds: setattr(Clock, "now", Clock.now + seconds)
    )


@pytest.mark.usefixtures("clock")
def test_runs_beside_other_work_do_not_count():
    looks = iter(range(10_000))
    answer = timed({1: Clock(0.02), 2: Clock(0.01)}, [[0]], lambda: next(looks) % 4 < 2)
    assert answer == pytest.approx({1: 0.02, 2: 0.01})
    assert next(looks) >= 2 * LEAST_RUNS
    assert next(looks) <= 4 * MOST_RUNS + 4


@pytest.mark.usefixtures("clock")
def test_busy_machine_gives_no_times():
    assert timed({1: Clock(0.02), 2: Clock(0.01)}, [[0]], lambda: False) == {}


@pytest.fixture
def added(added_head, tmp_path) -> tuple[Path, Path]:
    """The repository of a model that `gateway model add` wrote, and its network."""
    repository, entry = added_head
    copy = Path(shutil.copytree(repository, tmp_path / "models"))
    return copy, entry.model_file(copy, 1)


def test_choice_is_recorded_and_shown(added, monkeypatch):
    repository, model = added
    said, asked = [], []
    monkeypatch.setattr(elastic, "usable_cores", lambda: 2.0)
    monkeypatch.setattr(elastic, "_time", lambda given: asked.append(given) or {1: 0.02, 2: 0.01})
    update(repository, said.append)
    update(repository, said.append)
    assert [each["threads"] for each in asked] == [[1, 2]]
    shown = "a lone image on 2 threads while nothing else runs, 2.0 × as fast"
    assert said == [f"{model.parent.parent.name} version 1: {shown}"]
    assert recorded(model) == Threads(2, {1: 0.02, 2: 0.01})


def test_real_network_is_timed(added, monkeypatch):
    """Concurrent tests may leave no idle moment; nothing is recorded then."""
    repository, model = added
    said: list[str] = []
    monkeypatch.setattr(elastic, "usable_cores", lambda: 2.0)
    update(repository, said.append)
    found = recorded(model)
    assert found.seconds.keys() == {1, 2} if found else "too busy" in said[0]


def test_record_of_another_machine_is_replaced(added, monkeypatch):
    repository, model = added
    write(Threads(2, {1: 0.02, 2: 0.01}), model)
    monkeypatch.setattr(elastic, "machine", lambda: {"cpu": "another", "cores": 2.0})
    monkeypatch.setattr(elastic, "usable_cores", lambda: 2.0)
    assert recorded(model) is None
    monkeypatch.setattr(elastic, "_time", lambda _: {})
    said: list[str] = []
    update(repository, said.append)
    assert "too busy to time others" in said[0]
    assert recorded(model) is None


def test_second_session_is_in_the_memory_plan(added):
    repository, model = added
    name = model.parent.parent.name
    config = read_model_configs(repository)[name]
    weights_bytes = max(path.stat().st_size for path in model.parent.iterdir())
    before = footprint(name, config, repository / name)
    write(Threads(2, {1: 0.02, 2: 0.01}), model)
    after = footprint(name, config, repository / name)
    assert after.usual_bytes - before.usual_bytes == weights_bytes + LONE_BYTES
    assert after.least_bytes - before.least_bytes == weights_bytes + LONE_BYTES


def test_processor_features_are_detected(tmp_path):
    path = tmp_path / "cpuinfo"
    for text, bf16, name in (
        ("model name : A CPU\nflags : avx2 avx512_vnni avx512_bf16", True, "A CPU"),
        ("flags : avx2 amx_bf16", True, ""),
        ("Features : asimd", False, ""),
    ):
        path.write_text(text)
        assert (has_bf16(path), cpu_name(path)) == (bf16, name)
    assert not has_bf16(tmp_path / "absent")
