"""What fastai and Ultralytics pickle is recognised unopened; a trusted Learner is served as fastai answers.

frameworks/learner.pth is what fastai_files.py wrote.
"""

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from gateway.errors import UserError
from gateway_models.networks.add import add
from gateway_models.networks.add_checks import check_trust
from gateway_models.networks.file_kinds import kind_of
from gateway_models.networks.frameworks import framework_named
from gateway_models.networks.model_source import SourceError, find_source
from gateway_models.networks.originals import original_probabilities
from gateway_models.repository.preprocessing import reference_transforms
from gateway_models.repository.spec import ModelSpec
from tests.gateway_models.networks.framework_files import FILES

SCRIPT = Path(__file__).with_name("fastai_files.py")
NAMES = ("cornflower", "poppy", "sunflower")


def named(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pickle with an object of MODULE.NAME, which need not be installed."""
    where, _, own = name.rpartition(".")
    module = types.ModuleType(where)
    network = type(own, (nn.Linear,), {"__module__": where})
    setattr(module, own, network)
    parts = where.split(".")
    for count in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:count]), module)
    torch.save({"epoch": -1, "model": network(2, 2)}, path)
    for count in range(1, len(parts) + 1):
        monkeypatch.delitem(sys.modules, ".".join(parts[:count]))
    return path


@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        (
            "ClassificationModel",
            "yolo",
            r"run `yolo export model=\S+best\.pt format=onnx`; then `gateway model add best",
        ),
        ("DetectionModel", "yolo-task", r"finds objects by boxes, masks or points, and only classifiers"),
    ],
)
def test_pickle_of_ultralytics_is_told_what_to_run(tmp_path, monkeypatch, name, kind, advice):
    path = named(tmp_path / "best.pt", f"ultralytics.nn.tasks.{name}", monkeypatch)
    assert kind_of(path) is framework_named(kind)
    with pytest.raises(UserError, match=advice):
        find_source(ModelSpec(str(path), "yolo", trust=True))


@pytest.fixture
def learner(tmp_path, monkeypatch) -> Path:
    return named(tmp_path / "learner.pkl", "fastai.learner.Learner", monkeypatch)


def test_learner_is_recognised_and_its_weights_too(learner):
    assert kind_of(learner) is framework_named("fastai")
    assert kind_of(FILES / "learner.pth") is framework_named("fastai-weights")
    with pytest.raises(UserError, match=r"learn\.load\('learner'\); learn\.export\('learner\.pkl'\)"):
        find_source(ModelSpec(str(FILES / "learner.pth"), "flowers"))


def test_learner_is_opened_only_where_it_is_trusted(learner, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    source = find_source(ModelSpec(str(learner), "flowers"))
    with pytest.raises(SourceError, match=r"loading a pickle can run any code.*add --trust.*load_learner"):
        check_trust(source)


def test_without_fastai_the_message_names_it(learner, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"fastai, which would convert it, is not installed: pip install fastai"):
        find_source(ModelSpec(str(learner), "flowers", trust=True))


@pytest.mark.long
def test_learner_is_served_as_fastai_answers(tmp_path):
    """Training and export by fastai itself; 0.02 is for its resizing in two steps, on the second one without Pillow."""
    if importlib.util.find_spec("fastai") is None:
        pytest.skip("fastai is not installed")
    script = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path)]
    subprocess.run(script, check=True, capture_output=True)
    spec = ModelSpec(str(tmp_path / "learner.pkl"), "flowers", trust=True)
    entry = add(spec, tmp_path / "models", print)
    labels = (tmp_path / "models" / "flowers_classifier" / "labels.txt").read_text().split()
    assert tuple(labels) == NAMES
    prepared = entry.preprocessing
    assert (prepared.resize_size, prepared.crop_size, prepared.mean) == ((32,), 32, (0.485, 0.456, 0.406))
    answers = original_probabilities(entry.versions[1])
    transform = reference_transforms(prepared)
    for name, expected in json.loads((tmp_path / "predictions.json").read_text()).items():
        found = answers(transform(Image.open(tmp_path / name).convert("RGB"))[None])[0]
        assert torch.allclose(found, torch.tensor(expected), atol=0.02), name
