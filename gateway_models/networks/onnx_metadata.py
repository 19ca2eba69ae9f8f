"""Labels and image sizes in the metadata of an ONNX file, as Ultralytics and Custom Vision write them."""

import ast
from collections.abc import Mapping
from pathlib import Path

from gateway.values.labels import LabelsError, numbered
from gateway_models.networks.errors import ModelError
from gateway_models.networks.hub import Described
from gateway_models.networks.onnx_runner import import_onnx
from gateway_models.repository.card import first_sentence
from gateway_models.repository.preprocessing import Preprocessing, PreprocessingError

PIXEL_FORMAT = "Image.BitmapPixelFormat"
"""The metadata of ONNX for the channels of an image input: Rgb8, Bgr8, Gray8, …"""
CLASSIFY = "classify"


def described(path: Path) -> Described:
    """The labels and the preprocessing in an ONNX file's metadata; raises ModelError for another task, or BGR."""
    onnx, _ = import_onnx()
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # of protobuf: the job that loads it reports the fault
        return Described()
    found = {"description": model.doc_string, **{each.key: each.value for each in model.metadata_props}}
    sentence = first_sentence(found["description"])
    if found.get(PIXEL_FORMAT, "").startswith("Bgr"):
        raise ModelError(
            f"{path} takes BGR ({PIXEL_FORMAT} in its metadata, as Custom Vision writes it), and images are RGB here. "
            "Serve it by a Python function that reverses the channels: docs/guides/model-sources.md, Custom Vision"
        )
    if found.get("author") != "Ultralytics" or "task" not in found:
        return Described(sentence=sentence)
    if (task := found["task"]) != CLASSIFY:
        raise ModelError(
            f"{path} is a YOLO model for the task {task!r}: only classifiers of whole images are served. Use one of "
            "Ultralytics' models that end in -cls"
        )
    labels = _labels(found.get("names", ""), path)
    return Described(labels, _preprocessing(found.get("imgsz", "")), sentence=sentence)


def _labels(text: str, path: Path) -> tuple[str, ...]:
    """The labels of {0: 'cat', 1: 'dog'}; () where there are none, or only the numbers."""
    names = _literal(text)
    if not isinstance(names, Mapping):
        return ()
    try:
        labels = numbered(names.items(), path)
    except LabelsError as exc:
        raise ModelError(str(exc)) from exc
    return () if all(label == f"class{number}" for number, label in enumerate(labels)) else labels


def _preprocessing(text: str) -> Preprocessing | None:
    """As classify_transforms in ultralytics/data/augment.py prepares images, with its defaults: mean 0 and std 1."""
    sides = _literal(text)
    if isinstance(sides, int):
        sides = [sides]
    if not isinstance(sides, (list, tuple)) or len(set(sides)) != 1 or not isinstance(sides[0], int):
        return None
    try:
        return Preprocessing((sides[0],), sides[0], "bilinear", (0.0,) * 3, (1.0,) * 3)
    except PreprocessingError:
        return None


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
