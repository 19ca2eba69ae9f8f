"""Models of other frameworks: recognised without them, converted with them, and answered as they answer.

The files in frameworks/ are what framework_files.py wrote; answers.json has the answers of the
frameworks themselves.
"""

import json
import pickle
import shutil
import sys
import types
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gateway.errors import UserError
from gateway_models.networks import converters
from gateway_models.networks.add import add
from gateway_models.networks.errors import ModelError
from gateway_models.networks.file_kinds import OF_LIBRARIES, kind_of, library_kind
from gateway_models.networks.model_source import find_source
from gateway_models.networks.onnx_runner import runner
from gateway_models.networks.originals import original_answers
from gateway_models.repository.entry import Entry, EntryError
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway_models.repository.spec import Format, ModelSpec
from gateway_models.repository.summary import added
from tests.gateway_models.networks.builders import Trap, spec_of
from tests.gateway_models.networks.framework_files import FILES, IMAGES, digits

KINDS = {
    "digits.keras": "keras",
    "digits.h5": "keras",
    "digits.joblib": "sklearn",
    "digits.skops": "skops",
}
LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("digits.keras", "digits.h5", "digits.skops")]
"""Keras takes ten seconds; digits.skops is loaded in `test_labels_of_a_pipeline_are_its_classes`, too.
"""
CONVERTED = ["digits.joblib", *LONG]
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GRAY = Preprocessing((8,), 8, "bilinear", **AS_PIXELS)


def request(file: str, folder: Path, **changes) -> ModelSpec:
    changes = {"name": "digits", "preprocessing": GRAY, "grayscale": True, "trust": True, **changes}
    return spec_of(FILES / file, folder, classes=10, **changes)


def add_digits(file: str, folder: Path, **changes) -> Entry:
    """Add a file of frameworks/, or of an absolute path."""
    return add(request(file, folder, **changes), folder / "models", print)


def copied(name: str, target: Path) -> Path:
    return Path(shutil.copyfile(FILES / name, target))


def images() -> Tensor:
    """The first digits as the preprocessor gives them: fp32 [N, 3, 8, 8], three equal channels."""
    gray = torch.from_numpy(digits()[0][:IMAGES]).permute(0, 3, 1, 2).float()
    return gray.expand(-1, 3, -1, -1).contiguous()


def answers(name: str) -> Tensor:
    return torch.tensor(json.loads((FILES / "answers.json").read_text())[name])


def needs(name: str) -> None:
    missing = library_kind(KINDS[name]).missing()
    if missing:
        pytest.skip(f"{' and '.join(missing)} is not installed")


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_files_are_recognised_by_content(tmp_path, name, kind):
    assert kind_of(copied(name, tmp_path / "model.bin")) is library_kind(kind)


def test_truncated_and_empty_files_are_no_models(tmp_path):
    for name in KINDS:
        data = (FILES / name).read_bytes()
        for size in (0, 1, 5, len(data) // 2):
            (tmp_path / "part").write_bytes(data[:size])
            kind_of(tmp_path / "part")


def test_uninstalled_framework_names_both_commands():
    """The one that installs it here, and the one that converts the file elsewhere."""
    for kind in OF_LIBRARIES:
        path = Path("digits.model")
        with pytest.raises(ModelError, match=r"digits\.model is ") as refused:
            replace(kind, needs=("no_such_framework",)).check(path)
        assert "{" not in str(refused.value).replace("{path}", "")
        assert ("no_such_framework must be installed" in str(refused.value)) is bool(kind.opener)
        assert ("pip install" in str(refused.value)) is bool(kind.opener)
        assert not kind.opener or callable(getattr(converters, kind.opener))


@pytest.mark.parametrize("name", CONVERTED)
def test_served_answers_are_the_frameworks_own(tmp_path, name):
    needs(name)
    # The name says nothing; the record has the path.
    copy = copied(name, tmp_path / "model.bin")
    entry = add_digits(str(copy), tmp_path)
    outcome = entry.versions[1].outcome
    assert outcome.format is Format.ONNX
    assert outcome.difference < 1e-4
    given = runner(tmp_path / "models" / "digits_classifier" / "1" / "model.onnx")(images())
    assert torch.allclose(given, answers(name), atol=1e-4)
    labels = sorted(NAMES) if name.endswith(("joblib", "skops")) else NAMES
    right = [labels[number] == NAMES[digit] for number, digit in zip(given.argmax(dim=1), digits()[1], strict=False)]
    assert sum(right) >= IMAGES - 1
    # That with which `verify` compares.
    original = original_answers(entry.versions[1])
    assert torch.allclose(original(images())[0], answers(name), atol=1e-4)
    copy.write_bytes(b"another")
    with pytest.raises(EntryError, match="has changed since it was added"):
        original_answers(entry.versions[1])


def test_folder_of_tensorflow_is_told_what_to_run(tmp_path):
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ModelError, match=r"tf2onnx\.convert --saved-model \S+ --output \S+\.onnx"):
        find_source(ModelSpec(str(tmp_path), "model"))


def test_pickle_is_not_loaded_without_trust(tmp_path):
    needs("digits.joblib")
    path = tmp_path / "trap.joblib"
    path.write_bytes(pickle.dumps([untrained("logistic"), Trap(tmp_path / "it ran")]))
    with pytest.raises(ModelError, match=r"loading it can run any code\. .* add --trust\. Or "):
        add_digits(str(path), tmp_path, trust=False)
    assert not (tmp_path / "it ran").exists()


def with_function(source: Path, target: Path, module: str, function: str) -> Path:
    """A .keras file whose first activation is a function of a module."""
    with zipfile.ZipFile(source) as given, zipfile.ZipFile(target, "w") as taken:
        for name in given.namelist():
            data = given.read(name)
            if name == "config.json":
                called = {"module": module, "class_name": "function", "config": function, "registered_name": function}
                data = data.replace(b'"activation": "relu"', b'"activation": ' + json.dumps(called).encode(), 1)
                assert module.encode() in data
            taken.writestr(name, data)
    return target


@pytest.mark.slow
def test_keras_code_needs_trust(tmp_path):
    needs("digits.keras")
    for module, function in (("os", "system"), ("keras.utils", "get_file")):
        path = with_function(FILES / "digits.keras", tmp_path / "hostile.keras", module, function)
        with pytest.raises(ModelError, match=r"Keras \S+ cannot load it: "):
            add_digits(str(path), tmp_path, trust=False)
    with pytest.raises(ModelError, match=r"Keras \S+ cannot load it: .*[Ll]ambda.*add --trust"):
        add_digits("lambda.keras", tmp_path, trust=False)
    entry = add_digits("lambda.keras", tmp_path)
    assert entry.versions[1].spec.trust
    assert entry.versions[1].outcome.difference < 1e-4


@pytest.mark.parametrize("name", [pytest.param("digits.keras", marks=pytest.mark.long), "digits.skops"])
def test_gray_network_is_told_of_grayscale(tmp_path, name):
    needs(name)
    with pytest.raises(ModelError, match="use --grayscale"):
        add_digits(name, tmp_path, grayscale=False)


def test_labels_of_a_pipeline_are_its_classes(tmp_path, capsys):
    needs("digits.skops")
    entry = add_digits("digits.skops", tmp_path, labels=None, trust=False)
    added(entry, tmp_path / "models", 1, "http://127.0.0.1:8080")
    assert "gray (one channel), resize shorter side 8" in capsys.readouterr().out
    labels = (tmp_path / "models" / "digits_classifier" / "labels.txt").read_text().split()
    assert labels == sorted(NAMES)
    (tmp_path / "own.txt").write_text("\n".join(NAMES))
    with pytest.raises(ModelError, match="in another order than the model"):
        add(request("digits.skops", tmp_path, labels=tmp_path / "own.txt"), tmp_path / "more", print)


def rows(side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.random((40, side), dtype=np.float32), np.arange(40) % 10


def untrained(kind: str) -> Any:
    """A model of scikit-learn, which is slow to import."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    root = FunctionTransformer(np.sqrt)
    models = {
        "forest": RandomForestClassifier(2),
        "pipeline": make_pipeline(root, LogisticRegression()),
        "logistic": LogisticRegression(),
        "ridge": RidgeClassifier(),
        "function": root,
    }
    return models[kind]


@pytest.mark.parametrize(
    ("kind", "size", "reason"),
    [
        ("forest", 64, "use --crop 8 --grayscale"),
        ("forest", 100, "takes 100 numbers.*use --crop 10 --grayscale"),
        ("forest", 50, "by a Python function that loads"),
        ("pipeline", 256, "cannot convert it.*Python function"),
        ("ridge", 256, "without predict_proba.*CalibratedClassifierCV"),
        ("function", 256, "is a FunctionTransformer without predict_proba"),
    ],
    ids=["another crop", "hundred", "own features", "own function", "no probabilities", "no classifier"],
)
def test_pipeline_that_cannot_be_converted_says_why(tmp_path, kind, size, reason):
    needs("digits.joblib")
    path = tmp_path / "model.joblib"
    path.write_bytes(pickle.dumps(untrained(kind).fit(*rows(size))))
    with pytest.raises(UserError, match=reason):
        add_digits(str(path), tmp_path, preprocessing=replace(GRAY, resize_size=(16,), crop_size=16))


def test_pickle_of_ultralytics_is_told_what_to_run(tmp_path, monkeypatch):
    """It is recognised unopened, and need not be installed."""
    where = "ultralytics.nn.tasks"
    module = types.ModuleType(where)
    network = type("ClassificationModel", (nn.Linear,), {"__module__": where})
    vars(module)["ClassificationModel"] = network
    with monkeypatch.context() as installed:
        for name in ("ultralytics", "ultralytics.nn", where):
            installed.setitem(sys.modules, name, module)
        torch.save({"epoch": -1, "model": network(2, 2)}, tmp_path / "best.pt")
    with pytest.raises(UserError, match=r"run `yolo export model=\S+best\.pt .*`gateway model add best"):
        find_source(ModelSpec(str(tmp_path / "best.pt"), "yolo", trust=True))
