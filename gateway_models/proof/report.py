"""The output of `gateway model verify|evaluate|compare`."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from gateway_models.predictions.shares import CLASS_COLUMNS
from gateway_models.proof.compare import CHANCE, Compared, apart
from gateway_models.proof.evaluate import THRESHOLD, Evaluation, Probabilities
from gateway_models.proof.image_files import reasons
from gateway_models.proof.parity import STAGES, Parity
from gateway_models.repository.summary import Report

RANKS = (1, 5)
"""Top-1 and top-5, as usual for ImageNet models."""
CAUSES = {
    "decode": "OpenCV decodes these files differently from PIL, or the model has large photos decoded fast: compare "
    "with --decode exact",
    "resize": "the preprocessor's parameters are not the training's, or its resize_library is torch",
    "model": "the served network is not the original: its precision, its format, or another file",
}
TF32 = (
    "convolutions there use TF32, of 10 bits, by default: differences of up to some 1e-2 come from that and not from "
    "the model. NVIDIA_TF32_OVERRIDE=0 in Triton's environment turns it off, at a price in speed; --tolerance 1e-2 "
    "allows it"
)


def parity_report(parity: Parity, labels: Sequence[str], tolerance: float) -> Report:
    """Each image's difference from the original, largest first, with its causes."""
    rows = []
    for each in sorted(parity.comparisons, key=lambda each: each.largest, reverse=True):
        expected = "the same" if each.same_top1 else _top(each.expected, labels)
        stages = [f"{each.from_stage(stage):.1e}" for stage in STAGES]
        served = _top(each.served, labels)
        rows.append((_name(each.path), served, expected, f"{each.largest:.1e}", *stages))
    facts = {
        "reference": reference(),
        "images": str(len(parity.comparisons)),
        "same top-1": f"{100 * parity.top1_agreement:.4g} %",
        "max difference": f"{parity.largest:.1e} of a probability, {tolerance:g} allowed",
    }
    facts["from"] = ", ".join(f"{stage} {parity.from_stage(stage):.1e}" for stage in STAGES)
    if parity.embeddings:
        most = max(float(np.abs(served - expected).max()) for served, expected in parity.embeddings)
        size, cosine = len(parity.embeddings[0][0]), parity.least_cosine
        facts["embeddings"] = f"{size} numbers, cosine {cosine:.7f} at least, max difference {most:.1e}"
    if parity.on_gpu:
        facts["on a GPU"] = TF32
    columns = ("image", "served", "expected", "max", *STAGES)
    return Report(columns, rows, reasons(parity.refused), facts, _cause(parity, tolerance), parity.holds(tolerance))


def _cause(parity: Parity, tolerance: float) -> str:
    if parity.holds(tolerance):
        return "the served answers are the original's"
    if not parity.comparisons:
        return "nothing was compared"
    if parity.largest <= tolerance:
        return "the served embeddings are not the original's: has the network changed since it was added?"
    worst = max(STAGES, key=parity.from_stage)
    return f"the served answers are not the original's: most comes from {worst}. {CAUSES[worst]}"


def reference() -> str:
    """The libraries, with their versions, that prepared the images for the expected answers."""
    return f"torchvision {version('torchvision')} on Pillow {version('pillow')}"


def evaluation_report(evaluation: Evaluation, labels: Sequence[str]) -> Report:
    """The classes, and the totals."""
    facts = {"images": str(len(evaluation.answers))}
    if evaluation.multi_label:
        facts["a label counts"] = f"as predicted at a probability of at least {THRESHOLD:g}"
    facts |= {f"top-{k}": f"{100 * evaluation.top(k):.2f} %" for k in ranks(evaluation.classes)}
    if (calibration := evaluation.calibration()) is not None:
        facts["calibration error"] = f"{calibration.error:.4f}"
    rows = [each.row for each in evaluation.per_class(labels)]
    return Report(CLASS_COLUMNS, rows, reasons(evaluation.refused), facts)


def ranks(classes: int) -> tuple[int, ...]:
    """The ranks below the number of classes; top-5 of 5 classes would always be 100 %."""
    return tuple(k for k in RANKS if k == 1 or k < classes)


def comparison_report(compared: Compared, versions: tuple[int, int], labels: Sequence[str]) -> Report:
    """The images on which two versions differ, and whether one of them is better."""
    first, second = versions
    true = ("true",) if compared.labelled else ()
    columns = ("image", f"version {first}", f"version {second}", *true, "apart")
    rows = []
    for pair in compared.different:
        actual = (", ".join(labels[n] for n in sorted(pair.sample.classes)) or "none",) if compared.labelled else ()
        both = (
            ", ".join(f"{labels[n]} {scores[n]:.3f}" for n in sorted(answer)) or "none"
            for scores, answer in zip(pair.scores, compared.answers(pair), strict=True)
        )
        rows.append((_name(pair.sample.path), *both, *actual, f"{apart(pair):.3f}"))
    if not compared.pairs:
        return Report(columns, rows, reasons(compared.refused), verdict="nothing was compared", passed=False)
    low, high = compared.interval
    differences = [apart(each) for each in compared.pairs]
    same = f"labels, from a probability of {THRESHOLD:g}" if compared.multi_label else "top-1 class"
    facts = {
        "images": str(len(compared.pairs)),
        "agreement": f"{100 * (1 - compared.disagreement):.2f} % have the same {same} "
        f"(95 % interval: {100 * (1 - high):.1f} to {100 * (1 - low):.1f} %)",
        "apart": f"{max(differences):.3f} at most, {np.median(differences):.3f} in the middle (of a probability)",
    }
    if compared.labelled:
        (one, other), (only_first, only_second) = compared.accuracy, compared.only
        facts |= {
            "accuracy": f"version {first} {100 * one:.2f} %, version {second} {100 * other:.2f} %",
            "right alone": f"version {first} {only_first} times, version {second} {only_second} times",
            "verdict": verdict(compared, versions),
        }
    return Report(columns, rows, reasons(compared.refused), facts)


def verdict(compared: Compared, versions: tuple[int, int]) -> str:
    """Which version is better, if the difference is significant."""
    only_first, only_second = compared.only
    if only_first == only_second == 0:
        return "both are right on the same images"
    better = versions[0] if only_first > only_second else versions[1]
    if compared.chance >= CHANCE:
        return (
            f"neither is shown to be better: chance alone does as much in {100 * compared.chance:.0f} % of the cases; "
            "more images may show a difference"
        )
    return f"version {better} is better: chance alone does as much in {100 * compared.chance:.2g} % of the cases"


def _top(scores: Probabilities, labels: Sequence[str]) -> str:
    best = int(scores.argmax())
    return f"{labels[best]} {scores[best]:.3f}"


def _name(path: Path) -> str:
    """The file's name with its folder: in folders named after classes, files often have the same names."""
    return f"{path.parent.name}/{path.name}"
