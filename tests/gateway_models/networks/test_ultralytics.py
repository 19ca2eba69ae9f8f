"""YOLO classifiers of Ultralytics: their ONNX files have the labels and the size of their images."""

from pathlib import Path

import onnx
import pytest
from torch import nn

from gateway_models.networks.errors import ModelError
from gateway_models.networks.model_source import find_labels, find_preprocessing, find_source
from gateway_models.repository.preprocessing import Preprocessing
from gateway_models.repository.spec import ModelSpec
from tests.gateway_models.networks.builders import Head, save_onnx

WRITTEN = {"author": "Ultralytics", "task": "classify", "imgsz": "[64, 64]", "names": "{0: 'cat', 1: 'fox', 2: 'owl'}"}
"""The properties that are read, from the ones that ultralytics/engine/exporter.py 8.4 writes."""
IMAGES = Preprocessing((64,), 64, "bilinear", (0.0,) * 3, (1.0,) * 3)


def exported(path: Path, **properties: str) -> ModelSpec:
    save_onnx(Head(classes=3, last=nn.Softmax(dim=1)), path, side=64, dynamic=False)
    model = onnx.load(path)
    for key, value in {**WRITTEN, **properties}.items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    return ModelSpec(str(path), "yolo")


def test_labels_and_images_are_read_from_the_metadata(tmp_path):
    source = find_source(exported(tmp_path / "best.onnx"))
    assert find_labels(source, None) == ("cat", "fox", "owl")
    assert find_preprocessing(source, None) == IMAGES


@pytest.mark.parametrize("author", ["Ultralytics", "me"])
def test_description_is_the_first_sentence_of_the_metadata(tmp_path, author):
    found = find_source(exported(tmp_path / "best.onnx", author=author, description="YOLO11n-cls model. Made in May."))
    assert found.described.sentence == "YOLO11n-cls model."


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"task": "detect"}, "for the task 'detect': only classifiers of whole images"),
        ({"names": "{0: 'cat', 2: 'owl'}"}, "has 2 labels, and none for class 1"),
    ],
)
def test_other_tasks_and_a_missing_label_are_refused(tmp_path, properties, reason):
    with pytest.raises(ModelError, match=reason):
        find_source(exported(tmp_path / "best.onnx", **properties))


@pytest.mark.parametrize(
    "properties",
    [
        {"author": "me"},
        {"names": "{0: 'class0', 1: 'class1', 2: 'class2'}", "imgsz": "[32, 64]"},
        {"names": "__import__('os')", "imgsz": "9" * 5000},
        {"names": "(" * 10_000, "imgsz": "[64, 64.5]"},
    ],
    ids=["of others", "no names, no square", "no literals", "too deep"],
)
def test_metadata_that_say_nothing_are_ignored(tmp_path, properties):
    source = find_source(exported(tmp_path / "best.onnx", **properties))
    assert source.described.labels == ()
    assert source.preprocessing is None
    with pytest.raises(ModelError, match="use --labels FILE"):
        find_labels(source, None)


@pytest.mark.parametrize("cut", [1, 10, 100, -1])
def test_damaged_file_is_left_to_the_loader(tmp_path, cut):
    spec = exported(tmp_path / "best.onnx")
    path = Path(spec.source)
    path.write_bytes(path.read_bytes()[:cut])
    if cut == 1:
        with pytest.raises(ModelError, match="no model"):
            find_source(spec)
        return
    assert find_source(spec).kind == "onnx"
