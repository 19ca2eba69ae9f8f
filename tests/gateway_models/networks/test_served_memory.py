"""The memory of a network is measured when it is added, in the process that serves it, and recorded with the model."""

from dataclasses import replace

import pytest

from gateway.machine.capacity import NetworkRuntime
from gateway.settings import MIB
from gateway.triton.configs import read_model_config, read_model_configs
from gateway.triton.footprint import MemoryRecord, need
from gateway_local.cpu_network import CpuRuntime
from gateway_local.json_child import ChildFailed, ask
from gateway_models.networks import served_process
from gateway_models.networks.add import add
from gateway_models.repository.entry import Entry, read_entry
from gateway_models.repository.render import render
from gateway_models.repository.spec import Format, Serving
from tests.gateway_models.networks.builders import Head, save_torchscript, spec_of
from tests.gateway_models.repository.entries import entry as small_entry

FUNCTION = """
import numpy as np

HELD = np.ones({nbytes}, np.uint8)


def classify(images: np.ndarray) -> np.ndarray:
    return np.tile(np.arange(5, dtype=np.float32), (len(images), 1))
"""


@pytest.mark.parametrize(
    ("changes", "runtimes"),
    [
        ({}, {NetworkRuntime.ONNX}),
        ({"format": Format.ONNX}, {NetworkRuntime.ONNX}),
        (
            {"serving": Serving(cpu_runtime=CpuRuntime.TORCHSCRIPT)},
            {NetworkRuntime.TORCH_CPU, NetworkRuntime.TORCH_CUDA},
        ),
    ],
    ids=["TorchScript by ONNX Runtime", "ONNX", "TorchScript"],
)
def test_memory_of_a_network_is_recorded_with_it(tmp_path, measured_memory, changes, runtimes):
    said: list[str] = []
    source = save_torchscript(Head(), tmp_path / "head.pt")
    entry = add(spec_of(source, tmp_path, **changes), tmp_path / "models", said.append)
    record = entry.versions[1].outcome.memory
    assert record is not None
    assert record.runtime in runtimes
    assert 15 * MIB < record.loaded_bytes <= record.peak_bytes < 1_000 * MIB
    assert any("MiB under load" in line for line in said)
    models = tmp_path / "models"
    assert read_entry(models, "head") == entry
    assert MemoryRecord.of(read_model_config(models / "head" / "config.pbtxt")) == record
    found = {each.model: each for each in need(models, read_model_configs(models)).footprints}
    assert found["head_classifier"].measured
    assert found["head_classifier"].usual_bytes == record.peak_bytes


@pytest.mark.long
def test_memory_of_a_function_is_that_of_its_imports_and_data(tmp_path, measured_memory):
    source = tmp_path / "mine.py"
    records = []
    for number, nbytes in enumerate((0, 100 * MIB)):
        source.write_text(FUNCTION.format(nbytes=nbytes))
        spec = spec_of(f"{source}:classify", tmp_path, name=f"mine{number}", trust=True, pixels=True)
        records.append(add(spec, tmp_path / "models", print).versions[1].outcome.memory)
    small, large = records
    assert large.runtime is NetworkRuntime.PYTHON
    assert 90 * MIB < large.loaded_bytes - small.loaded_bytes < 110 * MIB


def test_network_that_cannot_be_measured_is_added_without_a_record(tmp_path):
    said: list[str] = []
    source = save_torchscript(Head(), tmp_path / "head.pt")
    entry = add(spec_of(source, tmp_path), tmp_path / "models", said.append)
    assert entry.versions[1].outcome.memory is None
    assert "process_memory" not in (tmp_path / "models" / "head" / "config.pbtxt").read_text()
    assert any(line.endswith("could not be measured: tests measure it on demand") for line in said)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('no such file')", "ValueError: no such file"),
        ("import os; os.write(2, b'\\xff\\n'); raise ValueError('no text')", "ValueError: no text"),
        ("raise SystemExit(3)", "ended with code 3"),
        ("while True: pass", "took longer than 1 s"),
    ],
    ids=["raises", "writes bytes", "ends", "hangs"],
)
def test_process_that_fails_is_an_error(tmp_path, code, reason):
    (tmp_path / "model.py").write_text(code)
    given = {"code": str(tmp_path / "model.py"), "folder": str(tmp_path), "config": {"name": "m"}, "images": 1}
    with pytest.raises(ChildFailed, match=reason):
        ask(served_process.__file__, given, 1.0 if code.startswith("while") else 60.0)


def test_record_changes_nothing_that_triton_loads_again():
    """Triton loads all versions of a network again if its configuration changes."""
    one = small_entry().versions[1]
    record = MemoryRecord(NetworkRuntime.ONNX, 10, 20)
    other = replace(one, outcome=replace(one.outcome, memory=record))
    before, after = render(Entry("head", {1: one, 2: one})), render(Entry("head", {1: one, 2: other}))
    assert {name for name, text in after.items() if before[name] != text} == {"head.v2"}
