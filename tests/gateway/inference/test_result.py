"""The classes that a request gets, and the memory that they take."""

import pytest

from gateway.errors import InvalidParameter
from gateway.inference.result import Prediction, Selection

LABELS = ("crane, bird", "crane", "bird", "cat", "dog", "mouse")
SCORES = (0.9, 0.6, 0.5, 0.4999, 0.1, 0.0)
PREDICTIONS = [
    Prediction(label, number, score) for number, (label, score) in enumerate(zip(LABELS, SCORES, strict=True))
]


def told(*, multi_label: bool = False, **wishes) -> list[str]:
    """The returned labels, of a server with the six classes above."""
    selection = Selection(**{"default_top_k": 2, **wishes})
    known = PREDICTIONS[: selection.class_count(multi_label=multi_label)]
    return [each.label for each in selection.apply(known, multi_label=multi_label)]


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({}, ["crane, bird", "crane"]),
        ({"top_k": 3}, ["crane, bird", "crane", "bird"]),
        ({"multi_label": True}, ["crane, bird", "crane", "bird"]),
        ({"multi_label": True, "threshold": 0.6}, ["crane, bird", "crane"]),
        ({"multi_label": True, "threshold": 0.95}, []),
        ({"multi_label": True, "top_k": 4}, ["crane, bird", "crane", "bird", "cat"]),
        ({"threshold": 0.4999}, ["crane, bird", "crane", "bird", "cat"]),
        ({"threshold": 0.4999, "top_k": 1}, ["crane, bird"]),
        ({"threshold": 0.5}, ["crane, bird", "crane", "bird"]),
        ({"threshold": 0.0}, list(LABELS[:5])),
        ({"labels": LABELS}, list(LABELS[:5])),
        ({"labels": ("mouse", "cat")}, ["cat", "mouse"]),
        ({"labels": ("mouse", "cat"), "multi_label": True}, ["cat", "mouse"]),
        ({"labels": ("mouse", "cat"), "top_k": 1}, ["cat"]),
        ({"labels": ("mouse", "cat"), "threshold": 0.2}, ["cat"]),
        ({"labels": ("crane, bird",)}, ["crane, bird"]),
    ],
    ids=str,
)
def test_classes_are_selected(monkeypatch, wishes, expected):
    monkeypatch.setattr("gateway.inference.result.MAX_TOP_K", 5)
    assert told(**wishes) == expected


@pytest.mark.parametrize("label", ["bat", "Bird", "", "bird, crane"])
def test_unknown_label_is_refused(label):
    with pytest.raises(InvalidParameter, match=f"no label {label!r}"):
        told(labels=(label,))
