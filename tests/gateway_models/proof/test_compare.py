"""Two versions on the same pictures: what is counted, what is noise, and what is shown."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import structlog
from PIL import Image

from gateway.inference.backend import Call, Row
from gateway_cli.model.compare import _versions
from gateway_models.proof.compare import Compared, Pair, mcnemar
from gateway_models.proof.dataset import DatasetError, Sample, read_samples
from gateway_models.proof.image_files import NotCompared
from gateway_models.proof.report import comparison_report, verdict, write_sheet
from gateway_models.repository.entry import EntryError
from tests.commands import gateway, refusal, usage_error
from tests.doubles.backend import MODEL, StubBackend, scored
from tests.services import stub_service

LABELS = ["cat", "dog <b>"]
VERSIONS = (1, 2)


def pair(first: float, second: float, true: int | None = None, path: Path = Path("photos/x.png")) -> Pair:
    """Probabilities of a cat by both versions, and the true class."""
    both = [np.array([cat, 1 - cat], np.float32) for cat in (first, second)]
    return Pair(Sample(path, frozenset() if true is None else frozenset({true})), *both)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [
        *((0, 0, 1.0), (1, 1, 1.0), (1, 5, 14 / 64), (5, 1, 14 / 64), (0, 10, 2 / 1024), (5, 15, 0.04139)),
        (4_900, 5_100, 0.04659),  # near to what the normal approximation has, 0.0466
    ],
)
def test_mcnemar_is_the_exact_binomial_test(only_first, only_second, p):
    assert mcnemar(only_first, only_second) == pytest.approx(p, rel=1e-3)


def test_agreement_and_accuracy_are_counted():
    compared = Compared([pair(0.9, 0.8, 0), pair(0.6, 0.3, 1), pair(0.7, 0.4, 1), pair(0.2, 0.9, 1)], labelled=True)
    assert compared.disagreement == 0.75
    assert [each.largest for each in compared.different] == pytest.approx([0.7, 0.3, 0.3])
    assert compared.accuracy == (0.5, 0.75)
    assert compared.only == (1, 2)
    assert compared.chance == pytest.approx(1.0)
    assert (compared.holds(None), compared.holds(0.75), compared.holds(0.7)) == (True, True, False)
    assert list(compared.differences) == sorted(compared.differences, reverse=True)


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
    with pytest.raises(DatasetError, match="no class 'dog <b>'"):
        read_samples(pictures, ["cat", "fox"])


def test_sheet_shows_images_and_both_predictions(pictures, tmp_path):
    (pictures / "broken.png").write_bytes(b"no picture")
    pairs = [
        pair(0.9, 0.2, 0, pictures / "cat" / "dark.png"),
        pair(0.9, 0.8, 0, pictures / "cat" / "light.png"),
        pair(0.6, 0.4, 1, pictures / "broken.png"),
    ]
    sheet = tmp_path / "sheets" / "sheet.html"
    write_sheet(Compared(pairs, labelled=True), "flowers", VERSIONS, LABELS, sheet)
    text = sheet.read_text()
    assert text.count("<figure>") == 2
    assert text.count('<img src="data:image/jpeg;base64,') == 1
    assert text.index("dark.png") < text.index("broken.png (no preview)")
    assert "2 of 3 images" in text
    assert "dog &lt;b&gt; 0.800" in text
    assert LABELS[1] not in text
    assert "light.png" not in text


def versions(call: Call) -> list[Row]:
    """Version 1 takes what is dark for a cat, and version 2 sees dogs everywhere."""
    assert call.selection is None
    dark = [image[-20] < 128 for image in call.batch.images]
    return [scored(0.9, 0.1) if call.model_version == "1" and each else scored(0.25, 0.75) for each in dark]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # Its log would stand among what the command prints.
    with structlog.testing.capture_logs(), stub_service(StubBackend(versions)) as url:
        yield url


COMPARE = ("model", "compare", MODEL.name)


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


def test_gateways_versions_are_compared_and_the_sheet_is_written(url, photos, tmp_path):
    sheet = tmp_path / "sheet.html"
    printed = gateway(*COMPARE, 1, 2, photos, "--gateway", url, "--sheet", sheet).stdout
    assert "accuracy     version 1 50.00 %, version 2 50.00 %" in printed
    assert "right alone  version 1 1 times, version 2 1 times" in printed
    assert "neither is shown to be better" in printed
    for words in ("cat/dark.bmp", "cat 0.900", "dog 0.750", "50.00 %", "sheet.html"):
        assert words in printed
    assert re.search(r"not counted: \S+/broken\.png: .*not a JPEG", printed)
    assert sheet.read_text().count("<img ") == 2


def test_pictures_of_unknown_classes_have_no_accuracy(url, photos, tmp_path, monkeypatch):
    """One picture, or a folder without folders of classes. Without a difference there is no sheet."""
    monkeypatch.chdir(tmp_path)
    printed = gateway(*COMPARE, 1, 2, photos / "dog" / "light.bmp", "--gateway", url).stdout
    assert "agreement" in printed
    assert "accuracy" not in printed
    assert list(tmp_path.glob("*.html")) == []
    options = ("--gateway", url, "--json", "--tolerance", "0.1")
    document = json.loads(gateway(*COMPARE, 1, 2, photos / "dog", *options, code=1).stdout)
    assert "accuracy" not in document
    assert "true" not in document["different"][0]
    assert document["holds"] is False


@pytest.mark.parametrize(("tolerance", "code"), [("0.5", 0), ("0.49", 1)])
def test_difference_beyond_the_tolerance_exits_with_1(url, photos, tolerance, code):
    options = ("--gateway", url, "--json", "--tolerance", tolerance)
    document = json.loads(gateway(*COMPARE, 1, 2, photos, *options, code=code).stdout)
    assert (document["pictures"], document["agreement"], document["holds"]) == (4, 0.5, code == 0)
    assert document["different"][0]["predictions"][0] == {"label": "cat", "class_id": 0, "score": pytest.approx(0.9)}
    (refused,) = document["refused"]
    assert "not a JPEG" in refused["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, 1), "compared with itself"),
        ((1, 2, "--tolerance", "nan"), "--tolerance"),
        ((1, 2, "--triton", "127.0.0.1:1"), "has its own Triton"),
        ((0, 2), "first"),
    ],
)
def test_incomparable_versions_are_refused(url, photos, arguments, words):
    first, second, *options = arguments
    assert words in usage_error(*COMPARE, first, second, photos, "--gateway", url, *options)


def test_model_missing_in_the_gateway_is_reported(url, photos):
    assert f"{url}/models/flowers: " in refusal("model", "compare", "flowers", 1, 2, photos, "--gateway", url)


def test_completion_omits_versions_already_given(monkeypatch):
    entries = {"flowers": SimpleNamespace(versions={1: None, 2: None, 12: None})}

    def read(_: Path, name: str) -> SimpleNamespace:
        if name not in entries:
            raise EntryError("no such model")
        return entries[name]

    monkeypatch.setattr("gateway_models.repository.entry.read_entry", read)
    assert _versions(SimpleNamespace(params={"name": "flowers", "first": None}), "") == ["1", "2", "12"]
    assert _versions(SimpleNamespace(params={"name": "flowers", "first": 1}), "1") == ["12"]
    assert _versions(SimpleNamespace(params={"name": "nothing"}), "") == []
