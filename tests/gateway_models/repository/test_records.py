"""What is kept beside a model's files is read back as it was, or refused with the place of the fault."""

import json

import pytest

from gateway_models.repository.entry import (
    Entry,
    EntryError,
    Format,
    Precision,
    Serving,
    Version,
    read_entry,
    write_record,
)
from gateway_models.repository.preprocessing import Preprocessing, PreprocessingError
from gateway_models.repository.retired import retire, retired

ENTRY = Entry(
    name="flowers",
    classes=3,
    preprocessing=Preprocessing((256,), 224, "bilinear", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    format=Format.ONNX,
    multi_label=True,
    serving=Serving(preferred=(2, 4), gpus=(0, 1), cache=False),
    versions={2: Version("/fleurs/é.onnx", "ab", "", "softmax", Precision.FP16, 1e-5)},
    in_use=2,
)


@pytest.fixture
def record(tmp_path):
    (tmp_path / "flowers").mkdir()
    write_record(ENTRY, tmp_path)
    return tmp_path / "flowers" / "origin.json"


def test_record_that_names_a_pillow_release_is_read(record, tmp_path):
    """As earlier releases of the project wrote it."""
    change(record, "preprocessing", "resize_library", "pillow-12.1")
    assert read_entry(tmp_path, "flowers") == ENTRY


def change(record, *path_and_value) -> None:
    *path, name, value = path_and_value
    document = owner = json.loads(record.read_text())
    for each in path:
        owner = owner[each]
    owner[name] = value
    record.write_text(json.dumps(document))


def test_an_entry_is_read_as_it_was_written(record, tmp_path):
    assert read_entry(tmp_path, "flowers") == ENTRY


def test_a_record_from_before_the_resize_library_was_kept_is_read(record, tmp_path):
    document = json.loads(record.read_text())
    del document["preprocessing"]["resize_library"]
    record.write_text(json.dumps(document))
    assert read_entry(tmp_path, "flowers") == ENTRY


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        (("classes", "many"), r"origin\.json: classes: "),
        (("versions", "2", "precision", "fp8"), r"versions\.2\.precision: "),
        (("versions", {"second": {}}), r"versions\.second"),
        (("serving", "speed", 1), r"serving\.speed: "),
        (("preprocessing", "colour", "bgr"), r"preprocessing\.colour: "),
        (("preprocessing", "crop_size", 223.5), r"preprocessing\.crop_size: "),
    ],
)
def test_record_error_is_reported_with_its_location(record, tmp_path, changed, place):
    change(record, *changed)
    with pytest.raises(EntryError, match=rf"cannot read .*{place}"):
        read_entry(tmp_path, "flowers")


def test_values_that_no_model_can_have_are_refused_as_on_the_command_line(record, tmp_path):
    change(record, "preprocessing", "crop_size", 300)
    with pytest.raises(PreprocessingError, match="black borders"):
        read_entry(tmp_path, "flowers")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "flowers"}'])
def test_a_record_that_is_cut_off_is_refused(record, tmp_path, text):
    record.write_text(text)
    with pytest.raises(EntryError, match=r"cannot read .*origin\.json: "):
        read_entry(tmp_path, "flowers")


def test_numbers_that_were_removed_are_remembered(tmp_path):
    retire(tmp_path, "flowers", 3, 1)
    retire(tmp_path, "flowers", 2, 3)
    assert retired(tmp_path, "flowers") == {1, 2, 3}
    assert retired(tmp_path, "trees") == frozenset()


@pytest.mark.parametrize("text", ["[]", '{"flowers": 1}', '{"flowers": ["one"]}'])
def test_remembered_numbers_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "retired.json").write_text(text)
    with pytest.raises(EntryError, match=r"cannot read .*retired\.json: "):
        retired(tmp_path, "flowers")
