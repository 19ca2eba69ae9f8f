"""The ways to decode and to resize a model's pictures, on the same labelled images."""

import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from gateway_models.proof.alternatives import Alternative, ways
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import Evaluation, SampleAnswer
from gateway_models.proof.evaluate_report import compared
from gateway_models.repository.entry import read_entry
from gateway_models.repository.spec import Decode, Serving
from gateway_models.repository.writing import rewrite
from tests.commands import gateway, usage_error
from tests.gateway_models.repository.entries import SMALL, entry


def evaluated(**scores: list[float]) -> Alternative:
    """One that gave these probabilities to files of these names."""
    evaluation = Evaluation(classes=2, multi_label=False)
    for name, values in scores.items():
        evaluation.add(SampleAnswer(Sample(Path(name), frozenset({0})), np.array(values, np.float32)))
    return Alternative(Decode.FAST, "torch", evaluation)


def test_alternatives_are_compared_on_files_that_both_answered():
    first = evaluated(a=[0.9, 0.1], b=[0.52, 0.48], c=[1.0, 0.0])
    other = evaluated(a=[0.8, 0.2], b=[0.49, 0.51])
    other.evaluation.add(SampleAnswer(Sample(Path("c"), frozenset({0})), None, "cannot be read"))
    assert other.moved(first) == (pytest.approx(0.1), 0.5)
    assert first.moved(first) == (0.0, 1.0)


def test_table_has_a_column_for_each_meaningful_rank(capsys):
    compared([evaluated(a=[0.9, 0.1]), evaluated(a=[0.4, 0.6])])
    head, first, second = capsys.readouterr().out.splitlines()
    assert "top-5" not in head
    assert [re.search(r"[\d.]+ %", row)[0] for row in (first, second)] == ["100.00 %", "0.00 %"]


def test_served_alternative_comes_first_and_once():
    exact, fast = Decode.EXACT, Decode.FAST
    assert ways(entry()) == [(exact, "pillow"), (fast, "pillow"), (exact, "torch"), (fast, "torch")]
    served = entry(serving=Serving(decode=fast), preprocessing=replace(SMALL, resize_library="torch"))
    assert ways(served)[0] == (fast, "torch")
    assert len(ways(served)) == len(set(ways(served))) == 4


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--triton=127.0.0.1:1", "--decode=fast"])
def test_comparison_has_its_own_triton_and_tries_every_decode(own_head, photos, tmp_path, option):
    (tmp_path / "list.csv").write_text(f"{photos / 'cat.jpg'},0\n")
    usage_error("model", "evaluate", "head", tmp_path / "list.csv", "--compare", option, "--model-repository", own_head)


@pytest.mark.triton
@pytest.mark.long
def test_alternatives_are_evaluated_on_the_same_images(own_head, photos, tmp_path):
    rewrite(read_entry(own_head, "head").with_serving(instances=1, preprocessor_instances=1), own_head)
    large = cv2.resize(cv2.imread(str(photos / "cat.jpg")), (2800, 1800))
    cv2.imwrite(str(tmp_path / "large.jpg"), large)
    (tmp_path / "list.csv").write_text(f"large.jpg,0\n{photos / 'coffee.jpg'},1\n")
    before = (own_head / "head_preprocessor" / "config.pbtxt").read_text()
    command = ("model", "evaluate", "head", tmp_path / "list.csv", "--compare", "--model-repository", own_head)
    result = gateway(*command)
    rows = {
        line.partition("  ")[0].strip(): line.split()
        for line in result.output.splitlines()
        if "resized by" in line and "%" in line
    }
    assert [name for name in rows if not name.startswith("gateway |")] == [
        "decode exact, resized by pillow",
        "decode fast, resized by pillow",
        "decode exact, resized by torch",
        "decode fast, resized by torch",
    ]
    assert "as served" in " ".join(rows["decode exact, resized by pillow"])
    # Another decoding and another resize are seen, and the model stays as it was.
    for name in ("decode fast, resized by pillow", "decode exact, resized by torch"):
        assert 0 < float(rows[name][-3]) < 0.2
    assert (own_head / "head_preprocessor" / "config.pbtxt").read_text() == before
