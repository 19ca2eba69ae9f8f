"""The processes of models, their runtimes and their memory, and the check of a model that is to be loaded."""

from pathlib import Path

import pytest
from google.protobuf import text_format

from gateway.errors import LoadFailed
from gateway.machine.capacity import PROCESS_MEMORY, NetworkRuntime
from gateway.machine.memory import MACHINE, Memory
from gateway.settings import GIB, MIB
from gateway.triton.configs import ModelConfig, network_runtime, read_model_configs
from gateway.triton.contract import AFTER_PARAMETER, PROCESS_MEMORY_PARAMETER
from gateway.triton.footprint import SERVER_BYTES, MemoryRecord, check_load, footprint, need, runtime_of
from gateway.triton.opening import create_backend
from tests.settings import Settings

ONNX = 'backend: "onnxruntime"'


def model(repository: Path, name: str, text: str, *, versions: int = 1, weights: int = 0) -> ModelConfig:
    """Write a model whose versions have a file of `weights` bytes each."""
    folder = repository / name
    for version in range(1, versions + 1):
        (folder / str(version)).mkdir(parents=True)
        (folder / str(version) / "model.onnx").write_bytes(bytes(weights))
    (folder / "config.pbtxt").write_text(f'name: "{name}" {text}')
    return read_model_configs(repository)[name]


def ensemble(repository: Path, name: str, *parts: str) -> None:
    listed = ", ".join(f'{{ model_name: "{part}" model_version: -1 }}' for part in parts)
    (repository / name).mkdir()
    (repository / name / "config.pbtxt").write_text(f'platform: "ensemble" ensemble_scheduling {{ step [ {listed} ] }}')


def free(nbytes: int) -> Memory:
    return Memory(64 * GIB, nbytes, MACHINE)


@pytest.mark.parametrize(
    ("text", "versions", "gpus", "count"),
    [
        ("", 1, 0, 1),
        ("instance_group [ { kind: KIND_CPU count: 3 } ]", 1, 0, 3),
        ("instance_group [ { kind: KIND_CPU count: 3 }, { kind: KIND_AUTO } ]", 1, 0, 4),
        ("instance_group [ { kind: KIND_AUTO count: 2 } ]", 1, 4, 8),
        ("instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0, 1 ] } ]", 1, 4, 4),
        ("instance_group [ { kind: KIND_CPU count: 2 } ]", 3, 0, 2),
        ("instance_group [ { kind: KIND_CPU count: 2 } ] version_policy { all { } }", 3, 0, 6),
        ("instance_group [ { kind: KIND_CPU count: 2 } ] version_policy { latest { num_versions: 2 } }", 3, 0, 4),
        ("instance_group [ { kind: KIND_CPU count: 2 } ] version_policy { specific { versions: [ 1 ] } }", 3, 0, 2),
    ],
)
def test_each_instance_of_each_loaded_version_is_a_process(tmp_path, text, versions, gpus, count):
    config = model(tmp_path, "m", f"{ONNX} {text}", versions=versions)
    assert footprint("m", config, tmp_path / "m", gpus=gpus).processes == count


def test_runtimes_are_recognised():
    assert runtime_of(ModelConfig(platform="onnxruntime_onnx")) is NetworkRuntime.ONNX
    by_openvino = ModelConfig(platform="onnxruntime_onnx")
    by_openvino.optimization.execution_accelerators.cpu_execution_accelerator.add(name="openvino")
    assert runtime_of(by_openvino) is NetworkRuntime.OPENVINO
    assert runtime_of(ModelConfig(platform="pytorch_libtorch")) in {NetworkRuntime.TORCH_CPU, NetworkRuntime.TORCH_CUDA}
    assert runtime_of(ModelConfig(backend="python")) is NetworkRuntime.PYTHON
    shipped = read_model_configs(Path(__file__).parents[3] / "triton_models")
    assert runtime_of(shipped["preprocessor"]) is NetworkRuntime.PREPROCESSOR
    assert runtime_of(shipped["sequence_model"]) is NetworkRuntime.STATEFUL


def test_libraries_are_counted_once_and_weights_in_each_process(tmp_path):
    for name in ("a", "b"):
        model(tmp_path, name, f"{ONNX} instance_group [ {{ kind: KIND_CPU count: 2 }} ]", weights=MIB)
    ensemble(tmp_path, "e", "a", "b")
    cost = PROCESS_MEMORY[NetworkRuntime.ONNX]
    found = need(tmp_path, read_model_configs(tmp_path))
    assert found.usual_bytes == 4 * (cost.peak_bytes + MIB) + cost.shared_bytes + SERVER_BYTES
    assert found.least_bytes == 4 * (cost.loaded_bytes + MIB) + SERVER_BYTES


def recorded(repository: Path, text: str, extra: str = "", *, name: str = "e") -> Path:
    """Write the model `m` in ONNX with 10 MiB of weights, if there is none, and an ensemble of it with a record."""
    if not (repository / "m").exists():
        model(repository, "m", f"{ONNX} {extra}", weights=10 * MIB)
    ensemble(repository, name, "m")
    path = repository / name / "config.pbtxt"
    value = text.replace('"', '\\"')
    parameter = f'parameters {{ key: "{PROCESS_MEMORY_PARAMETER}" value: {{ string_value: "{value}" }} }}'
    path.write_text(f"{path.read_text()} {parameter}")
    return path


def test_record_of_the_addition_replaces_the_table(tmp_path):
    """The one with the highest peak of several versions, which have an ensemble each."""
    recorded(tmp_path, MemoryRecord(NetworkRuntime.ONNX, 100 * MIB, 110 * MIB).text)
    recorded(tmp_path, MemoryRecord(NetworkRuntime.ONNX, 90 * MIB, 120 * MIB).text, name="e2")
    (found,) = need(tmp_path, read_model_configs(tmp_path)).footprints
    assert (found.measured, found.least_bytes, found.usual_bytes) == (True, 90 * MIB, 120 * MIB)


def test_record_is_of_the_network_before_a_step_after_it(tmp_path):
    path = recorded(tmp_path, MemoryRecord(NetworkRuntime.ONNX, 100 * MIB, 110 * MIB).text)
    model(tmp_path, "after", 'backend: "python"')
    step = '{ model_name: "after" model_version: -1 } ] }'
    text = f'parameters {{ key: "{AFTER_PARAMETER}" value: {{ string_value: "{{}}" }} }}'
    path.write_text(f"{path.read_text().replace('] }', ', ' + step, 1)} {text}")
    found = {each.model: each for each in need(tmp_path, read_model_configs(tmp_path)).footprints}
    assert (found["m"].measured, found["m"].least_bytes) == (True, 100 * MIB)
    assert not found["after"].measured


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"runtime": "?", "loaded_bytes": 1}'])
def test_damaged_record_is_not_used(tmp_path, text):
    recorded(tmp_path, text)
    (found,) = need(tmp_path, read_model_configs(tmp_path)).footprints
    assert (found.measured, found.least_bytes) == (False, PROCESS_MEMORY[NetworkRuntime.ONNX].loaded_bytes + 10 * MIB)


def test_network_on_gpus_has_its_weights_and_activations_there(tmp_path):
    """The libraries stay in host memory."""
    cost, record = PROCESS_MEMORY[NetworkRuntime.ONNX], MemoryRecord(NetworkRuntime.ONNX, 100 * MIB, 120 * MIB)
    on_gpus = "instance_group [ { kind: KIND_GPU count: 2 } ]"
    recorded(tmp_path, record.text, on_gpus)
    model(tmp_path, "unmeasured", f"{ONNX} {on_gpus}", weights=10 * MIB)
    found, unmeasured = need(tmp_path, read_model_configs(tmp_path), gpus=2).footprints
    assert found.gpu_bytes == 2 * (record.peak_bytes - cost.loaded_bytes)
    assert unmeasured.gpu_bytes == 2 * (10 * MIB + cost.peak_bytes - cost.loaded_bytes)
    assert (found.processes, found.usual_bytes) == (4, cost.peak_bytes)


def test_load_is_refused_only_for_the_parts_of_its_model(tmp_path):
    model(tmp_path, "huge", f"{ONNX} instance_group [ {{ kind: KIND_CPU count: 64 }} ]")
    model(tmp_path, "small", ONNX)
    ensemble(tmp_path, "e", "small")
    least = PROCESS_MEMORY[NetworkRuntime.ONNX].loaded_bytes
    check_load("e", tmp_path, free(least))
    with pytest.raises(LoadFailed, match="e takes 30 MiB of memory once it is loaded"):
        check_load("e", tmp_path, free(least - 1))
    check_load("unknown", tmp_path, free(0))


OWN, CPU, GPU = (
    'backend: "pytorch" runtime: "model.py"',
    "instance_group { kind: KIND_CPU }",
    "instance_group { kind: KIND_GPU }",
)
OPENVINO = 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'
ONNXRUNTIME = {"cpu_runtime": "onnxruntime"}


@pytest.mark.parametrize(
    ("text", "ensemble", "runtime"),
    [
        (f"{OWN} {CPU}", ONNXRUNTIME, "onnxruntime"),
        (f"{OWN} {CPU}", {"cpu_runtime": "torchscript"}, "torchscript"),
        (f"{OWN} {CPU}", {}, "torchscript"),  # without a record
        (f"{OWN} {GPU}", ONNXRUNTIME, "torchscript"),
        (f"{OWN} {CPU} {GPU}", ONNXRUNTIME, "torchscript"),
        (f'backend: "pytorch" runtime: "libtriton_pytorch.so" {CPU}', ONNXRUNTIME, "libtorch"),
        (f'backend: "onnxruntime" {CPU}', {}, "onnxruntime"),
        (f'backend: "onnxruntime" {CPU} {OPENVINO}', {}, "openvino"),
        (f'backend: "onnxruntime" {GPU} {OPENVINO}', {}, "onnxruntime"),
        ('backend: "tensorrt"', {}, "tensorrt"),
        ("", {}, None),
    ],
)
def test_runtime_follows_backend_device_and_record(text, ensemble, runtime):
    assert network_runtime(text_format.Parse(text, ModelConfig()), ensemble) == runtime


@pytest.mark.anyio
async def test_memory_is_checked_before_a_model_is_loaded(tmp_path, monkeypatch):
    """No Triton is called for a model that does not fit."""
    model(tmp_path, "huge", ONNX)
    monkeypatch.setattr("gateway.machine.memory.usable_memory", lambda: free(0))
    settings = Settings(_env_file=None, triton_url="127.0.0.1:1", model_repository=tmp_path)
    backend = create_backend(settings)
    with pytest.raises(LoadFailed, match="huge takes"):
        await backend.load("huge")
    await backend.close()
