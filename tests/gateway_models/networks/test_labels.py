"""Labels are understood as a list, as JSON or as a table, and otherwise refused: never one thing taken for another."""

import json
import os

import pytest

from gateway.errors import UserError
from gateway_client.files import read_text
from gateway_models.networks.labels import LabelsError, given_labels
from gateway_models.networks.model_source import SourceError, read_labels
from gateway_models.repository.preprocessing import PreprocessingError
from gateway_models.repository.preprocessing_sources import from_file

CATS = ("cat", "dog", "elk")
BY_NUMBER = {"1": "dog", "0": "cat", "2": "elk"}


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("labels.txt", "tench, Tinca tinca\nCity 24, by day\n", ("tench, Tinca tinca", "City 24, by day")),
        ("labels.txt", "1 door\n2 doors\n", ("1 door", "2 doors")),
        ("labels.txt", "cat\ndog\nelk\n", CATS),
        ("labels.json", json.dumps(CATS), CATS),
        ("labels.txt", json.dumps(CATS), CATS),
        ("config.json", json.dumps({"model_type": "vit", "id2label": BY_NUMBER}), CATS),
        ("id2label.json", json.dumps(BY_NUMBER), CATS),
        ("label2id.json", json.dumps({"dog": 1, "elk": 2, "cat": 0}), CATS),
        ("labels.csv", "id,name\n1,dog\n0,cat\n2,elk\n", CATS),
        ("labels.csv", "0,cat\n1,dog\n2,elk\n", CATS),
        ("labels.csv", "name;id\ncat;0\ndog;1\nelk;2\n", CATS),
        ("labels.tsv", "0\tcat\n1\tdog\n2\telk\n", CATS),
        ("labels.txt", "0,cat\n1,dog\n2,elk\n", CATS),
        ("labels.csv", "cat\ndog\nelk\n", CATS),
        ("labels.txt", "0 cat\n1 dog\n2 elk\n", CATS),
        ("labels.txt", "2: elk\n0: cat\n1: dog\n", CATS),
    ],
)
def test_labels_are_read_in_the_order_of_their_classes(tmp_path, name, text, labels):
    (tmp_path / name).write_text(text)
    assert given_labels(tmp_path / name) == labels


def test_unreadable_labels_file_is_named_with_advice(tmp_path):
    path = tmp_path / "labels.txt"
    with pytest.raises(UserError, match=r"cannot read the labels: .*labels\.txt: No such file or directory$"):
        given_labels(path)
    path.write_bytes("Käse\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"labels\.txt is not UTF-8 text \(invalid byte at 1\): save it as UTF-8"):
        given_labels(path)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("labels.csv", "n01,cat\nn02,dog\n", "is a table, and its labels are not clear: two columns are expected"),
        ("labels.csv", "0,cat\n2,dog\n", "is a table, and its labels are not clear"),
        ("labels.csv", "0,cat,1\n1,dog,2\n", "is a table, and its labels are not clear"),
        ("labels.json", "{", "looks like JSON but cannot be parsed"),
        ("labels.json", '{"classes": 3}', "none for class 0"),
        ("labels.json", '[{"name": "cat"}]', "neither a list of labels nor"),
        ("labels.json", '{"0": "cat", "2": "dog"}', "has 2 labels, and none for class 1"),
        ("labels.json", '["cat", ""]', "no label on entry 2"),
        ("labels.json", '["cat", "a\\nb"]', "a label of several lines on entry 2"),
        ("labels.json", "[]", "contains no labels"),
        ("labels.txt", "", "contains no labels"),
        ("labels.txt", "cat\n\x1b[31mdog\n", "a control character in the label on line 2"),
        ("labels.txt", '["cat", "\\u0000"]', "a control character in the label on entry 2"),
        ("labels.txt", '["cat", "\\ud800"]', "a control character in the label on entry 2"),
        ("labels.txt", "[" * 100_000, "cannot be parsed"),
        ("labels.txt", '{"id2label": {"' + "9" * 5000 + '": "cat"}}', "names that are not numbers"),
    ],
    ids=lambda value: value[:40],
)
def test_ambiguous_labels_are_refused(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=reason):
        given_labels(tmp_path / name)


def test_labels_beside_a_model_have_a_line_for_each_class(tmp_path):
    path = tmp_path / "labels.txt"
    for text, reason in (("", "no labels"), ("a\n\nb\n", "no label on line 2")):
        path.write_text(text)
        with pytest.raises(SourceError, match=reason):
            read_labels(path)
    path.write_text("a\nb\nc\n")
    assert read_labels(path) == ("a", "b", "c")


@pytest.mark.parametrize("name", ["fifo", "/dev/zero"])
@pytest.mark.parametrize(
    ("read", "error"), [(given_labels, LabelsError), (read_labels, SourceError), (from_file, PreprocessingError)]
)
def test_special_files_are_refused_without_waiting(tmp_path, name, read, error):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(error, match="not a regular file"):
        read(tmp_path / name)


def test_text_is_read_up_to_its_limit(tmp_path):
    (tmp_path / "text").write_text("é" * 50)
    assert read_text(tmp_path / "text", max_bytes=100) == "é" * 50
    with pytest.raises(OSError, match="is larger than 99 bytes"):
        read_text(tmp_path / "text", max_bytes=99)
