"""Labelled images on disk, what is counted of the answers, and the ways to decode and to resize their pictures."""

import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from gateway_client.csv_cells import csv_line
from gateway_models.proof.alternatives import Alternative, ways
from gateway_models.proof.dataset import DatasetError, Sample, read_dataset
from gateway_models.proof.evaluate import ClassScore, Evaluation, SampleAnswer
from gateway_models.proof.evaluate_report import compared, ranks
from gateway_models.proof.image_files import NoImages, image_files, read_image_files
from gateway_models.proof.plots import confusion_matrix
from gateway_models.repository.entry import read_entry
from gateway_models.repository.spec import Decode, Serving
from gateway_models.repository.writing import rewrite
from tests.commands import gateway, usage_error
from tests.gateway_models.repository.entries import SMALL, entry

LABELS = ["cat", "Great Dane", "crane", "crane", "fox"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cat/1.jpg", "cat/deep/2.png", "great_dane/3.JPG", "3/4.jpg", "cat/notes.txt"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"?")
    return tmp_path / "data"


def test_class_folders_are_named_by_label_or_number(folder):
    found = {(sample.path.name, *sample.classes) for sample in read_dataset(folder, LABELS)}
    assert found == {("1.jpg", 0), ("2.png", 0), ("3.JPG", 1), ("4.jpg", 3)}


def test_csv_names_paths_and_labels(folder):
    table = folder / "labels.csv"
    table.write_text("path,label\ncat/1.jpg,cat\n3/4.jpg,2\n")
    assert [sorted(sample.classes) for sample in read_dataset(table, LABELS)] == [[0], [2]]
    table.write_text("cat/1.jpg,cat; fox\n3/4.jpg,\n")
    assert [sorted(s.classes) for s in read_dataset(table, LABELS, multi_label=True)] == [[0, 4], []]
    with pytest.raises(DatasetError, match="has 2 labels, and the model gives one"):
        read_dataset(table, LABELS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cat/1.jpg,dog\n", r"line 1: the model has no class 'dog'; it has cat, Great Dane"),
        *((f"cat/1.jpg,{name}\n", "no class") for name in ("crane", "²", "9" * 5000)),
        ("cat/9.jpg,cat\n", r"line 1: there is no file .*9\.jpg"),
        ("cat/1.jpg\n", "line 1: a path and a label are expected"),
        ("", "has no lines"),
    ],
    ids=["unknown", "twice", "superscript", "long", "no file", "no label", "no lines"],
)
def test_invalid_line_is_named(folder, text, reason):
    (folder / "labels.csv").write_text(text)
    with pytest.raises(DatasetError, match=reason):
        read_dataset(folder / "labels.csv", LABELS)


def test_neutralised_formulas_are_restored(tmp_path):
    """As `gateway classify --out x.csv` and the page write names that a spreadsheet would take for formulas."""
    table = tmp_path / "labels.csv"
    table.write_text(csv_line(["path", "label"]) + csv_line(["=cmd|x.png", "-1"]) + csv_line(["'a.png", "@cat"]))
    for name in ("=cmd|x.png", "'a.png"):
        (tmp_path / name).touch()
    assert "'=cmd" in table.read_text()
    assert read_dataset(table, ["-1", "@cat"]) == [
        Sample(tmp_path / "=cmd|x.png", frozenset({0})),
        Sample(tmp_path / "'a.png", frozenset({1})),
    ]


def test_folders_of_unknown_classes_are_refused(folder, tmp_path):
    (folder / "dog").mkdir()
    with pytest.raises(DatasetError, match="no class 'dog'"):
        read_dataset(folder, LABELS)
    with pytest.raises(DatasetError, match="has no folders"):
        read_dataset(folder / "great_dane", LABELS)
    with pytest.raises(NoImages, match="there is no file or folder"):
        image_files([tmp_path / "absent"])


def test_files_that_the_gateway_refuses_are_read_with_its_reason(folder):
    pictures = list(read_image_files([folder / "cat" / "1.jpg", folder / "absent.jpg"]))
    assert pictures[0].reason.startswith("The file is not a JPEG")
    assert pictures[1].reason == "No such file or directory"


def answers(*pairs: tuple[set[int], list[float]]) -> list[SampleAnswer]:
    return [SampleAnswer(Sample(Path("x"), frozenset(true)), np.array(scores, np.float32)) for true, scores in pairs]


def test_top_k_and_each_class_are_counted():
    evaluation = Evaluation(3, multi_label=False)
    for answer in answers(({0}, [0.7, 0.2, 0.1]), ({1}, [0.5, 0.4, 0.1]), ({1}, [0.1, 0.8, 0.1])):
        evaluation.add(answer)
    evaluation.add(SampleAnswer(Sample(Path("broken"), frozenset({2})), None, "no image"))
    assert (evaluation.top(1), evaluation.top(2)) == (pytest.approx(2 / 3), 1.0)
    assert evaluation.per_class() == [ClassScore(0, 1, 2, 1), ClassScore(1, 2, 1, 1)]
    first, second = evaluation.per_class()
    assert (first.precision, first.recall, second.precision, second.recall) == (0.5, 1.0, 1.0, 0.5)
    assert evaluation.confusion().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert len(evaluation.refused) == 1


def test_multi_label_model_predicts_every_class_above_a_half():
    evaluation = Evaluation(3, multi_label=True)
    for answer in answers(({0, 1}, [0.9, 0.6, 0.1]), (set(), [0.1, 0.2, 0.9])):
        evaluation.add(answer)
    assert evaluation.per_class() == [ClassScore(0, 1, 1, 1), ClassScore(1, 1, 1, 1), ClassScore(2, 0, 1, 0)]


def test_confusion_matrix_of_many_classes_is_drawn(tmp_path):
    confusion_matrix(np.eye(100), [f"class {n}" for n in range(100)], tmp_path / "matrix.png", "many")
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("classes", "shown"), [(1, (1,)), (3, (1,)), (5, (1,)), (6, (1, 5)), (1000, (1, 5))])
def test_rank_that_is_always_hit_is_not_shown(classes, shown):
    assert ranks(classes) == shown


def evaluated(**scores: list[float]) -> Alternative:
    """One that gave these probabilities to files of these names."""
    evaluation = Evaluation(classes=2, multi_label=False)
    for name, values in scores.items():
        evaluation.add(SampleAnswer(Sample(Path(name), frozenset({0})), np.array(values, np.float32)))
    return Alternative(Decode.FAST, "torch", evaluation)


def test_alternatives_are_compared_on_files_that_both_answered(capsys):
    first = evaluated(a=[0.9, 0.1], b=[0.52, 0.48], c=[1.0, 0.0])
    other = evaluated(a=[0.8, 0.2], b=[0.49, 0.51])
    other.evaluation.add(SampleAnswer(Sample(Path("c"), frozenset({0})), None, "cannot be read"))
    assert other.moved(first) == (pytest.approx(0.1), 0.5)
    assert first.moved(first) == (0.0, 1.0)
    compared([first, other])
    head, *rows = capsys.readouterr().out.splitlines()
    assert "top-5" not in head
    assert [re.search(r"[\d.]+ %", row)[0] for row in rows] == ["100.00 %", "50.00 %"]


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
