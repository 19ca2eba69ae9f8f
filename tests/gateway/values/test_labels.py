"""Labels are read as lines, a table, JSON, a Python literal or YAML, and otherwise refused: no form is guessed."""

import json
import os
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.errors import UserError
from gateway.plugins.tensors.settings import read_models
from gateway.values.labels import LabelsError, read_label_file, read_labels
from gateway_models.repository.preprocessing import PreprocessingError
from gateway_models.repository.preprocessing_sources import from_file

CATS = ("cat", "dog", "elk")
BY_NUMBER = {"1": "dog", "0": "cat", "2": "elk"}
DATA_YAML = "path: ../coco\ntrain: images\nnc: 3\nnames:\n  0: cat  # a comment\n  1: 'dog'\n  2: elk\n"


@pytest.mark.parametrize(
    ("name", "text", "labels", "form"),
    [
        ("labels.txt", "cat\ndog\nelk\n", CATS, "lines"),
        ("labels.txt", "\ufeffcat\r\ndog\r\nelk\r\n\r\n", CATS, "lines"),
        ("labels.txt", "cat\rdog\relk\r", CATS, "lines"),
        ("labels.txt", "tench, Tinca tinca\nCity 24, by day\n", ("tench, Tinca tinca", "City 24, by day"), "lines"),
        ("labels.txt", "5\n7\n9\n", ("5", "7", "9"), "lines"),
        ("labels.txt", "0 cat\n1 dog\n2 elk\n", CATS, "numbered lines"),
        ("labels.txt", "2: elk\n0: cat\n1: dog\n", CATS, "numbered lines"),
        ("labels.txt", "0: tench, Tinca tinca\n1: cat\n", ("tench, Tinca tinca", "cat"), "numbered lines"),
        *(("labels.txt", f"0{mark} cat\n1{mark} dog\n", ("cat", "dog"), "numbered lines") for mark in (")", ".", " -")),
        ("labels.txt", '"cat"\n"dog"\n"elk"\n', CATS, "quoted lines"),
        ("labels.txt", "\"cat\"\n'dog'\n", ('"cat"', "'dog'"), "lines"),
        ("labels.csv", "Label\ncat\ndog\nelk\n", CATS, "the column of a table"),
        ("labels.json", json.dumps({"classes": CATS}), CATS, "JSON"),
        ("labels.csv", "id,name\n1,dog\n0,cat\n2,elk\n", CATS, "column 2 of a table"),
        ("labels.csv", "name;id\ncat;0\ndog;1\nelk;2\n", CATS, "column 1 of a table"),
        ("labels.tsv", "0\tcat\n1\tdog\n2\telk\n", CATS, "column 2 of a table"),
        ("labels.txt", "0,cat\n1,dog\n2,elk\n", CATS, "column 2 of a table"),
        ("labels.csv", '0,"tench, Tinca tinca"\n1,cat\n', ("tench, Tinca tinca", "cat"), "column 2 of a table"),
        ("labels.csv", "class,digit\n0,0\n1,1\n", ("0", "1"), "column 2 of a table"),
        ("labels.txt", json.dumps(CATS), CATS, "JSON"),
        ("config.json", json.dumps({"model_type": "vit", "id2label": BY_NUMBER}), CATS, "JSON"),
        ("digits.json", '{"0": "1", "1": "2", "2": "0"}', ("1", "2", "0"), "JSON"),
        (
            "imagenet_class_index.json",
            '{"0": ["n01440764", "tench"], "1": ["n01443537", "goldfish"]}',
            ("tench", "goldfish"),
            "JSON",
        ),
        ("labels.txt", "{0: 'a, b',\n 1: \"c's\"}\n", ("a, b", "c's"), "a Python literal"),
        ("data.yaml", DATA_YAML, CATS, "the names in YAML"),
        ("data.yaml", "names:\n- cat\n- 7\n", ("cat", "7"), "the names in YAML"),
    ],
)  # fmt: skip
def test_labels_are_read_in_the_order_of_their_classes(tmp_path, name, text, labels, form):
    path = tmp_path / name
    path.write_bytes(text.encode())
    found = read_label_file(path)
    assert (found.labels, found.form) == (labels, form)


def test_description_names_the_form_and_the_first_labels(tmp_path):
    (tmp_path / "labels.csv").write_text("0,cat\n1,dog\n2,elk\n3,fox\n")
    assert str(read_label_file(tmp_path / "labels.csv")) == "4 labels from column 2 of a table: cat, dog, elk, …"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("labels.csv", "n01,cat\nn02,dog\n", "is a table, and its labels are not clear: two columns are expected"),
        ("labels.csv", "0,cat\n2,dog\n", "is a table, and its labels are not clear"),
        ("labels.txt", "0,5\n1,5\n", "two numbers for each class, .*: use one label per line, or JSON"),
        ("labels.txt", "0,tench, Tinca tinca\n1,goldfish, Carassius\n", "every line of .* has a number, but"),
        ("labels.txt", "1,cat\n2,dog\n", "not the numbers from 0, .*: use one label per line, or JSON"),
        ("labels.json", "{", "looks like JSON but cannot be parsed"),
        ("labels.txt", "{0: cat, 1: dog}", "cannot be parsed: .*; use one label per line, or JSON"),
        ("labels.txt", "{'cat', 'dog'}", "neither a list of labels nor"),
        ("labels.json", '{"classes": 3}', "has 1 label, and none for class 0"),
        ("labels.json", '[{"name": "cat"}]', "a list of objects: use one label per line, or JSON"),
        ("labels.json", '{"1": "cat", "2": "dog"}', "none for class 0: the numbers begin with 0"),
        ("labels.json", '{"0": "cat", "0": "dog"}', "two labels for class 0"),
        ("labels.json", '{"0": 1, "1": 2, "2": 0}', "two numbers for each class"),
        ("labels.json", '{"0": "cat", "1": null}', "no text as the label of class 1, but null"),
        ("labels.json", '{"0": ["cat", "dog"], "1": ["elk"]}', r'class 0, but \["cat", "dog"\]'),
        ("labels.json", '["cat", ""]', "no label on entry 2"),
        ("labels.json", '["cat", "a\\nb"]', "a label of several lines on entry 2"),
        ("labels.json", "[]", "contains no labels"),
        ("data.yaml", "names:\n  0: cat\n  1: ~\n", "no text as the label of class 1, but null"),
        ("data.yaml", "names: [yes, no]\n", "no text as the label of class 0, but true"),
        ("data.yaml", "names:\n  0: cat\n  0: dog\n", "line 3: 0 occurs twice"),
        ("data.yaml", "nc: 3\n", "YAML without `names:`"),
        ("data.yaml", "names: [cat\n", "cannot be read as YAML: .*; use one label per line"),
        ("labels.txt", "cat\n\ndog\n", "no label on line 2"),
        ("labels.txt", "cat\n\x1b[31mdog\n", "a control character in the label on line 2"),
        ("labels.txt", '["cat", "\\ud800"]', "a control character in the label on entry 2"),
        ("labels.txt", '{"id2label": {"' + "9" * 5000 + '": "cat"}}', "names that are not numbers"),
    ],
    ids=lambda value: value[:40],
)
def test_ambiguous_labels_are_refused(tmp_path, name, text, reason):
    path = tmp_path / name
    path.write_bytes(text.encode())
    with pytest.raises(LabelsError, match=reason):
        read_labels(path)


LABEL = (
    st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cc", "Cs"]), min_size=1)
    .map(str.strip)
    .filter(bool)
)
FORMS = {
    "list.json": json.dumps,
    "id2label.json": lambda labels: json.dumps({str(number): label for number, label in enumerate(labels)}),
    "label2id.json": lambda labels: json.dumps({label: number for number, label in enumerate(labels)}),
    "dict.txt": lambda labels: repr(dict(enumerate(labels))),
    "data.yaml": lambda labels: "names: " + json.dumps(labels),
    "table.csv": lambda labels: "".join(
        '{},"{}"\r\n'.format(number, label.replace('"', '""')) for number, label in enumerate(labels)
    ),
}


@settings(max_examples=60)
@given(st.lists(LABEL, min_size=1, max_size=5, unique=True), st.sampled_from(sorted(FORMS)))
def test_every_form_gives_the_labels_that_were_written(tmp_path_factory, labels, name):
    assume(not all(re.fullmatch("[0-9]+", label) for label in labels))
    path = tmp_path_factory.mktemp("labels") / name
    path.write_bytes(FORMS[name](labels).encode())
    assert read_labels(path) == tuple(labels)


@settings(max_examples=100)
@given(st.lists(st.text("01 ,:;\tab", max_size=6), max_size=4), st.sampled_from(["\n", "\r\n", "\r"]))
def test_lines_are_labels_or_numbered_or_refused(tmp_path_factory, lines, end):
    """A label is a whole line, or what is left of one without its number: never anything else."""
    path = tmp_path_factory.mktemp("labels") / "labels.txt"
    path.write_bytes(end.join(lines).encode())
    try:
        found = read_label_file(path)
    except LabelsError:
        return
    stripped = [line.strip() for line in "\n".join(lines).rstrip().split("\n")]
    if found.form == "lines":
        assert found.labels == tuple(stripped)
    for number, label in enumerate(found.labels if found.form != "lines" else ()):
        line = rf"0*{number}\s*[\s,:;]\s*{re.escape(label)}|{re.escape(label)}\s*[\t,;]\s*0*{number}"
        assert any(re.fullmatch(line, each) for each in stripped)


def test_models_that_take_tensors_have_the_same_reader(tmp_path):
    (tmp_path / "labels.txt").write_bytes(b'\xef\xbb\xbf{"0": ["n01440764", "tench"], "1": "cat"}')
    table = '[models.net]\nresize_size = 4\ncrop_size = 4\ndatatype = "uint8"\nlabels = "labels.txt"\n'
    (tmp_path / "models.toml").write_bytes(b"\xef\xbb\xbf" + table.encode())
    assert read_models(tmp_path / "models.toml")["net"].labels == ("tench", "cat")


def test_encoding_is_named_with_advice(tmp_path):
    path = tmp_path / "labels.txt"
    with pytest.raises(UserError, match=r"cannot read the labels: .*labels\.txt: No such file or directory$"):
        read_labels(path)
    path.write_bytes("Käse\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"labels\.txt: it is not UTF-8 text \(invalid byte at 1\): save it as UTF-8"):
        read_labels(path)
    path.write_bytes("Käse\n".encode("utf-16"))
    with pytest.raises(UserError, match="it is UTF-16, not UTF-8 text: save it as UTF-8"):
        read_labels(path)


@pytest.mark.parametrize("name", ["fifo", "/dev/zero"])
@pytest.mark.parametrize(("read", "error"), [(read_labels, LabelsError), (from_file, PreprocessingError)])
def test_special_files_are_refused_without_waiting(tmp_path, name, read, error):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(error, match="not a regular file"):
        read(tmp_path / name)
