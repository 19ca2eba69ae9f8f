"""The memory of the models' processes as measured, and whether it fits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.machine.memory import MACHINE, Memory
from gateway.settings import GIB, MIB, MemoryCheck
from gateway.triton.footprint import NEAR, need
from gateway.triton.model_config import ModelConfig, read_model_configs
from gateway.triton.model_processes import STUB
from gateway_local.memory_fit import Fit, MemoryShort, check, fit, table
from gateway_local.memory_record import fingerprint, measure, measured_need, record, recorded
from tests.triton_images import LOADER

ONNX = 'backend: "onnxruntime"'


def model(repository: Path, name: str, text: str, *, versions: int = 1, weights: int = 0) -> ModelConfig:
    """Write a model whose versions have a file of `weights` bytes each."""
    folder = repository / name
    for version in range(1, versions + 1):
        (folder / str(version)).mkdir(parents=True)
        (folder / str(version) / "model.onnx").write_bytes(bytes(weights))
    (folder / "config.pbtxt").write_text(f'name: "{name}" {text}')
    return read_model_configs(repository)[name]


def free(nbytes: int) -> Memory:
    return Memory(64 * GIB, nbytes, MACHINE)


def test_measured_memory_replaces_the_estimate_until_the_files_change(tmp_path):
    model(tmp_path, "m", ONNX, weights=10)
    configs, folder = read_model_configs(tmp_path), tmp_path / "m"
    path = tmp_path / "memory.json"
    record(path, {str(folder): (100 * MIB, 120 * MIB)})
    record(path, {str(folder): (110 * MIB, 115 * MIB)})
    (found,) = measured_need(tmp_path, configs, recorded(path)).footprints
    assert (found.measured, found.least_bytes, found.usual_bytes) == (True, 100 * MIB, 120 * MIB)
    (folder / "1" / "model.onnx").write_bytes(bytes(11))
    assert measured_need(tmp_path, configs, recorded(path)) == need(tmp_path, configs)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0, "models": {}}', '{"format": 1}'])
def test_damaged_record_is_ignored(tmp_path, text):
    (tmp_path / "memory.json").write_text(text)
    assert recorded(tmp_path / "memory.json") == {}


def test_record_that_cannot_be_written_is_no_error(tmp_path):
    model(tmp_path, "m", ONNX)
    record(Path("/dev/null/memory.json"), {str(tmp_path / "m"): (1, 2)})
    record(tmp_path / "memory.json", {str(tmp_path / "gone"): (1, 2)})
    assert json.loads((tmp_path / "memory.json").read_text())["models"] == {}


@pytest.mark.parametrize("start", [[], [LOADER, "--library-path", "/nowhere"]], ids=["", "by a loader"])
def test_processes_of_a_triton_are_measured(tmp_path, start):
    """A server of the same shape as Triton's: its stubs name the model's file in their first argument."""
    if start and not Path(LOADER).exists():
        pytest.skip(f"this machine has no {LOADER}")
    stub = tmp_path / STUB
    stub.symlink_to(sys.executable)
    script = "import time; held = bytearray(50 * 2**20); print('ready', flush=True); time.sleep(60)"
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(script)
    command = [*start, stub, tmp_path / "m" / "1" / "model.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        now, peak = measure(os.getpid())[str(tmp_path / "m")]
        process.kill()
    assert 50 * MIB < now <= peak < 150 * MIB


def test_fit_at_its_limits(tmp_path):
    model(tmp_path, "m", ONNX)
    wanted = need(tmp_path, read_model_configs(tmp_path))
    assert fit(wanted, free(wanted.least_bytes - 1), beside_bytes=0) is Fit.SHORT
    assert fit(wanted, free(wanted.least_bytes), beside_bytes=0) is Fit.NEAR
    enough = int((wanted.usual_bytes + MIB) / NEAR) + 1
    assert fit(wanted, free(enough), beside_bytes=MIB) is Fit.ENOUGH
    assert fit(wanted, free(enough - 2), beside_bytes=MIB) is Fit.NEAR


def test_models_that_cannot_be_loaded_are_refused_with_a_way_out(tmp_path):
    model(tmp_path, "m", f"{ONNX} instance_group [ {{ kind: KIND_CPU count: 2 }} ]")
    wanted = need(tmp_path, read_model_configs(tmp_path))
    with pytest.raises(MemoryShort) as failure:
        check(wanted, free(MIB), beside_bytes=0, how=MemoryCheck.REFUSE)
    assert "2 ×" in table(wanted)[0]
    for words in ("1 MiB are free", "the models take", "ONNX Runtime, estimated", "--instances 1", "MEMORY_CHECK=warn"):
        assert words in str(failure.value)
    assert check(wanted, free(MIB), beside_bytes=0, how=MemoryCheck.WARN)
    assert check(wanted, free(MIB), beside_bytes=0, how=MemoryCheck.OFF) is None
    assert check(wanted, None, beside_bytes=0, how=MemoryCheck.REFUSE) is None
    assert check(wanted, free(64 * GIB), beside_bytes=0, how=MemoryCheck.REFUSE) is None


def test_fingerprint_ignores_the_configuration(tmp_path):
    model(tmp_path, "m", ONNX)
    before = fingerprint(tmp_path / "m")
    (tmp_path / "m" / "config.pbtxt").write_text(f"{ONNX} instance_group [ {{ count: 9 }} ]")
    assert fingerprint(tmp_path / "m") == before
