"""Accuracy by clients' feedback: over time, by version and by class, with intervals."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway_models.predictions.layout import SAMPLE
from gateway_models.predictions.reader import Labelled
from gateway_models.predictions.shares import ClassAccuracy, Proportion


@dataclass(frozen=True, slots=True)
class LogAccuracy:
    """The accuracy on all labelled results, and on the ones that were logged and labelled at random.

    Rules prefer uncertain results, and users report wrong answers more often than right ones, so the accuracy on all
    of them is lower than the service's. `drawn` has no such preference.
    """

    all: Proportion
    drawn: Proportion
    by_day: dict[str, Proportion]
    by_version: dict[str, Proportion]
    classes: list[ClassAccuracy]


def accuracy(results: Iterable[Labelled]) -> LogAccuracy:
    """Evaluate the model on labelled results."""
    known = list(results)
    predicted = Counter(_predicted(each) for each in known)
    right = Counter(_predicted(each) for each in known if each.is_correct)
    true = Counter(each.label for each in known if each.label is not None)
    found = Counter(each.label for each in known if each.label is not None and each.is_correct)
    return LogAccuracy(
        _share(known),
        _share(drawn(known)),
        _grouped(known, lambda each: f"{each.row['time']:%Y-%m-%d}"),
        _grouped(known, lambda each: each.row["version"] or ""),
        [
            ClassAccuracy(label, Proportion(found[label], true[label]), Proportion(right[label], predicted[label]))
            for label in sorted({*true, *predicted}, key=lambda label: (-true[label] - predicted[label], label))
        ],
    )


def drawn(known: Iterable[Labelled]) -> list[Labelled]:
    """The labelled results without any preference: logged at random, and chosen at random to be labelled."""
    return [each for each in known if each.is_drawn and SAMPLE in each.row["reasons"]]


def _predicted(each: Labelled) -> str:
    """The label of the best class, or the feedback's label if the request was for scores without labels."""
    return each.label if each.is_correct and each.label is not None else str(each.row["labels"][0])


def _share(known: Iterable[Labelled]) -> Proportion:
    hits = [each.is_correct for each in known]
    return Proportion(sum(hits), len(hits))


def _grouped(known: Iterable[Labelled], group: Callable[[Labelled], str]) -> dict[str, Proportion]:
    groups: defaultdict[str, list[Labelled]] = defaultdict(list)
    for each in known:
        groups[group(each)].append(each)
    return {name: _share(groups[name]) for name in sorted(groups)}
