"""`gateway capacity` prints what gateway.machine.capacity computes."""

import pytest
from typer.testing import CliRunner

from gateway.machine.capacity import plan
from gateway_cli.main import app
from tests.settings import Settings


def run(*options):
    result = CliRunner().invoke(app, ["capacity", *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_report_has_throughput_bottleneck_and_settings():
    output = run("--cores", "16", "--gpus", "1")
    assert output.startswith("16 cores, 1 GPU: about 4,571 images/s, limited by: all cores together")
    for line in (
        "GATEWAY_WORKERS=7",
        "kind: KIND_CPU count: 9",
        "kind: KIND_GPU count: 2",
        "preferred_batch_size: [ 8, 16, 32 ]",
        "max_queue_delay_microseconds: 1000",
        "--grpc-infer-thread-count=3",
        "--preprocessor-instances 9 --instances 2 --preferred 8,16,32",
    ):
        assert line in output


def test_without_a_gpu_there_is_no_queue_delay():
    output = run("--cores", "2", "--gpus", "0")
    assert output.startswith("2 cores, no GPU: ")
    assert "max_queue_delay" not in output


def test_env_format_prints_valid_settings(monkeypatch):
    lines = run("--cores", "32", "--gpus", "2", "--format", "env").splitlines()
    for name, value in (line.split("=") for line in lines):
        monkeypatch.setenv(name, value)
    settings = Settings(_env_file=None)
    assert {field: getattr(settings, field) for field in plan(32, 2).settings()} == plan(32, 2).settings()


def test_slow_network_lowers_the_throughput():
    assert "limited by: network" in run("--cores", "16", "--gpus", "1", "--gpu-ms", "5")


@pytest.mark.parametrize("options", [("--cores", "0"), ("--gpus", "-1"), ("--gpu-ms", "0")])
def test_impossible_machine_is_refused(options):
    assert CliRunner().invoke(app, ["capacity", *options]).exit_code == 2
