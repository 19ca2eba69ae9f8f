"""Ways to serve a model are measured on the real Triton, and the fastest that is right is kept."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import UserError
from gateway_local import cpu_network
from gateway_models.proof import variants
from gateway_models.proof.tune import Measured, Tuner
from gateway_models.proof.variants import Variant, variants_of
from gateway_models.repository.entry import Entry, read_entry
from gateway_models.repository.spec import Format, OpenVino, Precision, Serving
from gateway_models.repository.writing import rewrite
from tests.commands import gateway
from tests.gateway_models.networks.framework_files import FILES
from tests.gateway_models.repository.entries import entry, with_outcome, with_serving

BASE = Variant(Format.TORCHSCRIPT, Precision.FP32, Serving())
EVERY = [
    *("torchscript by onnxruntime fp32", "torchscript bf16", "openvino fp32", "openvino bf16"),
    "torchscript fp32",
]
"""The variants for TorchScript on a CPU."""


def measured(images: int, difference: float, reason: str = "") -> Measured:
    return Measured(BASE, images, 1.0, difference, 1.0, reason)


def test_only_correct_served_variants_may_be_chosen(added_head):
    tuner = object.__new__(Tuner)
    slow, wrong, fast = measured(10, 1e-6), measured(50, 0.1), measured(20, 1e-4)
    failed = Measured(BASE, reason="no such backend")
    tuner.measured = [slow, wrong, failed, fast]
    assert tuner.best(1e-3) is fast
    assert tuner.best(1e-5) is slow
    assert tuner.best(1e-9) is None
    assert failed.progress_line().endswith("no such backend")


@pytest.fixture
def on_cpu(monkeypatch) -> None:
    """A machine without GPUs, whose processor has bf16, and every package."""
    monkeypatch.setattr(variants, "gpu_count", lambda: 0)
    monkeypatch.setattr(variants, "has_bf16", lambda: True)
    monkeypatch.setattr(variants, "find_spec", lambda name: object())


def ways(entry: Entry) -> list[str]:
    return [each.described() for each in variants_of(entry)]


def in_onnx(entry: Entry, **spec: Any) -> Entry:
    version = entry.versions[1]
    outcome = replace(version.outcome, format=Format.ONNX)
    return Entry("head", {1: replace(version, spec=replace(version.spec, format=Format.ONNX, **spec), outcome=outcome)})


ONE = entry()
TWO = Entry("head", {1: ONE.versions[1], 2: ONE.versions[1]})
WITHOUT_BF16 = [way for way in EVERY if way != "openvino bf16"]
ON_GPU = ["torchscript fp32", "torchscript bf16", "torchscript fp16"]


@pytest.mark.parametrize(
    ("made", "gpus", "bf16", "tried"),
    [
        (ONE, 0, True, EVERY),
        (ONE, 0, False, WITHOUT_BF16),
        (in_onnx(ONE), 0, True, ["onnx fp32", *EVERY]),
        (ONE, 1, True, [*ON_GPU, "onnx fp32", "onnx fp16"]),
        (with_outcome(in_onnx(ONE), embedding_size=16), 0, True, ["onnx fp32", "openvino fp32"]),
        (TWO, 0, True, [EVERY[0], "torchscript bf16"]),
        (TWO, 1, True, ON_GPU),
        (in_onnx(ONE, source=str(FILES / "digits.keras")), 0, True, ["onnx fp32", "openvino fp32", "openvino bf16"]),
        (
            with_serving(in_onnx(ONE), openvino=OpenVino.BF16),
            0,
            True,
            ["openvino bf16", *EVERY[:2], "onnx fp32", EVERY[2], EVERY[4]],
        ),
    ],
    ids=["CPU", "without bf16", "ONNX", "GPU", "embeddings", "two versions", "two on a GPU", "Keras", "in use"],
)
def test_runtimes_that_are_tried(on_cpu, monkeypatch, made, gpus, bf16, tried):
    """Embeddings are not compared by `tune`, and the versions of a model share one configuration."""
    monkeypatch.setattr(variants, "gpu_count", lambda: gpus)
    monkeypatch.setattr(variants, "has_bf16", lambda: bf16)
    assert ways(made) == tried


def test_only_installed_runtimes_are_tried(on_cpu, monkeypatch):
    monkeypatch.setattr(variants, "find_spec", lambda name: None)
    assert ways(ONE) == [way for way in EVERY if "openvino" not in way]


def test_model_with_one_runtime_is_refused(on_cpu):
    with pytest.raises(UserError, match="head runs by TensorRT alone"):
        variants_of(with_serving(in_onnx(ONE), tensorrt=True))


def played(slower: float = 1.0, failing: str = "") -> Any:
    """Measures without a Triton: a variant's results follow from its place in the order."""

    class Played(Tuner):
        def __init__(self) -> None:
            self.entry, self.measured, self.order = ONE, [], []
            self.variants = variants_of(ONE)
            self.report = lambda _: None

        def measure(self, variant):
            self.order.append(variant.described())
            if failing and variant.described().startswith(failing):
                return Measured(variant, reason="it crashed")
            # Each turn is slower than the one before, as on a machine that gets busy.
            return Measured(variant, 1_000.0 * slower ** len(self.order), 1.0)

    return Played()


def test_drift_of_the_machine_favours_no_variant(on_cpu):
    """Measured there and back: on one that loses 2 % with each turn, a single pass would differ by 8 %."""
    tuner = played(slower=0.98)
    found = [each.images_per_second for each in tuner.run()]
    assert tuner.order == [*EVERY, *reversed(EVERY)]
    assert max(found) / min(found) < 1.01


def test_failed_variant_is_reported_once(on_cpu):
    tuner = played(failing="openvino fp32")
    found = list(tuner.run())
    assert [each.reason for each in found].count("it crashed") == 1
    assert len(found) == len(tuner.measured) == 5
    assert tuner.order.count("openvino fp32") == 1
    assert not tuner.best(1e-3).variant.serving.openvino


@pytest.mark.triton
@pytest.mark.long
@pytest.mark.parametrize("by_openvino", [False, True])
def test_fastest_variant_is_written_and_served(added_head, photos, tmp_path, monkeypatch, by_openvino):
    repository = Path(shutil.copytree(added_head[0], tmp_path / "models"))
    # Each instance is a process that takes seconds to start.
    rewrite(with_serving(added_head[1], instances=1, preprocessor_instances=1), repository)
    if by_openvino:
        tried = [each for each in variants_of(added_head[1]) if each.serving.openvino]
        monkeypatch.setattr("gateway_models.proof.tune.variants_of", lambda _: tried)
    where = f"--model-repository={repository}"
    output = gateway("model", "tune", "head", photos / "cat.jpg", "--seconds=0.3", where).stdout
    rows = [line for line in output.splitlines() if re.search(r" \d+\.\d +\d\.\de[-+]\d\d +100 %", line)]
    assert rows
    (chosen,) = [line for line in rows if line.rstrip().endswith("chosen")]
    # Fastest first: only variants beyond the tolerance are above it.
    assert all("beyond the tolerance" in line for line in rows[: rows.index(chosen)])
    entry = read_entry(repository, "head")
    assert entry.spec.serving.openvino or not by_openvino
    assert f"head is now served as {chosen.split('  ')[0].strip()}" in output
    files = {path.name for path in (repository / "head_classifier" / "1").iterdir()}
    # TorchScript keeps the form in which it runs on a CPU.
    kept = set(cpu_network.FILES) if entry.format is Format.TORCHSCRIPT else set()
    assert files - kept == {entry.format.filename}
    # A different Triton from the one of `tune`, and other photographs.
    gateway("model", "verify", "head", photos, where)
