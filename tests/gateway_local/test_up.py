"""`gateway up` around the start of Triton; where models are, and which one answers when a request names none."""

import shutil

import pytest

from gateway.plugins.keys.key_file import add_key
from gateway_local.default_model import NoDefaultModel, default_model
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, default_model_repository, shipped
from gateway_local.server import StartFailed
from gateway_local.supervise import CHECK_SECONDS, REPORT_SECONDS, KillReports, start
from gateway_local.up import program, request
from tests.processes import PROJECT, python
from tests.settings import Settings


@pytest.mark.parametrize("module", ["gateway_local.supervise", "gateway.server.supervisor"])
def test_supervisors_need_only_the_standard_library(module):
    """They live as long as the service: with the settings they would take three times the memory."""
    code = f"import sys, {module}; print(*{{each.partition('.')[0] for each in sys.modules}} - sys.stdlib_module_names)"
    assert set(python("-S", "-c", code).stdout.split()) <= {"__main__", "gateway", "gateway_client", "gateway_local"}


class Triton:
    """Ends with one of `codes` at each start; None is a start that succeeds."""

    def __init__(self, *codes: int | None) -> None:
        self._codes = list(codes)
        self._code: int | None = None
        self.did: list[str] = []

    def start(self) -> None:
        self.did.append("start")
        self._code = self._codes.pop(0)

    def wait_ready(self, timeout_seconds: float) -> None:
        if self._code is not None:
            raise StartFailed(f"Triton ended with code {self._code} while it started.")

    def poll(self) -> int | None:
        return self._code

    def stop(self, grace_seconds: float) -> None:
        self.did.append("stop")


def test_triton_that_crashes_while_it_starts_is_restarted_once():
    triton, said = Triton(-6, None), []
    start(triton, said.append, 1)
    assert triton.did == ["start", "stop", "start"]
    assert said == ["Triton crashed while it started (signal 6); starting it once more"]


@pytest.mark.parametrize(("codes", "starts"), [((1,), 1), ((-6, -6), 2), ((-6, 1), 2)])
def test_triton_that_exits_or_crashes_again_is_not_restarted(codes, starts):
    triton = Triton(*codes)
    with pytest.raises(StartFailed, match=f"code {codes[-1]} "):
        start(triton, lambda _: None, 1)
    assert triton.did.count("start") == starts


def test_start_timeout_error_names_its_setting(monkeypatch):
    def too_late(timeout_seconds: float) -> None:
        raise StartFailed(f"Triton was not ready after {timeout_seconds:g} s.")

    triton = Triton(None)
    monkeypatch.setattr(triton, "wait_ready", too_late)
    with pytest.raises(StartFailed, match=r"(?s)not ready after 1 s.*GATEWAY_TRITON_START_TIMEOUT_SECONDS$"):
        start(triton, lambda _: None, 1)
    assert triton.did == ["start"]


def test_the_api_starts_beside_triton():
    triton = Triton(None)
    start(triton, lambda _: None, 1, lambda: triton.did.append("meanwhile"))
    assert triton.did[:2] == ["start", "meanwhile"]


def test_example_request_has_a_key_header_if_keys_are_set(tmp_path):
    address = "http://127.0.0.1:9000"
    add_key(tmp_path / "keys", "app")
    guarded = Settings(_env_file=None, api_keys_file=tmp_path / "keys")
    assert request(DEFAULT, address) == f"curl -F files=@docs/examples/cat.jpg {address}/predict"
    assert request(guarded, address) == f"curl -H 'X-API-Key: KEY' -F files=@docs/examples/cat.jpg {address}/predict"


def test_program_is_named_as_a_shell_finds_it(tmp_path, monkeypatch):
    """`make up` runs .venv/bin/gateway, which is not in PATH."""
    path = tmp_path / ".venv" / "bin" / "gateway"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path)])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert program() == ".venv/bin/gateway"
    monkeypatch.setenv("PATH", str(path.parent))
    assert program() == "gateway"


def test_processes_killed_for_memory_are_reported_once_a_minute(monkeypatch):
    counts, said, now = [3, 3, 5, 6, 6], [], [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch = KillReports(said.append, killed=lambda: counts.pop(0) if len(counts) > 1 else counts[0])
    watch.check()
    assert said == []
    now[0] += CHECK_SECONDS
    watch.check()
    now[0] += CHECK_SECONDS
    watch.check()
    assert len(said) == 1
    assert "killed 2 processes" in said[0]
    now[0] += REPORT_SECONDS
    watch.check()
    assert "killed 1 process:" in said[1]


def test_start_failure_names_lack_of_memory(monkeypatch):
    counts = iter([0, 2])
    monkeypatch.setattr("gateway_local.supervise.killed_for_memory", lambda: next(counts))
    with pytest.raises(StartFailed, match=r"(?s)code 1 .*memory ran out, and the kernel killed 2 processes"):
        start(Triton(1), lambda _: None, 1)


DEFAULT = Settings(_env_file=None)
ENSEMBLE = (DEFAULT_MODEL_REPOSITORY / "ensemble_model" / "config.pbtxt").read_text()


@pytest.fixture
def repository(tmp_path):
    for step in ("preprocessor", "classifier"):
        (tmp_path / step).mkdir()
        shutil.copy(DEFAULT_MODEL_REPOSITORY / step / "config.pbtxt", tmp_path / step)
    return tmp_path


def add(repository, *names):
    for name in names:
        (repository / name).mkdir()
        (repository / name / "config.pbtxt").write_text(ENSEMBLE.replace('"ensemble_model"', f'"{name}"'))


@pytest.mark.parametrize(
    ("names", "model"),
    [
        (["ensemble_model", "flowers"], "ensemble_model"),
        (["flowers"], "flowers"),
        (["flowers", "flowers.v1", "flowers.v2"], "flowers"),  # the ensembles of versions are not models
    ],
)
def test_default_model_has_the_default_name_or_is_the_only_one(repository, names, model):
    add(repository, *names)
    assert default_model(repository, DEFAULT) == model


@pytest.mark.parametrize(
    ("names", "settings", "words"),
    [
        (["flowers", "birds"], {}, r"has no model 'ensemble_model'; it has birds, flowers: .* --model NAME"),
        (["flowers"], {"model": "flwers"}, "has no model 'flwers'; it has flowers: choose one with --model"),
        ([], {}, "gateway model add"),
    ],
)
def test_repository_without_a_default_model_is_an_error(repository, names, settings, words):
    add(repository, *names)
    with pytest.raises(NoDefaultModel, match=words):
        default_model(repository, Settings(_env_file=None, **settings))


def test_unreadable_repository_is_left_to_triton(tmp_path):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.pbtxt").write_text("{")
    assert default_model(tmp_path, DEFAULT) == "ensemble_model"


def test_missing_or_empty_repository_is_refused_before_the_start(tmp_path):
    for repository in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NoDefaultModel, match=rf"there are no models in {repository}: --model-repository names"):
            default_model(repository, DEFAULT)


def test_repository_in_the_working_directory_comes_first(tmp_path, monkeypatch):
    (tmp_path / "triton_models" / "flowers").mkdir(parents=True)
    assert default_model_repository(tmp_path) == DEFAULT_MODEL_REPOSITORY
    (tmp_path / "triton_models" / "flowers" / "config.pbtxt").touch()
    assert default_model_repository(tmp_path) == tmp_path / "triton_models"
    # A checkout has them next to the package.
    assert shipped() == PROJECT
    assert default_model_repository(PROJECT / "tests") == PROJECT / "triton_models"
