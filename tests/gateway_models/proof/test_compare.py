"""Two versions on the same pictures: counts, significance, and output."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from gateway.errors import UserError
from gateway_models.proof.compare import Compared, apart
from gateway_models.proof.dataset import Sample, read_samples
from gateway_models.proof.evaluate import Answered
from gateway_models.proof.image_files import NotCompared
from gateway_models.proof.report import comparison_report, verdict
from gateway_models.repository.entry import Entry
from gateway_models.repository.writing import rewrite, write_labels
from tests.commands import gateway
from tests.gateway_models.repository.entries import entry

LABELS = ["cat", "dog <b>"]
VERSIONS = (1, 2)


def pair(first: float, second: float, true: int | None = None, path: Path = Path("photos/x.png")) -> Answered:
    """Probabilities of a cat by both versions, and the true class."""
    both = tuple(np.array([cat, 1 - cat], np.float32) for cat in (first, second))
    return Answered(Sample(path, frozenset() if true is None else frozenset({true})), both)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [
        (0, 0, 1.0),
        (1, 5, 14 / 64),
        (490, 560, 0.0335),  # near to what the normal approximation has
    ],
)
def test_chance_is_the_exact_binomial_test(only_first, only_second, p):
    pairs = [pair(0.9, 0.2, 0)] * only_first + [pair(0.2, 0.9, 0)] * only_second
    assert Compared(pairs, labelled=True).chance == pytest.approx(p, rel=1e-2)


def test_agreement_and_accuracy_are_counted():
    compared = Compared([pair(0.9, 0.8, 0), pair(0.6, 0.3, 1), pair(0.7, 0.4, 1), pair(0.2, 0.9, 1)], labelled=True)
    assert compared.disagreement == 0.75
    assert [apart(each) for each in compared.different] == pytest.approx([0.7, 0.3, 0.3])
    assert compared.accuracy == (0.5, 0.75)
    assert compared.only == (1, 2)
    assert compared.chance == pytest.approx(1.0)
    assert (compared.holds(None), compared.holds(0.75), compared.holds(0.7)) == (True, True, False)


def test_answers_of_a_multi_label_model_are_its_labels(capsys):
    """Not its top-1 class alone, which both versions have in common here."""
    sample = Sample(Path("photos/x.png"), frozenset({0, 1}))
    scores = np.array([0.9, 0.6], np.float32), np.array([0.9, 0.4], np.float32)
    compared = Compared([Answered(sample, scores)], labelled=True, multi_label=True)
    assert (compared.disagreement, compared.accuracy) == (1.0, (1.0, 0.0))
    comparison_report(compared, VERSIONS, LABELS).print()
    printed = capsys.readouterr().out
    assert "0.00 % have the same labels, from a probability of 0.5" in printed
    assert "cat 0.900, dog <b> 0.600" in printed


def test_empty_comparison_never_holds(capsys):
    empty = Compared([], [NotCompared(Path("x"), "no picture")])
    assert not empty.holds(None)
    comparison_report(empty, VERSIONS, LABELS).print()
    assert "nothing was compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([pair(0.9, 0.8, 0)], "both are right on the same images"),
        (
            [pair(0.9, 0.2, 0)] * 2 + [pair(0.2, 0.9, 0)],
            "neither is shown to be better: chance alone does as much in 100 %",
        ),
        ([pair(0.2, 0.9, 0)] * 8, "version 2 is better: chance alone does as much in 0.78 % of the cases"),
        ([pair(0.9, 0.2, 0)] * 8, "version 1 is better"),
    ],
)
def test_verdict_reports_significance(pairs, said):
    assert said in verdict(Compared(pairs, labelled=True), VERSIONS)


def test_only_a_folder_per_class_gives_known_classes(pictures):
    samples, labelled = read_samples(pictures, LABELS)
    assert labelled
    assert [sorted(sample.classes) for sample in samples] == [[0], [0], [1]]
    samples, labelled = read_samples(pictures / "cat", LABELS)
    assert not labelled
    assert [sample.classes for sample in samples] == [frozenset(), frozenset()]
    assert read_samples(pictures, ["rose", "tulip"])[1] is False
    assert len(read_samples(pictures / "cat" / "dark.png", LABELS)[0]) == 1
    with pytest.raises(UserError, match="no class 'dog <b>'"):
        read_samples(pictures, ["cat", "fox"])


def of_versions(ensembles, address, samples, resize, **_):
    """Version 1 takes dark images for cats, and version 2 sees dogs everywhere."""
    for sample in samples:
        if sample.path.name.startswith("broken"):
            yield NotCompared(sample.path, "not a JPEG")
            continue
        cat, dog = np.array([0.9, 0.1], np.float32), np.array([0.25, 0.75], np.float32)
        dark = sample.path.name.startswith("dark")
        yield Answered(sample, tuple(cat if each == "animals" and dark else dog for each in ensembles))


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """Two versions, whose answers do not come from a Triton: tests/docs/test_models_tutorial.py has real ones."""
    one = replace(entry().versions[1], outcome=replace(entry().versions[1].outcome, classes=2))
    animals = Entry("animals", {1: one, 2: one})
    rewrite(animals, tmp_path / "models")
    write_labels(tmp_path / "models" / "animals_classifier" / "labels.txt", ["cat", "dog"])
    monkeypatch.setattr("gateway_models.proof.serving.predict_each", of_versions)
    monkeypatch.setattr(
        "gateway_models.proof.serving.serving", lambda *_, **__: nullcontext(SimpleNamespace(address=""))
    )
    return tmp_path / "models"


COMPARE = ("model", "compare", "animals")


def saved(folder: Path, greys: dict[str, int]) -> Path:
    """Pictures of one grey each."""
    for name, grey in greys.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (grey,) * 3).save(path)
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return saved(tmp_path / "photos", {"cat/dark.png": 10, "cat/light.png": 200, "dog <b>/middle.png": 100})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Dark and light ones of each class, whose last bytes are pixels, and a broken one."""
    greys = {"cat/dark.bmp": 10, "cat/light.bmp": 200, "dog/dark.bmp": 20, "dog/light.bmp": 220}
    folder = saved(tmp_path / "photos", greys)
    (folder / "cat" / "broken.png").write_bytes(b"no picture")
    return folder


def test_versions_are_compared_on_known_classes(repository, photos):
    printed = gateway(*COMPARE, 1, 2, photos, "--model-repository", repository).stdout
    assert "accuracy     version 1 50.00 %, version 2 50.00 %" in printed
    assert "right alone  version 1 1 times, version 2 1 times" in printed
    assert "neither is shown to be better" in printed
    for words in ("cat/dark.bmp", "cat 0.900", "dog 0.750", "50.00 %"):
        assert words in printed
    assert re.search(r"not counted: \S+/broken\.png: not a JPEG", printed)


@pytest.mark.parametrize(("tolerance", "code"), [("0.5", 0), ("0.49", 1)])
def test_difference_beyond_the_tolerance_exits_with_1(repository, photos, tolerance, code):
    options = ("--model-repository", repository, "--tolerance", tolerance)
    gateway(*COMPARE, 1, 2, photos, *options, code=code)
    assert "accuracy" not in gateway(*COMPARE, 1, 2, photos / "dog", *options, code=code).stdout
