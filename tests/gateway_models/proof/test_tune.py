"""Ways to serve a model are measured on the real Triton, and the fastest that is right is kept."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.triton.model_config import read_model_config
from gateway_cli.main import app
from gateway_models.proof.tune import Measured, Tuner, report
from gateway_models.proof.variants import USUAL, TuneStep, Variant, variants_of
from gateway_models.repository.entry import read_entry
from gateway_models.repository.spec import Decode, Format, Precision, Serving
from gateway_models.repository.writing import rewrite

pytestmark = pytest.mark.triton

BASE = Variant(Format.TORCHSCRIPT, Precision.FP32, Serving())


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
    assert row.removeprefix(BASE.described()).split()[:3] == ["-", "-", "-"]
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


@pytest.mark.long
def test_the_fastest_variant_is_written_with_the_table_it_was_chosen_from(added_head, photos, tmp_path):
    repository = Path(shutil.copytree(added_head[0], tmp_path / "models"))
    # Each instance is a process that takes seconds to start.
    rewrite(added_head[1].with_serving(instances=1, preprocessor_instances=1), repository)
    plot = tmp_path / "tuning.png"
    command = ["model", "tune", "head", str(photos / "cat.jpg"), "--seconds=0.3", f"--plot={plot}", "--try=formats"]
    command += ["--try=decode", "--try=int8", f"--calibrate={photos}", "--model-repository", str(repository)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    table = json.loads((repository / "head" / "tuning.json").read_text())
    measured = {(row["variant"]["format"], row["variant"]["precision"]) for row in table}
    assert measured == {("torchscript", "fp32"), ("torchscript", "bf16"), ("onnx", "fp32"), ("onnx", "int8")}
    assert not any(row["reason"] for row in table)
    prepared = {(row["variant"]["serving"]["decode"], row["variant"]["resize_library"]) for row in table}
    assert prepared == {("exact", "pillow"), ("fast", "pillow")}
    (chosen,) = [row for row in table if row["chosen"]]
    right = [row for row in table if row["difference"] <= 1e-3 or row["variant"]["precision"] == "int8"]
    # The photograph shows one thing, which eight bits are enough for.
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
    assert list(classifier.dynamic_batching.preferred_batch_size) == chosen["variant"]["serving"]["preferred"]
    assert [path.name for path in (repository / "head_classifier" / "1").iterdir()] == [entry.format.filename]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "chosen" in result.output
