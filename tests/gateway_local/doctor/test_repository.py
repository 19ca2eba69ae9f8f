"""The checks of a model repository in `gateway doctor`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.findings import Finding, Level
from gateway.triton.codecs import Codecs
from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL, PREPROCESSOR
from gateway_local.doctor import repository


@pytest.fixture
def folder(tmp_path: Path, model_repository: Path) -> Path:
    """A copy of the project's own repository, to be damaged."""
    return Path(shutil.copytree(model_repository, tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__")))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def findings(folder: Path, model: str = ENSEMBLE_MODEL) -> dict[str, Finding]:
    configs, found = repository.models(folder)
    return {finding.check: finding for finding in (found, repository.contract(configs, model, Codecs()))}


def test_shipped_repository_has_no_problems_and_missing_models_come_with_advice(folder, tmp_path):
    assert {finding.level for finding in findings(folder).values()} == {Level.OK}
    configs, finding = repository.models(tmp_path / "none")
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


POLICY = "dynamic_batching { default_queue_policy { max_queue_size: 1024 }"
FAIL, WARN, OK = Level.FAIL, Level.WARN, Level.OK
FAULTS = [
    (
        misspell,
        "models",
        FAIL,
        'preprocessor/config.pbtxt: 1:1 : Message type "inference.ModelConfig" has no field named "max_batch_sise"',
    ),
    (edit(ENSEMBLE_MODEL, "TYPE_UINT8", "TYPE_FP32"), "contract", FAIL, "RAW_IMAGE"),
    (edit(ENSEMBLE_MODEL, "TYPE_UINT8", "TYPE_FP32"), "contract", FAIL, "TYPE_FP32"),
    # A fresh checkout has no folder classifier/1, since git keeps no empty ones.
    (remove("classifier/1"), "models", OK, ""),
    (remove("classifier/labels.txt"), "models", FAIL, ""),
    (drop_a_label, "models", FAIL, "labels.txt has 999 lines, and output__0 has 1000 classes"),
    (lambda folder: (folder / "classifier/labels.txt").write_bytes(b"\xff"), "models", FAIL, "it is not UTF-8"),
    (edit(CLASSIFIER, "dynamic_batching {", POLICY), "models", WARN, f"{CLASSIFIER}: with a queue policy, Triton"),
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
