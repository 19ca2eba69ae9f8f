"""The checks of a model repository in `gateway doctor`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.findings import Finding, Level
from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL, PREPROCESSOR, SEQUENCE_MODEL
from gateway_local.cpu_network import NETWORK, CpuNetwork, CpuRuntime, write
from gateway_local.doctor import repository
from gateway_local.memory_plan import sized_configs
from gateway_machine.capacity import plan


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


def test_shipped_repository_has_no_problems_and_missing_models_come_with_advice(folder, tmp_path):
    assert {finding.level for finding in findings(folder).values()} == {Level.OK}
    assert "GATEWAY_MODEL" in findings(folder, "other")["contract"].advice
    configs, finding = repository.read(tmp_path / "none")
    assert (configs, finding.level) == ({}, Level.FAIL)
    assert "--model-repository" in finding.advice


def edit(model: str, old: str, new: str) -> Callable[[Path], None]:
    """Replaces a text of a model's config.pbtxt."""
    return lambda folder: replace(folder / model / "config.pbtxt", old, new)


def misspell(folder: Path) -> None:
    path = folder / PREPROCESSOR / "config.pbtxt"
    path.write_text(f"max_batch_sise: 8\n{path.read_text()}")


def drop_a_label(folder: Path) -> None:
    path = folder / CLASSIFIER / "labels.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def remove(path: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        found = folder / path
        shutil.rmtree(found) if found.is_dir() else found.unlink()

    return change


FP32, UINT8 = (f'IMAGE"\n    data_type: TYPE_{name}' for name in ("FP32", "UINT8"))
TENSORS = edit(PREPROCESSOR, FP32, UINT8)
STEP = edit(ENSEMBLE_MODEL, f'model_name: "{PREPROCESSOR}"', 'model_name: "elsewhere"')
POLICY = "dynamic_batching { default_queue_policy { max_queue_size: 1024 }"
FAIL, WARN = Level.FAIL, Level.WARN
FAULTS = [
    (TENSORS, "tensors", FAIL, "preprocessor's PREPROCESSED_IMAGE gives TYPE_UINT8 [3, 224, 224]"),
    (TENSORS, "tensors", FAIL, "classifier takes it as input__0, TYPE_FP32 [3, 224, 224]"),
    (edit(PREPROCESSOR, '"pillow"', '"pillow-12.1"'), "resize library", WARN, "(pillow-12.1) names a Pillow release"),
    (
        misspell,
        "models",
        FAIL,
        'preprocessor/config.pbtxt: 1:1 : Message type "inference.ModelConfig" has no field named "max_batch_sise"',
    ),
    (edit(CLASSIFIER, 'name: "classifier"', 'name: "other"'), "models", FAIL, "'other'"),
    (STEP, "models", FAIL, "the step 'elsewhere' is not a model of this repository"),
    (edit(ENSEMBLE_MODEL, "TYPE_UINT8", "TYPE_FP32"), "contract", FAIL, "RAW_IMAGE"),
    (edit(ENSEMBLE_MODEL, "TYPE_UINT8", "TYPE_FP32"), "contract", FAIL, "TYPE_FP32"),
    (remove("preprocessor/1"), "model files", FAIL, "preprocessor has no version"),
    # A fresh checkout has no folder classifier/1, since git keeps no empty ones.
    (remove("classifier/1"), "model files", WARN, "gateway up makes it at its first start"),
    (remove("preprocessor/1/model.py"), "model files", FAIL, f"{PREPROCESSOR}/1/model.py is missing"),
    (remove("classifier/1/model.pt"), "model files", WARN, "gateway model export"),
    (remove("classifier/labels.txt"), "labels", FAIL, ""),
    (drop_a_label, "labels", FAIL, "labels.txt has 999 lines, and output__0 has 1000 classes"),
    (lambda folder: (folder / "classifier/labels.txt").write_bytes(b"\xff"), "labels", FAIL, "it is not UTF-8"),
    (edit(CLASSIFIER, 'label_filename: "labels.txt"', ""), "labels", WARN, ""),
    (edit(CLASSIFIER, "dynamic_batching {", POLICY), "batching", WARN, f"{CLASSIFIER}: with a queue policy, Triton"),
]
"""A change of the repository; the check that finds it, with its level and words; no other check fails."""


@pytest.mark.parametrize(("change", "check", "level", "words"), FAULTS)
def test_fault_is_found_by_one_check(folder, change, check, level, words):
    change(folder)
    found = findings(folder)
    assert (found[check].level, [each for each in found if found[each].level is Level.FAIL]) == (
        level,
        [check] if level is Level.FAIL else [],
    )
    assert words in found[check].text + found[check].advice


CACHED = edit(CLASSIFIER, "response_cache { enable: false }", "response_cache { enable: true }")


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ([], Level.OK, ""),
        ([edit(PREPROCESSOR, "KIND_CPU", "KIND_GPU")], Level.WARN, "--cuda-memory-pool-byte-size=0:"),
        ([edit(PREPROCESSOR, "KIND_CPU", "KIND_GPU")], Level.WARN, "silently wrong"),
        (
            [edit(PREPROCESSOR, "KIND_CPU", "KIND_GPU"), CACHED],
            Level.FAIL,
            f"{CLASSIFIER}: the response cache reads inputs",
        ),
    ],
)
def test_images_on_a_gpu_need_a_pool_and_no_cache(folder, changes, level, words):
    for change in changes:
        change(folder)
    finding = repository.gpu_memory(repository.read(folder)[0], gpus=1, images_in_flight=256)
    assert (finding.check, finding.level) == ("GPU memory", level)
    assert words in finding.text


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


def test_network_that_was_swapped_is_reported(folder):
    version = folder / CLASSIFIER / "1"
    (version / NETWORK).write_bytes(b"the network")
    write(CpuNetwork(CpuRuntime.ONNXRUNTIME, "both agree"), version / "model.pt")
    assert repository.networks(folder, repository.read(folder)[0], 0).level is Level.OK
    (version / "model.pt").write_bytes(b"another network")
    finding = repository.networks(folder, repository.read(folder)[0], 0)
    assert finding.level is Level.WARN
    assert "cpu.json belongs to another model.pt" in finding.text
