"""Labelled images on disk, and the counts of their answers."""

import re
from pathlib import Path

import numpy as np
import pytest

from gateway.errors import UserError
from gateway_client.csv_cells import csv_line
from gateway_models.proof.dataset import Sample, read_dataset
from gateway_models.proof.evaluate import Answered, Evaluation
from gateway_models.proof.image_files import NotCompared, image_files, reader
from gateway_models.proof.plots import confusion_matrix
from tests.commands import usage_error

LABELS = ["cat", "Great Dane", "crane", "crane", "fox"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("cat/1.jpg", "cat/deep/2.png", "great_dane/3.JPG", "3/4.jpg", "cat/notes.txt")
    for name in (*names, "__MACOSX/cat/._1.jpg", "cat/._1.jpg", "cat/.thumbnails/1.jpg"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"?")
    return tmp_path / "data"


def test_class_folders_are_named_by_label_or_number(folder):
    found = {(sample.path.name, *sample.classes) for sample in read_dataset(folder, LABELS)}
    assert found == {("1.jpg", 0), ("2.png", 0), ("3.JPG", 1), ("4.jpg", 3)}


def test_csv_names_paths_and_labels(folder):
    table = folder / "labels.csv"
    for header in ("path,label", "image,label", "FileName,Class"):
        table.write_text(f"{header}\ncat/1.jpg,cat\n3/4.jpg,2\n")
        assert [sorted(sample.classes) for sample in read_dataset(table, LABELS)] == [[0], [2]]
    table.write_text("cat/1.jpg,cat; fox\n3/4.jpg,\n")
    assert [sorted(s.classes) for s in read_dataset(table, LABELS, multi_label=True)] == [[0, 4], []]
    with pytest.raises(UserError, match="has 2 labels, and the model gives one"):
        read_dataset(table, LABELS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cat/1.jpg,dog\n", r"line 1: the model has no class 'dog'; it has cat, Great Dane"),
        *((f"cat/1.jpg,{name}\n", "no class") for name in ("crane", "²", "9" * 5000)),
        ("cat/9.jpg,cat\n", r"line 1: there is no file .*9\.jpg$"),
        ("label,image\ncat,cat/9.jpg\n", r"line 1: there is no file .*label; a header is path,label"),
        ("cat/1.jpg\n", "line 1: a path and a label are expected"),
        ("", "has no lines"),
    ],
    ids=["unknown", "twice", "superscript", "long", "no file", "header", "no label", "no lines"],
)
def test_invalid_line_is_named(folder, text, reason):
    (folder / "labels.csv").write_text(text)
    with pytest.raises(UserError, match=reason):
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
    with pytest.raises(UserError, match="no class 'dog'"):
        read_dataset(folder, LABELS)
    with pytest.raises(UserError, match="has no folders"):
        read_dataset(folder / "great_dane", LABELS)
    with pytest.raises(UserError, match="there is no file or folder"):
        image_files([tmp_path / "absent"])


def test_files_that_the_gateway_refuses_are_read_with_its_reason(folder):
    damaged, absent = map(reader(), [folder / "cat" / "1.jpg", folder / "absent.jpg"])
    assert isinstance(damaged, NotCompared)
    assert damaged.reason.startswith("The file is not a JPEG")
    assert absent == NotCompared(folder / "absent.jpg", "No such file or directory")


def answers(*pairs: tuple[set[int], list[float]]) -> list[Answered]:
    return [Answered(Sample(Path("x"), frozenset(true)), (np.array(scores, np.float32),)) for true, scores in pairs]


def counts(evaluation: Evaluation) -> list[tuple[str, int, int, int]]:
    """Each class, with the number of right answers, of images that show it, and of images that are taken for it."""
    return [
        (each.label, each.recall.hits, each.recall.count, each.precision.count) for each in evaluation.per_class(LABELS)
    ]


def test_top_k_and_each_class_are_counted():
    given = answers(({0}, [0.7, 0.2, 0.1]), ({1}, [0.5, 0.4, 0.1]), ({1}, [0.1, 0.8, 0.1]))
    evaluation = Evaluation(3, False, given)
    assert (evaluation.top(1), evaluation.top(2)) == (pytest.approx(2 / 3), 1.0)
    assert counts(evaluation) == [("cat", 1, 1, 2), ("Great Dane", 1, 2, 1)]
    assert evaluation.confusion().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]


def test_multi_label_model_predicts_every_class_above_a_half():
    evaluation = Evaluation(3, True, answers(({0, 1}, [0.9, 0.6, 0.1]), (set(), [0.1, 0.2, 0.9])))
    assert counts(evaluation) == [("cat", 1, 1, 1), ("Great Dane", 1, 1, 1), ("crane", 0, 0, 1)]


def test_confusion_matrix_of_many_classes_is_drawn(tmp_path):
    confusion_matrix(np.eye(100), [f"class {n}" for n in range(100)], tmp_path / "matrix.png", "many")
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("options", [("data", "--days", 1), ("--log", "log", "--plot", "a.png")])
def test_options_that_would_have_no_effect_are_refused(options):
    assert re.search("(is|are) for (--log|DATA)", usage_error("model", "evaluate", "head", *options))
