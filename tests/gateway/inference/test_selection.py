"""The classes that a request gets."""

import difflib

import pytest

from gateway.errors import InvalidParameter
from gateway.inference.prediction import Prediction
from gateway.inference.selection import MAX_COMPARED, Selection

LABELS = ("crane, bird", "crane", "bird", "cat", "dog", "mouse")
SCORES = (0.9, 0.6, 0.5, 0.4999, 0.1, 0.0)
PREDICTIONS = [
    Prediction(label, number, score) for number, (label, score) in enumerate(zip(LABELS, SCORES, strict=True))
]


def told(*, multi_label: bool = False, **wishes) -> list[str]:
    """The returned labels, of a server with the six classes above."""
    selection = Selection(**{"default_top_k": 2, "max_top_k": 5, **wishes})
    known = PREDICTIONS[: selection.class_count(multi_label=multi_label)]
    return [each.label for each in selection.apply(known, multi_label=multi_label)]


def test_single_label_model_returns_its_best_classes():
    assert told() == ["crane, bird", "crane"]
    assert told(top_k=3) == ["crane, bird", "crane", "bird"]


def test_multi_label_model_returns_classes_above_its_threshold():
    assert told(multi_label=True) == ["crane, bird", "crane", "bird"]
    assert told(multi_label=True, threshold=0.6) == ["crane, bird", "crane"]
    assert told(multi_label=True, threshold=0.95) == []


def test_top_k_applies_to_multi_label_models():
    assert told(multi_label=True, top_k=4) == ["crane, bird", "crane", "bird", "cat"]


def test_threshold_returns_all_classes_from_it_on():
    assert told(threshold=0.4999) == ["crane, bird", "crane", "bird", "cat"]
    assert told(threshold=0.4999, top_k=1) == ["crane, bird"]
    assert told(threshold=0.5) == ["crane, bird", "crane", "bird"]


def test_selection_never_exceeds_the_limit():
    assert len(told(threshold=0.0)) == 5
    assert len(told(labels=LABELS)) == 5


def test_requested_labels_are_returned_with_any_score():
    assert told(labels=("mouse", "cat")) == ["cat", "mouse"]
    assert told(labels=("mouse", "cat"), multi_label=True) == ["cat", "mouse"]
    assert told(labels=("mouse", "cat"), top_k=1) == ["cat"]
    assert told(labels=("mouse", "cat"), threshold=0.2) == ["cat"]


def test_labels_may_be_separated_by_or_contain_commas():
    assert told(labels=("dog,cat",)) == ["cat", "dog"]
    assert told(labels=("crane, bird",)) == ["crane, bird"]
    assert told(labels=("bird, crane",)) == ["crane", "bird"]


@pytest.mark.parametrize(
    ("label", "hint"),
    [
        ("bat", "did you mean 'cat'?"),
        ("xyz", "GET /models/NAME"),
        ("", "''"),
        ("Bird", "did you mean 'bird' or 'crane, bird'?"),
    ],
)
def test_unknown_label_error_has_suggestions(label, hint):
    with pytest.raises(InvalidParameter) as caught:
        told(labels=(label,))
    assert repr(label) in caught.value.message
    assert hint in caught.value.message


def test_unknown_label_is_compared_with_few_labels(monkeypatch):
    compared = []
    close = difflib.get_close_matches
    monkeypatch.setattr(
        difflib,
        "get_close_matches",
        lambda word, words, **options: compared.extend(words) or close(word, words, **options),
    )
    many = [Prediction(f"kind {number}", number, 0.5) for number in range(21_000)]
    with pytest.raises(InvalidParameter, match="did you mean 'Egyptian cat'"):
        Selection(labels=("egyptain cat",)).apply([*many, Prediction("Egyptian cat", 21_000, 0.1)], multi_label=False)
    assert len(compared) <= MAX_COMPARED
