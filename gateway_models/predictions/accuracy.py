"""Accuracy by clients' feedback: of all labelled results, over time, by version and by class, with intervals."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from gateway_models.predictions.layout import SAMPLE
from gateway_models.predictions.reader import Labelled
from gateway_models.predictions.shares import ClassAccuracy, Proportion, class_accuracies


def accuracy(known: Iterable[Labelled]) -> Proportion:
    """The share of correct results."""
    hits = [each.is_correct for each in known]
    return Proportion(sum(hits), len(hits))


def drawn(known: Iterable[Labelled]) -> list[Labelled]:
    """The results that were logged at random, and chosen at random to be labelled.

    Rules prefer uncertain results, and users report wrong answers more often than right ones, so the accuracy on all
    labelled results is lower than the service's. These have no such preference.
    """
    return [each for each in known if each.is_drawn and SAMPLE in each.row["reasons"]]


def grouped(known: Iterable[Labelled], group: Callable[[Labelled], str]) -> dict[str, Proportion]:
    """The accuracy of each group of results."""
    groups: defaultdict[str, list[Labelled]] = defaultdict(list)
    for each in known:
        groups[group(each)].append(each)
    return {name: accuracy(groups[name]) for name in sorted(groups)}


def by_class(known: Iterable[Labelled]) -> list[ClassAccuracy]:
    """Each class, the most frequent ones first."""
    found = class_accuracies(_classes(each) for each in known)
    classes = [ClassAccuracy(label, *shares) for label, shares in found.items()]
    return sorted(classes, key=lambda each: (-each.recall.count - each.precision.count, each.label))


def _classes(each: Labelled) -> tuple[set[str], set[str]]:
    """The true class, if it is known, and the predicted one.

    A request for scores without labels has numbers instead, so the label of a correct result is the feedback's.
    """
    best = str(each.row["labels"][0])
    if each.is_correct:
        return {each.label or best}, {each.label or best}
    return {each.label} if each.label is not None else set(), {best}
