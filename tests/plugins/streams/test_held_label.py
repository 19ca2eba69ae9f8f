"""The label of a sequence stays until another one leads by a margin."""

import numpy as np
import pytest

from gateway.inference.selection import Selection
from gateway_plugins.streams.held_label import HeldLabel

LABELS = ("cat", "dog", "cow")
MARGIN = 0.15


def shown(*frames, selection=None, margin=MARGIN):
    """The first label after each frame's scores, "" if there is none."""
    held, firsts = HeldLabel(), []
    for scores in frames:
        best = held.predictions(
            np.array(scores, np.float32), LABELS, selection or Selection(), margin, multi_label=False
        )
        firsts.append(best[0]["label"] if best else "")
    return firsts


@pytest.mark.parametrize(("lead", "label"), [(0.1484375, "cat"), (0.15625, "dog")], ids=["below", "above"])
def test_another_label_must_lead_by_the_margin(lead, label):
    assert shown((0.5, 0.25, 0), (0.25, 0.25 + lead, 0)) == ["cat", label]


def test_label_does_not_flicker_between_similar_scores():
    frames = [(0.5, 0.45, 0), (0.45, 0.5, 0)] * 5
    assert shown(*frames) == ["cat"] * 10
    assert shown(*frames, margin=0.0) == ["cat", "dog"] * 5


def test_held_label_comes_first_and_keeps_its_score():
    held = HeldLabel()
    for scores in ((0.5, 0.3, 0.2), (0.375, 0.5, 0.125)):
        best = held.predictions(np.array(scores, np.float32), LABELS, Selection(top_k=2), MARGIN, multi_label=False)
    assert [(each["label"], each["score"]) for each in best] == [("cat", 0.375), ("dog", 0.5)]


def test_label_that_is_not_selected_is_not_held():
    assert shown((0.6, 0.3, 0.1), selection=Selection(labels=("dog", "cow"))) == ["dog"]
    below = Selection(threshold=0.5)
    assert shown((0.6, 0.3, 0), (0.45, 0.55, 0), (0.4, 0.4, 0), (0.1, 0.9, 0), selection=below) == [
        "cat",
        "dog",
        "",
        "dog",
    ]


def test_model_with_fewer_classes_has_another_label():
    held = HeldLabel()
    held.predictions(np.array([0, 0, 1], np.float32), LABELS, Selection(), MARGIN, multi_label=False)
    best = held.predictions(np.array([0.5, 0.45], np.float32), LABELS[:2], Selection(), MARGIN, multi_label=False)
    assert best[0]["label"] == "cat"
