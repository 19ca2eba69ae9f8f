"""Ways to serve a model are measured on the real Triton, and the fastest that is right is kept."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.triton.model_config import read_model_config
from gateway_local import cpu_network
from gateway_local.tuning import machine
from gateway_models.proof import variants
from gateway_models.proof.tune import LoadResult, Measured, Tuner, report
from gateway_models.proof.variants import USUAL, NetworkRuntime, TuneStep, Variant, variants_of
from gateway_models.repository.entry import Entry, read_entry
from gateway_models.repository.spec import Decode, Format, Precision, Serving
from gateway_models.repository.writing import rewrite
from gateway_plugins.shared.extras import install
from tests.commands import gateway
from tests.gateway_models.networks.framework_files import FILES
from tests.gateway_models.repository.entries import entry, with_outcome

BASE = Variant(Format.TORCHSCRIPT, Precision.FP32, Serving())
EVERY = [
    *("torchscript by onnxruntime fp32", "torchscript bf16", "openvino fp32", "openvino bf16"),
    "torchscript fp32",
]
"""What is tried for TorchScript on a CPU."""


def test_only_correct_served_variants_may_be_chosen(added_head):
    tuner = object.__new__(Tuner)
    slow, wrong = Measured(BASE, 10.0, 1e-6), Measured(BASE, 50.0, 0.1)
    failed, fast = Measured(BASE, 0.0, 0.0, "no such backend"), Measured(BASE, 20.0, 1e-4)
    tuner.measured = [slow, wrong, failed, fast]
    assert tuner.best(1e-3) is fast
    assert tuner.best(1e-5) is slow
    assert tuner.best(1e-9) is None
    assert failed.progress_line().endswith("no such backend")


def test_a_variant_that_was_not_served_has_no_figures_and_a_short_reason(tmp_path, capsys):
    failed = Measured(BASE, 0.0, 0.0, "torch cannot write it as ONNX: " + "an operator, " * 50)
    report([failed, Measured(BASE, 20.0, 1e-4, same_top1=1.0)], None, 0.001, tmp_path / "plot.png")
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    (row,) = [row for row in rows if "torch cannot write it" in row]
    assert row.removeprefix(BASE.described()).split()[:4] == ["-"] * 4
    assert row.endswith(" …")
    assert len(row) < 220


def test_variants_that_change_pixels_must_be_requested(added_head):
    decodings = variants_of(TuneStep.DECODE, BASE, added_head[1])
    libraries = variants_of(TuneStep.RESIZE, BASE, added_head[1])
    assert [each.serving.decode for each in decodings] == [Decode.EXACT, Decode.FAST]
    assert [each.resize_library for each in libraries] == ["pillow", "torch"]
    assert {*decodings, *libraries} >= {BASE}
    fast, torch = decodings[1], libraries[1]
    assert (fast.described(), torch.described()) == (
        f"{BASE.described()}, decoded fast",
        f"{BASE.described()}, resized by torch",
    )
    assert {TuneStep.DECODE, TuneStep.RESIZE}.isdisjoint(USUAL)


@pytest.fixture
def on_cpu(monkeypatch) -> None:
    """A machine without GPUs, whose processor has bf16, and every package."""
    monkeypatch.setattr(variants, "gpu_count", lambda: 0)
    monkeypatch.setattr(variants, "has_bf16", lambda: True)
    monkeypatch.setattr(variants, "find_spec", lambda name: object())


def ways(entry: Entry, base: Variant = BASE) -> list[str]:
    return [each.described().partition(",")[0] for each in variants_of(TuneStep.FORMATS, base, entry)]


def of_keras(entry: Entry) -> Entry:
    version = entry.versions[1]
    spec = replace(version.spec, source=str(FILES / "digits.keras"), format=Format.ONNX)
    return Entry("head", {1: replace(version, spec=spec)})


ONE = entry()
TWO = Entry("head", {1: ONE.versions[1], 2: ONE.versions[1]})
WITHOUT_BF16 = [way for way in EVERY if way != "openvino bf16"]
ON_GPU = ["torchscript fp32", "torchscript bf16", "torchscript fp16"]


@pytest.mark.parametrize(
    ("made", "written_as", "gpus", "bf16", "tried"),
    [
        (ONE, Format.TORCHSCRIPT, 0, True, EVERY),
        (ONE, Format.TORCHSCRIPT, 0, False, WITHOUT_BF16),
        (ONE, Format.ONNX, 0, True, ["onnx fp32", *EVERY]),
        (ONE, Format.TORCHSCRIPT, 1, True, [*ON_GPU, "onnx fp32", "tensorrt fp32", "onnx fp16", "tensorrt fp16"]),
        (with_outcome(ONE, embedding_size=16), Format.TORCHSCRIPT, 0, True, WITHOUT_BF16),
        (TWO, Format.TORCHSCRIPT, 0, True, [EVERY[0], "torchscript bf16"]),
        (TWO, Format.TORCHSCRIPT, 1, True, ON_GPU),
        (of_keras(ONE), Format.ONNX, 0, True, ["onnx fp32", "openvino fp32", "openvino bf16"]),
    ],
    ids=["CPU", "without bf16", "ONNX", "GPU", "embeddings", "two versions", "two versions on a GPU", "Keras"],
)
def test_runtimes_that_are_tried(on_cpu, monkeypatch, made, written_as, gpus, bf16, tried):
    """Embeddings are not compared by `tune`, and the versions of a model share one configuration."""
    monkeypatch.setattr(variants, "gpu_count", lambda: gpus)
    monkeypatch.setattr(variants, "has_bf16", lambda: bf16)
    assert ways(made, replace(BASE, format=written_as)) == tried


def test_runtime_in_use_comes_first(on_cpu):
    assert ways(ONE, variants_of(TuneStep.FORMATS, BASE, ONE)[3])[0] == "openvino bf16"


def test_tensorrt_needs_the_backend_of_an_image(on_cpu, monkeypatch):
    """Elsewhere ONNX Runtime would run the network without it, and its figure would be TensorRT's."""
    monkeypatch.setattr(variants, "gpu_count", lambda: 1)
    (variant, *_) = [each for each in variants_of(TuneStep.FORMATS, BASE, entry()) if each.serving.tensorrt]
    assert "needs the ONNX Runtime backend of NVIDIA's image" in variant.missing()


def test_missing_library_is_listed_with_its_command(on_cpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(variants, "find_spec", lambda name: None if name == "openvino" else object())
    listed = variants_of(TuneStep.FORMATS, BASE, entry())
    lacking = [each for each in listed if each.missing()]
    assert [each.runtime for each in lacking] == [NetworkRuntime.OPENVINO]
    report([Measured(each, 0.0, 0.0, each.missing()) for each in lacking], None, 0.001, tmp_path / "plot.png")
    # Whole, however long the checkout's path is; lines may end anywhere.
    assert "".join(f"needs openvino: {install('openvino')}".split()) in "".join(capsys.readouterr().out.split())


def played(slower: float = 1.0, failing: str = "") -> Any:
    """Measures without a Triton: what a variant does follows from its place in the order."""

    class Played(Tuner):
        def __init__(self) -> None:
            self.entry, self.measured, self.order = entry(), [], []
            self.report = lambda _: None

        def measure(self, variant, turns):
            loads = []
            for _ in range(turns):
                self.order.append(variant.described().partition(",")[0])
                # Each turn is slower than the one before, as a machine that gets busy.
                images = 1_000.0 * slower ** len(self.order)
                loads.append(LoadResult(images, 1.0, 2.0))
            reason = "it crashed" if variant.described().startswith(failing or "-") else ""
            return Measured(variant, 0.0, 0.0, reason), [] if reason else loads

    return Played()


def test_drift_of_the_machine_favours_no_variant(on_cpu):
    """Measured there and back: on one that loses 2 % with each turn, a single pass would differ by 8 %."""
    tuner = played(slower=0.98)
    found = [each.images_per_second for each in tuner.run(1e-3, [TuneStep.FORMATS])]
    assert tuner.order == [*EVERY, *reversed(EVERY)]
    assert max(found) / min(found) < 1.01
    first, *_ = played().run(1e-3, [TuneStep.FORMATS])
    assert first.cpu_ms == pytest.approx(2.0), "the processor time of both turns"


def test_failed_variant_is_reported_once(on_cpu):
    tuner = played(failing="openvino fp32")
    found = list(tuner.run(1e-3, [TuneStep.FORMATS]))
    assert [each.reason for each in found].count("it crashed") == 1
    assert len(found) == len(tuner.measured) == 5
    assert tuner.order.count("openvino fp32") == 1
    assert tuner.best(1e-3).variant.runtime is not NetworkRuntime.OPENVINO


def test_runtime_of_choice_is_kept_though_slower(on_cpu):
    tuner = played(slower=0.5)
    tuner.runtimes = frozenset([NetworkRuntime.TORCHSCRIPT])
    list(tuner.run(1e-3, [TuneStep.FORMATS]))
    assert {each.variant.runtime for each in tuner.measured} == {NetworkRuntime.TORCHSCRIPT, NetworkRuntime.ONNX}
    assert tuner.best(1e-3).variant.runtime is NetworkRuntime.TORCHSCRIPT


@pytest.mark.triton
@pytest.mark.long
def test_the_fastest_variant_is_written_with_the_table_it_was_chosen_from(added_head, photos, tmp_path):
    repository = Path(shutil.copytree(added_head[0], tmp_path / "models"))
    # Each instance is a process that takes seconds to start.
    rewrite(added_head[1].with_serving(instances=1, preprocessor_instances=1), repository)
    plot = tmp_path / "tuning.png"
    options = ["--seconds=0.3", f"--plot={plot}", f"--model-repository={repository}"]
    options += ["--try=formats", "--try=decode"]
    output = gateway("model", "tune", "head", photos / "cat.jpg", *options).output
    document = json.loads((repository / "head" / "tuning.json").read_text())
    assert document["machine"] == machine()
    table = document["measured"]
    measured = {(row["variant"]["format"], row["variant"]["precision"]) for row in table}
    assert measured == {("torchscript", "fp32"), ("torchscript", "bf16"), ("onnx", "fp32")}
    by_openvino = {row["variant"]["serving"]["openvino"] for row in table if row["variant"]["format"] == "onnx"}
    assert by_openvino >= {"fp32"}
    assert not any(row["reason"] for row in table)
    prepared = {(row["variant"]["serving"]["decode"], row["variant"]["resize_library"]) for row in table}
    assert prepared == {("exact", "pillow"), ("fast", "pillow")}
    (chosen,) = [row for row in table if row["chosen"]]
    right = [row for row in table if row["difference"] <= 1e-3]
    assert all(row["same_top1"] == 1.0 for row in right)
    assert chosen in right
    assert chosen["images_per_second"] == max(row["images_per_second"] for row in right)
    entry = read_entry(repository, "head")
    assert (entry.format.value, entry.precision.value) == (
        chosen["variant"]["format"],
        chosen["variant"]["precision"],
    )
    assert entry.preprocessing.resize_library == chosen["variant"]["resize_library"]
    assert entry.serving.decode.value == chosen["variant"]["serving"]["decode"]
    classifier = read_model_config(repository / "head_classifier" / "config.pbtxt")
    assert list(classifier.dynamic_batching.preferred_batch_size) == (chosen["variant"]["serving"]["preferred"] or [])
    files = {path.name for path in (repository / "head_classifier" / "1").iterdir()}
    # TorchScript keeps the form in which it runs on a CPU.
    kept = set(cpu_network.FILES) if entry.format is Format.TORCHSCRIPT else set()
    assert files - kept == {entry.format.filename}
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "chosen" in output


@pytest.mark.triton
@pytest.mark.long
def test_openvino_serves_and_torchscript_comes_back(added_head, photos, tmp_path):
    repository = Path(shutil.copytree(added_head[0], tmp_path / "models"))
    rewrite(added_head[1].with_serving(instances=1, preprocessor_instances=1), repository)
    where = f"--model-repository={repository}"

    def tuned(runtime: str) -> Entry:
        options = ("--seconds=0.3", f"--plot={tmp_path / 'plot.png'}", f"--runtime={runtime}", where)
        gateway("model", "tune", "head", photos / "cat.jpg", *options)
        return read_entry(repository, "head")

    by_openvino = tuned("openvino")
    assert by_openvino.serving.openvino
    assert [path.name for path in (repository / "head_classifier" / "1").iterdir()] == ["model.onnx"]
    # Another Triton than that of `tune`, and other photographs.
    gateway("model", "parity", "head", photos, where)
    back = tuned("torchscript")
    assert (back.format, back.serving.openvino) == (Format.TORCHSCRIPT, None)
    # cpu.json says that it runs by TorchScript, as asked for.
    assert {path.name for path in (repository / "head_classifier" / "1").iterdir()} == {"model.pt", "cpu.json"}
