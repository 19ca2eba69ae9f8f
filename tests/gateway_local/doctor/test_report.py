"""`gateway doctor` as a command."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.findings import fail, ok, warn
from gateway_local.console import PlainConsole
from gateway_local.doctor.report import show, summary
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from tests import warm
from tests.processes import environment

FINDINGS = [ok("GPU", "none"), warn("cores", "2 cores", "lower it"), fail("labels", "one\ntwo [red]", "mend it")]


def doctor(*arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    code = "from gateway.command_line.main import main; main()"
    return warm.run(code, ["doctor", *map(str, arguments)], environment=environment(**settings), timeout_seconds=120)


LINES = [
    "ok    GPU: none",
    "warn  cores: 2 cores",
    "      → lower it",
    "fail  labels: one; two [red]",
    "      → mend it",
]


def test_findings_are_lines():
    console = PlainConsole(width=60, color_system=None)
    with console.capture() as capture:
        show(FINDINGS, console)
    assert capture.get().splitlines() == LINES


def test_summary_counts_failures_and_warnings():
    assert summary([FINDINGS[0]]) == "all is well"
    assert summary(FINDINGS) == "1 failure, 1 warning"
    assert summary([FINDINGS[2]] * 2) == "2 failures"


@pytest.mark.usefixtures("runtime", "model_repository")
def test_exit_code_is_0_without_failures():
    completed = doctor()
    assert completed.returncode == 0, completed.stdout
    checks = [line[6:].partition(":")[0] for line in completed.stdout.splitlines() if not line.startswith("  ")]
    assert set(checks) >= {
        "settings", "API keys", "platform", "Triton", "GPU", "models", "sizes", "contract", "memory",
        "shared memory",
    }  # fmt: skip


def test_failure_exits_1_after_all_checks(tmp_path: Path):
    completed = doctor("--model-repository", tmp_path, workers=0)
    assert completed.returncode == 1
    assert "fail  settings: GATEWAY_WORKERS='0': must be a whole number from 1 to 64" in completed.stdout
    assert f"fail  models: {tmp_path} has no */config.pbtxt" in completed.stdout
    assert "2 failures" in completed.stderr


def test_single_model_of_any_name_is_the_default(tmp_path: Path, model_repository: Path):
    """As for `gateway up`, which serves it."""
    repository = shutil.copytree(model_repository, tmp_path / "models", symlinks=True)
    shutil.move(repository / "ensemble_model", repository / "flowers")
    config = repository / "flowers" / "config.pbtxt"
    config.write_text(config.read_text().replace("ensemble_model", "flowers"))
    completed = doctor("--model-repository", repository)
    assert "ok    contract: flowers fits the gateway's contract" in completed.stdout
    other = doctor("--model-repository", repository, model="birds")
    assert "fail  contract: " in other.stdout
    assert "has no model 'birds'; it has flowers" in other.stdout


def test_remote_triton_is_checked_instead_of_this_machine(light_triton):
    completed = doctor(triton_url=light_triton.url)
    assert completed.returncode == 0, completed.stdout
    assert f"ok    Triton: {light_triton.url} is Triton 2.51.0" in completed.stdout
    assert "ok    inference" in completed.stdout
    assert "platform" not in completed.stdout
    assert str(DEFAULT_MODEL_REPOSITORY) not in completed.stdout
