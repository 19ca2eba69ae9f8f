"""How often the model was right, by what clients reported: over time, by version and by class, with intervals."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from gateway_predictions.calibration import Calibration, calibration_of
from gateway_predictions.reader import Labelled
from gateway_predictions.reasons import SAMPLE
from gateway_predictions.shares import Proportion


@dataclass(slots=True)
class ClassAccuracy:
    """One class: how many of its images were recognised, and how many answers with it were right."""

    label: str
    found: int = 0
    true: int = 0
    right: int = 0
    predicted: int = 0

    @property
    def recall(self) -> Proportion:
        """The share of the images with the class that were recognised."""
        return Proportion(self.found, self.true)

    @property
    def precision(self) -> Proportion:
        """The share of the answers with the class that were right."""
        return Proportion(self.right, self.predicted)


@dataclass(slots=True)
class LogAccuracy:
    """The accuracy on all labelled results, on those that were logged at random, and on those also labelled at random.

    Rules prefer uncertain results, so the accuracy on all of them is lower than that of the service. Users report wrong
    answers more often than right ones, so that the accuracy on the results that were logged at random is too low as
    well. `drawn` has no such preference: both the rows and the images to label were chosen at random.
    """

    all: Proportion
    sampled: Proportion
    drawn: Proportion
    by_day: dict[str, Proportion] = field(default_factory=dict)
    by_version: dict[str, Proportion] = field(default_factory=dict)
    classes: list[ClassAccuracy] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """The same as plain data, for JSON."""
        return {
            "all": _plain(self.all),
            "sampled": _plain(self.sampled),
            "drawn": _plain(self.drawn),
            "by_day": {day: _plain(share) for day, share in self.by_day.items()},
            "by_version": {version: _plain(share) for version, share in self.by_version.items()},
            "classes": [
                {"label": each.label, "recall": _plain(each.recall), "precision": _plain(each.precision)}
                for each in self.classes
            ],
        }


def accuracy(results: Iterable[Labelled]) -> LogAccuracy:
    """Evaluate the model on labelled results."""
    known = list(results)
    classes: dict[str, ClassAccuracy] = {}

    def of(label: str) -> ClassAccuracy:
        return classes.setdefault(label, ClassAccuracy(label))

    for each in known:
        predicted = of(_predicted(each))
        predicted.predicted += 1
        predicted.right += each.is_correct
        if each.label is not None:
            true = of(each.label)
            true.true += 1
            true.found += each.is_correct
    return LogAccuracy(
        _share(known),
        _share([each for each in known if SAMPLE in each.row["reasons"]]),
        _share(drawn(known)),
        _grouped(known, lambda each: f"{each.row['time']:%Y-%m-%d}"),
        _grouped(known, lambda each: each.row["version"] or ""),
        sorted(classes.values(), key=lambda each: (-each.true - each.predicted, each.label)),
    )


def calibrations(results: Iterable[Labelled]) -> dict[str, Calibration]:
    """The calibration of labelled results: of `all`, and of those without any preference, `drawn`; without empty ones.

    Only the latter is the calibration of the service.
    """
    known = list(results)
    return {
        name: calibration_of(
            np.array([each.row["scores"][0] for each in group], np.float64),
            np.array([each.is_correct for each in group], np.bool_),
        )
        for name, group in (("all", known), ("drawn", drawn(known)))
        if group
    }


def drawn(known: Iterable[Labelled]) -> list[Labelled]:
    """The labelled results without any preference: logged at random, and chosen at random to be labelled."""
    return [each for each in known if each.is_drawn and SAMPLE in each.row["reasons"]]


def _predicted(each: Labelled) -> str:
    """The label of the best class, or the feedback's label if the request was for scores without labels."""
    if each.is_correct and each.label is not None:
        return each.label
    return str(each.row["labels"][0])


def _share(known: Iterable[Labelled]) -> Proportion:
    hits = [each.is_correct for each in known]
    return Proportion(sum(hits), len(hits))


def _grouped(known: Iterable[Labelled], group: Callable[[Labelled], str]) -> dict[str, Proportion]:
    groups: defaultdict[str, list[Labelled]] = defaultdict(list)
    for each in known:
        groups[group(each)].append(each)
    return {name: _share(groups[name]) for name in sorted(groups)}


def _plain(share: Proportion) -> dict[str, object]:
    low, high = share.interval
    return {"images": share.count, "correct": share.hits, "share": share.value, "low": low, "high": high}
