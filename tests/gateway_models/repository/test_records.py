"""Records in a model's folder are read back as they were, or refused with the place of the fault."""

import json
from pathlib import Path

import pytest

from gateway.values.rollout import Rollout
from gateway_models.repository.entry import Entry, EntryError, Outcome, Version, read_entry, write_record
from gateway_models.repository.preprocessing import Preprocessing, PreprocessingError
from gateway_models.repository.retired import retire, retired
from gateway_models.repository.spec import Format, ImageTensor, ModelSpec, Precision, Serving

IMAGES = Preprocessing((256,), 224, "bilinear", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
SPEC = ModelSpec(
    "/fleurs/é.onnx",
    "flowers",
    labels=Path("labels.txt"),
    preprocessing=IMAGES,
    grayscale=True,
    include=(Path("/fleurs/data"),),
    features=True,
    sha256="ab",
    precision=Precision.FP16,
    format=Format.ONNX,
    serving=Serving(preferred=(2, 4), gpus=(0, 1), cache=False),
    tensor=ImageTensor.UINT8,
    multi_label=True,
    version=2,
)
OUTCOME = Outcome(3, "softmax", 1e-5, Format.ONNX, input="uint8-nhwc", embedding_size=16, embedding_difference=1e-6)
ENTRY = Entry("flowers", {2: Version(SPEC, OUTCOME)}, rollout=Rollout({"2": 100}))
VERSION = ("versions", "2")


@pytest.fixture
def record(tmp_path):
    (tmp_path / "flowers").mkdir()
    write_record(ENTRY, tmp_path)
    return tmp_path / "flowers" / "origin.json"


def change(record, *path_and_value) -> None:
    *path, name, value = path_and_value
    document = owner = json.loads(record.read_text())
    for each in path:
        owner = owner[each]
    owner[name] = value
    record.write_text(json.dumps(document))


def test_record_is_read_as_it_was_written(record, tmp_path):
    assert read_entry(tmp_path, "flowers") == ENTRY


@pytest.mark.parametrize("member", ["name", "preprocessor", "classifier"])
@pytest.mark.parametrize("value", ["../kept", "/home/kept", "flowers/../../kept", "", "a/b"])
def test_record_names_no_folder_outside_of_its_repository(tmp_path, member, value):
    """A repository may come from a bucket or an archive; `gateway model remove` deletes what its record names."""
    repository = tmp_path / "repository"
    (repository / "flowers").mkdir(parents=True)
    write_record(ENTRY, repository)
    change(repository / "flowers" / "origin.json", member, value)
    if not value and member != "name":  # the default
        assert read_entry(repository, "flowers") == ENTRY
        return
    with pytest.raises(EntryError, match=r"outside of|is the record of"):
        read_entry(repository, "flowers")


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        (("rollout", "shares", {"1": 100}), EntryError, "flowers has no version 1"),
        (("colour", "bgr"), EntryError, r"cannot read .*origin\.json: colour: "),
        ((*VERSION, "outcome", "classes", "many"), EntryError, r"cannot read .*versions\.2\.outcome\.classes: "),
        (("versions", {"second": {}}), EntryError, r"cannot read .*versions\.second"),
        ((*VERSION, "spec", "serving", "speed", 1), EntryError, r"cannot read .*serving\.speed: "),
        (
            (*VERSION, "spec", "preprocessing", "crop_size", 223.5),
            EntryError,
            r"cannot read .*preprocessing\.crop_size: ",
        ),
        ((*VERSION, "spec", "preprocessing", "crop_size", 300), PreprocessingError, "black borders"),
        *((text, EntryError, r"cannot read .*origin\.json: ") for text in ("", "{", "[]", '{"name": "flowers"}')),
    ],
)
def test_wrong_record_is_refused_with_the_place(record, tmp_path, changed, error, words):
    if isinstance(changed, str):
        record.write_text(changed)
    else:
        change(record, *changed)
    with pytest.raises(error, match=words):
        read_entry(tmp_path, "flowers")


def test_removed_version_numbers_are_kept(tmp_path):
    retire(tmp_path, "flowers", 3, 1)
    retire(tmp_path, "flowers", 2, 3)
    assert retired(tmp_path, "flowers") == {1, 2, 3}
    assert retired(tmp_path, "trees") == frozenset()


@pytest.mark.parametrize("text", ["[]", '{"flowers": 1}', '{"flowers": ["one"]}'])
def test_invalid_removed_numbers_are_refused(tmp_path, text):
    (tmp_path / "retired.json").write_text(text)
    with pytest.raises(EntryError, match=r"cannot read .*retired\.json: "):
        retired(tmp_path, "flowers")
