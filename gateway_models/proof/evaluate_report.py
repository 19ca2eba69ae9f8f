"""The output and plot of `gateway model evaluate`."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from gateway_models.proof.alternatives import Alternative
from gateway_models.proof.evaluate import THRESHOLD, Evaluation
from gateway_models.repository.summary import console

REFUSED_SHOWN = 20
RANKS = (1, 5)
"""Top-1 and top-5, as usual for ImageNet models."""


def report(evaluation: Evaluation, labels: Sequence[str], plot: Path, title: str) -> None:
    """Print the table of classes and the totals, and write the confusion matrix as a PNG to `plot`."""
    from gateway_models.proof.plots import confusion_matrix

    out = console()
    table = Table("class", "images", "predicted", "precision", "recall", box=None, pad_edge=False)
    for score in evaluation.per_class():
        table.add_row(
            labels[score.number], str(score.true), str(score.predicted), _share(score.precision), _share(score.recall)
        )
    out.print(table)
    for answer in evaluation.refused[:REFUSED_SHOWN]:
        out.print(f"not counted: {answer.sample.path}: {answer.reason}")
    if len(evaluation.refused) > REFUSED_SHOWN:
        out.print(f"… and {len(evaluation.refused) - REFUSED_SHOWN} more")
    out.print()
    out.print(f"images    {len(evaluation.answers)}, {evaluation.images_per_second:.1f} a second")
    if evaluation.multi_label:
        out.print(f"a label counts as predicted at a probability of at least {THRESHOLD:g} on")
    for k in ranks(evaluation.classes):
        out.print(f"top-{k}     {100 * evaluation.top(k):.2f} %")
    if (calibration := evaluation.calibration()) is not None:
        out.print(f"calibration error  {calibration.error}")
        out.print(f"Brier score        {calibration.brier}")
    if evaluation.answers:
        plot.parent.mkdir(parents=True, exist_ok=True)
        confusion_matrix(evaluation.confusion(), labels, plot, title)
        out.print(f"confusion matrix: {plot}")


def compared(alternatives: Sequence[Alternative]) -> None:
    """Print a row for each way to prepare the images; differences are from the first."""
    shown = ranks(alternatives[0].evaluation.classes)
    headings = ("", *(f"top-{k}" for k in shown), "images/s", "largest difference", "same top-1")
    table = Table(*headings, box=None, pad_edge=False)
    for each in alternatives:
        difference, same = each.moved(alternatives[0])
        table.add_row(
            each.described(),
            *(f"{100 * each.evaluation.top(k):.2f} %" for k in shown),
            f"{each.evaluation.images_per_second:.1f}",
            "as served" if each is alternatives[0] else f"{difference:.1e}",
            "" if each is alternatives[0] else f"{100 * same:.4g} %",
        )
    console().print(table)


def ranks(classes: int) -> tuple[int, ...]:
    """The ranks below the number of classes; top-5 of 5 classes would always be 100 %."""
    return tuple(k for k in RANKS if k == 1 or k < classes)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
