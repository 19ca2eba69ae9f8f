"""The vectors inside of a network: found, or refused with what to do; written in addition to its scores."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gateway_models.networks.add import add
from gateway_models.networks.embeddings import check_embeddings, embedding_difference, pair_runner
from gateway_models.networks.errors import ModelError
from gateway_models.networks.originals import original_answers
from gateway_models.networks.torchscript import load_torchscript, without_deprecations
from gateway_models.repository.entry import Entry, EntryError
from gateway_models.repository.spec import Format, ImageTensor, ModelSpec, Precision
from tests.gateway_models.networks.builders import (
    Head,
    save_labels,
    save_onnx,
    save_program,
    save_torchscript,
    spec_of,
)
from tests.gateway_models.networks.special_networks import Calling, Two
from tests.gateway_models.repository.entries import SMALL
from tests.processes import PROJECT

GUIDE = re.findall(
    r"^```python\n(.*?)^```$", (PROJECT / "docs" / "guides" / "embeddings.md").read_text(), re.DOTALL | re.MULTILINE
)
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
CONVOLVED = Calling(lambda maps, _: maps.mean((2, 3)), nn.Conv2d(3, 5, 3))
"""Ends in a convolution, as SqueezeNet does."""


def inner_of(network: Head) -> torch.Tensor:
    with torch.no_grad():
        return torch.relu(network.features(IMAGES)).mean((2, 3))


def request(source: str | Path, folder: Path, **changes) -> ModelSpec:
    return spec_of(source, folder, **{"features": True, "trust": True, **changes})


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda images: (None, torch.ones(len(images), 4)), "the same for every image"),
        (lambda images: (None, images.mean((0, 2, 3)).expand(len(images), 3)), "depends on the others in its batch"),
        (lambda images: (None, images.mean((2, 3)) / 0), "NaN or infinity"),
    ],
)
def test_embeddings_that_depend_on_other_images_are_refused(run, words):
    with pytest.raises(ModelError, match=words):
        check_embeddings(run, 32, pixels=False)


def frozen(path: Path) -> Path:
    with without_deprecations():
        torch.jit.freeze(load_torchscript(save_torchscript(Head(last=nn.Softmax(1)), path))).save(path)
    return path


SOURCES = {
    "torchscript": lambda folder: save_torchscript(Head(), folder / "head.pt"),
    "frozen": lambda folder: frozen(folder / "head.pt"),
    "onnx": lambda folder: save_onnx(Head(), folder / "head.onnx"),
    "onnx-for-one": lambda folder: save_onnx(Head(), folder / "head.onnx", dynamic=False, batch=1),
    "exported": lambda folder: save_program(Head(), folder / "head.pt2"),
}


def written_answers(entry: Entry, repository: Path, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of the written network, by the names that Triton knows."""
    return pair_runner(entry.model_file(repository, 1), "output__0", "output__1")(images)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("torchscript", {"tensor": ImageTensor.FP32}),
        ("frozen", {"precision": Precision.FP16}),
        ("onnx-for-one", {}),
        ("onnx", {"precision": Precision.FP16}),
        ("exported", {}),
    ],
    ids=str,
)
def test_added_network_gives_embeddings_and_scores(kind, changes, tmp_path):
    network, repository = Head().eval(), tmp_path / "models"
    entry = add(request(SOURCES[kind](tmp_path), tmp_path, **changes), repository, print)
    assert (entry.embedding_size, entry.format) == (16, Format.ONNX)
    scores, vectors = written_answers(entry, repository, IMAGES)
    inner = inner_of(network)
    # Half the precision has half the digits.
    tolerance = 1e-5 if "precision" not in changes else 0.05
    assert torch.allclose(scores.float(), network(IMAGES).softmax(1), atol=tolerance)
    assert torch.allclose(vectors.float(), inner, atol=tolerance)
    # `verify` finds the same original again.
    expected, known = original_answers(entry.versions[1])(IMAGES)
    assert torch.allclose(known, inner, atol=1e-5)
    assert torch.allclose(expected, network(IMAGES).softmax(1), atol=1e-5)
    assert entry.versions[1].outcome.embedding_difference < (1e-5 if "precision" not in changes else 1e-2)


def test_embeddings_are_an_output_of_every_step(tmp_path):
    add(request(SOURCES["onnx"](tmp_path), tmp_path), tmp_path / "models", print)
    ensemble = (tmp_path / "models" / "head" / "config.pbtxt").read_text()
    assert 'name: "FEATURES"' in ensemble
    assert 'output_map { key: "output__1" value: "FEATURES" }' in ensemble
    assert 'name: "output__1"' in (tmp_path / "models" / "head_classifier" / "config.pbtxt").read_text()
    for network, words in (
        (CONVOLVED, "ReduceMean, not a linear one: --embeddings gives"),
        (Two(), "Add, not a linear"),
    ):
        with pytest.raises(ModelError, match=words):
            add(request(save_onnx(network, tmp_path / "c.onnx"), tmp_path, name="other"), tmp_path / "models", print)


def test_versions_give_embeddings_all_or_none(own_head, tmp_path):
    repository = tmp_path / "embeddings"
    add(request(SOURCES["torchscript"](tmp_path), tmp_path), repository, print)
    better = save_torchscript(Head(seed=1), tmp_path / "better.pt")
    entry = add(request(better, tmp_path, version=2, features=False, labels=None), repository, print)
    assert [each.spec.features for each in entry.versions.values()] == [True, True]
    assert entry.versions[2].outcome.embedding_difference < 1e-5
    with pytest.raises(EntryError, match="embeddings is False and not True"):
        add(request(better, tmp_path, version=2), own_head, print)


def test_embedding_network_is_added_as_the_guide_describes(tmp_path, monkeypatch):
    """A layer of classes behind it, trained or not: its vectors are what that layer is given."""
    (code,) = (each for each in GUIDE if "whole" in each)
    monkeypatch.chdir(tmp_path)
    tower = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 512)).eval()
    exec(code, {"torch": torch, "nn": nn, "tower": tower})  # noqa: S102  # what the guide advises
    labels = save_labels(tmp_path / "two.txt", 2)
    larger = replace(SMALL, resize_size=(224,), crop_size=224)
    entry = add(request("tower.pt2", tmp_path, labels=labels, preprocessing=larger), tmp_path / "models", print)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert torch.allclose(written_answers(entry, tmp_path / "models", images)[1], tower(images), atol=1e-5)


@pytest.mark.parametrize(
    ("served", "expected", "difference"),
    [
        ([[0, 0], [3, 4]], [[0, 0], [3, 4]], 0),
        ([[1e-5, 0], [1, 0]], [[0, 1e-5], [1, 0]], 0),
        ([[1.01e-5, 0], [1, 0]], [[0, 1e-5], [1, 0]], 1),
        ([[0, 0], [1, 0]], [[1, 0], [1, 0]], 1),
    ],
    ids=["both zero", "at the limit", "past the limit", "one zero"],
)
def test_difference_of_zero_vectors(served, expected, difference):
    found = embedding_difference([torch.tensor(served).float()], [torch.tensor(expected).float()])
    assert found == pytest.approx(difference)
