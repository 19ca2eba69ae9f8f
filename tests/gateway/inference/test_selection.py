"""Which classes a request is told of."""

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
    """The labels that are told, as a server answers that knows the six classes above."""
    selection = Selection(**{"default_top_k": 2, "max_top_k": 5, **wishes})
    known = PREDICTIONS[: selection.class_count(multi_label=multi_label)]
    return [each.label for each in selection.apply(known, multi_label=multi_label)]


def test_a_single_label_model_tells_its_best():
    assert told() == ["crane, bird", "crane"]
    assert told(top_k=3) == ["crane, bird", "crane", "bird"]


def test_a_multi_label_model_tells_each_class_that_is_more_likely_than_not():
    assert told(multi_label=True) == ["crane, bird", "crane", "bird"]
    assert told(multi_label=True, threshold=0.6) == ["crane, bird", "crane"]
    assert told(multi_label=True, threshold=0.95) == []


def test_who_says_how_many_gets_as_many_also_of_a_multi_label_model():
    assert told(multi_label=True, top_k=4) == ["crane, bird", "crane", "bird", "cat"]


def test_a_threshold_tells_all_from_it_on():
    assert told(threshold=0.4999) == ["crane, bird", "crane", "bird", "cat"]
    assert told(threshold=0.4999, top_k=1) == ["crane, bird"]
    assert told(threshold=0.5) == ["crane, bird", "crane", "bird"]


def test_no_more_are_told_than_the_limit():
    assert len(told(threshold=0.0)) == 5
    assert len(told(labels=LABELS)) == 5


def test_labels_are_told_whatever_their_score():
    assert told(labels=("mouse", "cat")) == ["cat", "mouse"]
    assert told(labels=("mouse", "cat"), multi_label=True) == ["cat", "mouse"]
    assert told(labels=("mouse", "cat"), top_k=1) == ["cat"]
    assert told(labels=("mouse", "cat"), threshold=0.2) == ["cat"]


def test_labels_come_with_commas_between_them_or_within_them():
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
def test_an_unknown_label_is_named_with_what_may_have_been_meant(label, hint):
    with pytest.raises(InvalidParameter) as caught:
        told(labels=(label,))
    assert repr(label) in caught.value.message
    assert hint in caught.value.message


def test_an_unknown_label_is_compared_with_few_of_many(monkeypatch):
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
