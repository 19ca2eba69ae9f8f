"""Predictions use little memory."""

import gc
import sys

import pytest

from gateway.inference.prediction import Prediction, Predictions

FEW = [Prediction("cat", 7, 0.5), Prediction("dog", 2, 0.25), Prediction("mouse", 0, 0.125)]


def test_predictions_behave_like_any_sequence():
    known = Predictions.of(FEW)
    assert list(known) == FEW == [known[number] for number in range(len(known))]
    assert known[-1] == FEW[-1]
    assert known[1:] == tuple(FEW[1:])
    assert known.take([2, 0]) == [FEW[2], FEW[0]]
    assert known == Predictions.of(iter(FEW))
    assert known != FEW[:2]
    assert hash(known) == hash(Predictions.of(FEW))
    assert Predictions.of(known) is known
    with pytest.raises(IndexError):
        known[3]


def test_thousand_predictions_are_small_and_untracked_by_gc():
    labels = [f"label {number}" for number in range(1_000)]
    known = Predictions.of(Prediction(label, number, 0.5) for number, label in enumerate(labels))
    held = sum(map(sys.getsizeof, (known.labels, known.class_ids, known.scores)))
    assert held < 25_000
    gc.collect()
    assert not gc.is_tracked(known.labels)
