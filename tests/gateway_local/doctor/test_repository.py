"""The checks of a model repository in `gateway doctor`."""

import shutil
from pathlib import Path

import pytest

from gateway.findings import Finding, Level
from gateway.machine.capacity import plan
from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL, PREPROCESSOR, SEQUENCE_MODEL
from gateway_local.cpu_network import NETWORK, CpuNetwork, CpuRuntime, write
from gateway_local.doctor import repository
from gateway_local.memory_plan import sized_configs


@pytest.fixture
def folder(tmp_path: Path, model_repository: Path) -> Path:
    """A copy of the project's own repository, to be damaged."""
    return Path(shutil.copytree(model_repository, tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__")))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def findings(folder: Path, model: str = ENSEMBLE_MODEL) -> dict[str, Finding]:
    configs, read = repository.read(folder)
    found = [read, repository.contract(configs, model), repository.files(folder, configs), repository.batching(configs)]
    found += [repository.labels(folder, configs), repository.tensors(configs), repository.resize_library(configs)]
    return {finding.check: finding for finding in found}


def only_failure(folder: Path) -> Finding:
    (failure,) = [finding for finding in findings(folder).values() if finding.level is Level.FAIL]
    return failure


def test_shipped_repository_has_no_problems(folder):
    assert {finding.level for finding in findings(folder).values()} == {Level.OK}


def test_mismatched_tensors_between_steps_fail(folder):
    replace(
        folder / PREPROCESSOR / "config.pbtxt", 'IMAGE"\n    data_type: TYPE_FP32', 'IMAGE"\n    data_type: TYPE_UINT8'
    )
    failure = only_failure(folder)
    assert failure.check == "tensors"
    assert "preprocessor's PREPROCESSED_IMAGE gives TYPE_UINT8 [3, 224, 224]" in failure.text
    assert "classifier takes it as input__0, TYPE_FP32 [3, 224, 224]" in failure.text


def test_sizes_are_reported_and_so_are_counts_of_a_configuration(folder):
    configs, _ = repository.read(folder)
    finding = repository.sizes(configs, plan(16, 1))
    assert finding.level is Level.OK
    assert finding.text.splitlines() == plan(16, 1).explained()
    replace(folder / CLASSIFIER / "config.pbtxt", "kind: KIND_AUTO", "kind: KIND_AUTO count: 5")
    configs, _ = repository.read(folder)
    assert f"{CLASSIFIER}: its config.pbtxt has a count of its own" in repository.sizes(configs, plan(16, 1)).text


def test_ensemble_needs_no_process(folder):
    configs = sized_configs(folder, plan(2, 0))
    counts = {name: sum(group.count for group in config.instance_group) for name, config in configs.items()}
    assert counts[PREPROCESSOR] == counts[CLASSIFIER] == 2
    assert repository.instances(folder, configs) == counts[PREPROCESSOR] + counts[CLASSIFIER] + counts[SEQUENCE_MODEL]
    before = repository.memory(folder, configs)
    assert {each.model: each.processes for each in before.footprints} == {
        name: counts[name] for name in (CLASSIFIER, PREPROCESSOR, SEQUENCE_MODEL)
    }
    configs[PREPROCESSOR].parameters["resize_library"].string_value = "torch"
    assert repository.memory(folder, configs).least_bytes > before.least_bytes


def test_preprocessor_that_names_a_pillow_release_is_reported(folder):
    replace(folder / PREPROCESSOR / "config.pbtxt", '"pillow"', '"pillow-12.1"')
    finding = findings(folder)["resize library"]
    assert finding.level is Level.WARN
    assert "preprocessor (pillow-12.1) names a Pillow release" in finding.text


def test_folder_without_models_fails(tmp_path):
    configs, finding = repository.read(tmp_path)
    assert configs == {}
    assert finding.level is Level.FAIL
    assert "--model-repository" in finding.advice


def test_unparsable_config_fails_with_file_and_line(folder):
    path = folder / PREPROCESSOR / "config.pbtxt"
    path.write_text(f"{path.read_text()}\nmax_batch_sise: 8\n")
    failure = only_failure(folder)
    assert failure.check == "models"
    assert str(path) in failure.text
    assert "max_batch_sise" in failure.text
    assert str(len(path.read_text().splitlines())) in failure.text


def test_model_name_other_than_its_folder_fails(folder):
    replace(folder / CLASSIFIER / "config.pbtxt", 'name: "classifier"', 'name: "other"')
    assert "'other'" in only_failure(folder).text


def test_step_without_a_model_fails(folder):
    replace(folder / ENSEMBLE_MODEL / "config.pbtxt", f'model_name: "{PREPROCESSOR}"', 'model_name: "elsewhere"')
    assert "the step 'elsewhere' is not a model of this repository" in only_failure(folder).text


def test_ensemble_that_breaks_the_contract_fails(folder):
    replace(folder / ENSEMBLE_MODEL / "config.pbtxt", "TYPE_UINT8", "TYPE_FP32")
    failure = only_failure(folder)
    assert failure.check == "contract"
    assert "RAW_IMAGE" in failure.text
    assert "TYPE_FP32" in failure.text


def test_missing_default_model_fails(folder):
    finding = findings(folder, "other")["contract"]
    assert finding.level is Level.FAIL
    assert "GATEWAY_MODEL" in finding.advice


def test_model_without_a_version_fails(folder):
    shutil.rmtree(folder / PREPROCESSOR / "1")
    assert "preprocessor has no version" in only_failure(folder).text


def test_default_model_that_is_not_made_yet_is_a_warning(folder):
    """A fresh checkout has no folder classifier/1, since git keeps no empty ones."""
    shutil.rmtree(folder / CLASSIFIER / "1", ignore_errors=True)
    finding = findings(folder)["model files"]
    assert finding.level is Level.WARN
    assert "gateway up makes it at its first start" in finding.advice


def test_version_without_its_file_fails(folder):
    (folder / PREPROCESSOR / "1" / "model.py").unlink()
    assert f"{PREPROCESSOR}/1/model.py is missing" in only_failure(folder).text


def test_unexported_default_model_is_a_warning(folder):
    (folder / CLASSIFIER / "1" / "model.pt").unlink()
    finding = findings(folder)["model files"]
    assert finding.level is Level.WARN
    assert "gateway model export" in finding.advice


def test_missing_labels_fail(folder):
    (folder / CLASSIFIER / "labels.txt").unlink()
    assert only_failure(folder).check == "labels"


def test_wrong_number_of_labels_fails_with_both_numbers(folder):
    path = folder / CLASSIFIER / "labels.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert f"{path} has 999 lines, and output__0 has 1000 classes" in only_failure(folder).text


def test_labels_that_are_not_utf8_fail(folder):
    (folder / CLASSIFIER / "labels.txt").write_bytes(b"\xff\xfe")
    assert "it is not UTF-8" in only_failure(folder).text


def test_model_without_labels_is_a_warning(folder):
    replace(folder / CLASSIFIER / "config.pbtxt", 'label_filename: "labels.txt"', "")
    assert findings(folder)["labels"].level is Level.WARN


def test_queue_policy_is_a_warning_that_names_the_model(folder):
    path = folder / CLASSIFIER / "config.pbtxt"
    replace(path, "dynamic_batching {", "dynamic_batching { default_queue_policy { max_queue_size: 1024 }")
    finding = findings(folder)["batching"]
    assert finding.level is Level.WARN
    assert finding.text == (
        f"{CLASSIFIER}: with a queue policy, Triton can delay requests by half a second while an instance is free"
    )
    assert finding.advice.startswith("in config.pbtxt, remove default_queue_policy")


def test_shipped_models_leave_no_images_on_a_gpu(folder):
    configs, _ = repository.read(folder)
    assert repository.gpu_memory(configs, gpus=1, images_in_flight=256).level is Level.OK


def test_preprocessor_on_a_gpu_is_a_warning_with_the_pool_size(folder):
    replace(folder / PREPROCESSOR / "config.pbtxt", "KIND_CPU", "KIND_GPU")
    configs, _ = repository.read(folder)
    finding = repository.gpu_memory(configs, gpus=1, images_in_flight=256)
    assert finding.level is Level.WARN
    assert "--cuda-memory-pool-byte-size=0:" in finding.text
    assert "silently wrong" in finding.text
    assert "KIND_CPU" in finding.advice


def test_cache_that_cannot_read_its_inputs_fails(folder):
    replace(folder / PREPROCESSOR / "config.pbtxt", "KIND_CPU", "KIND_GPU")
    replace(folder / CLASSIFIER / "config.pbtxt", "response_cache { enable: false }", "response_cache { enable: true }")
    configs, _ = repository.read(folder)
    finding = repository.gpu_memory(configs, gpus=1, images_in_flight=256)
    assert (finding.level, finding.check) == (Level.FAIL, "GPU memory")
    assert finding.text.startswith(f"{CLASSIFIER}: the response cache reads inputs in host memory only")


def test_network_that_was_swapped_is_reported(folder):
    version = folder / CLASSIFIER / "1"
    (version / NETWORK).write_bytes(b"the network")
    write(CpuNetwork(CpuRuntime.ONNXRUNTIME, "both agree"), version / "model.pt")
    assert repository.networks(folder, repository.read(folder)[0], 0).level is Level.OK
    (version / "model.pt").write_bytes(b"another network")
    finding = repository.networks(folder, repository.read(folder)[0], 0)
    assert finding.level is Level.WARN
    assert "cpu.json belongs to another model.pt" in finding.text
