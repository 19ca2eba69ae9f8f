"""What `gateway model parity|evaluate|compare` print, and the HTML sheet of images on which two versions differ."""

import base64
import html
import io
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gateway_models.proof.compare import CHANCE, Compared, Pair, Probabilities
from gateway_models.proof.evaluate import THRESHOLD, Evaluation
from gateway_models.proof.image_files import reasons
from gateway_models.proof.parity import Parity
from gateway_models.proof.reference import shown
from gateway_models.repository.summary import Report

ON_THE_SHEET = 400
"""The most images on the sheet."""
THUMBNAIL_PIXELS = 200
RANKS = (1, 5)
"""Top-1 and top-5, as usual for ImageNet models."""
STYLE = """\
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #1b1b1b; background: #fff }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: 1.5rem }
figure { margin: 0 } img { max-width: 100%; height: auto; background: #eee }
figcaption { overflow-wrap: anywhere } figcaption b { font-weight: 600 } .right { color: #0a6b2d }
"""
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
        stages = [f"{each.from_stage(stage):.1e}" for stage in parity.stages]
        served = _top(each.served, labels)
        rows.append((_name(each.path), served, expected, f"{each.largest:.1e}", f"{each.mean:.1e}", *stages))
    facts = {
        "reference": reference(),
        "images": str(len(parity.comparisons)),
        "same top-1": f"{100 * parity.top1_agreement:.4g} %",
        "max difference": f"{parity.largest:.1e} of a probability, {tolerance:g} allowed",
        "mean difference": f"{parity.mean:.1e}",
    }
    if parity.stages:
        facts["from"] = ", ".join(f"{stage} {parity.from_stage(stage):.1e}" for stage in parity.stages)
    if parity.embeddings:
        most = max(each.largest for each in parity.embeddings)
        size, cosine = len(parity.embeddings[0].served), parity.least_cosine
        facts["embeddings"] = f"{size} numbers, cosine {cosine:.7f} at least, max difference {most:.1e}"
    if parity.on_gpu:
        facts["on a GPU"] = TF32
    columns = ("image", "served", "expected", "max", "mean", *parity.stages)
    return Report(columns, rows, reasons(parity.refused), facts, _cause(parity, tolerance), parity.holds(tolerance))


def _cause(parity: Parity, tolerance: float) -> str:
    if parity.holds(tolerance):
        return "the served answers are the original's"
    if not parity.comparisons:
        return "nothing was compared"
    if not parity.stages:
        return "the answers over HTTP are not the original's: without --gateway each stage is compared"
    if parity.largest <= tolerance:
        return "the served embeddings are not the original's: has the network changed since it was added?"
    worst = max(parity.stages, key=parity.from_stage)
    return f"the served answers are not the original's: most comes from {worst}. {CAUSES[worst]}"


def reference() -> str:
    """The libraries, with their versions, that prepared the images for the expected answers."""
    return f"torchvision {version('torchvision')} on Pillow {version('pillow')}"


def evaluation_report(evaluation: Evaluation, labels: Sequence[str]) -> Report:
    """The classes, and the totals."""
    rows = [
        (labels[each.number], str(each.true), str(each.predicted), _share(each.precision), _share(each.recall))
        for each in evaluation.per_class()
    ]
    facts = {"images": f"{len(evaluation.answers)}, {evaluation.images_per_second:.1f} a second"}
    if evaluation.multi_label:
        facts["a label counts"] = f"as predicted at a probability of at least {THRESHOLD:g}"
    facts |= {f"top-{k}": f"{100 * evaluation.top(k):.2f} %" for k in ranks(evaluation.classes)}
    if (calibration := evaluation.calibration()) is not None:
        facts |= {
            "calibration error": str(calibration.expected_calibration_error),
            "Brier score": str(calibration.brier_score),
        }
    return Report(("class", "images", "predicted", "precision", "recall"), rows, reasons(evaluation.refused), facts)


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
        actual = (_true(pair, labels),) if compared.labelled else ()
        both = (_top(pair.first, labels), _top(pair.second, labels))
        rows.append((_name(pair.sample.path), *both, *actual, f"{pair.largest:.3f}"))
    if not compared.pairs:
        return Report(columns, rows, reasons(compared.refused), verdict="nothing was compared", passed=False)
    low, high = compared.interval
    apart = compared.differences
    facts = {
        "images": str(len(compared.pairs)),
        "agreement": f"{100 * (1 - compared.disagreement):.2f} % have the same likeliest class "
        f"(95 % interval: {100 * (1 - high):.1f} to {100 * (1 - low):.1f} %)",
        "apart": f"{apart[0]:.3f} at most, {np.median(apart):.3f} in the middle (of a probability)",
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


def as_json(
    compared: Compared, model: str, versions: tuple[int, int], labels: Sequence[str], tolerance: float | None
) -> str:
    """A comparison as a JSON document."""
    low, high = compared.interval
    apart = compared.differences
    document: dict[str, Any] = {
        "model": model,
        "versions": list(versions),
        "pictures": len(compared.pairs),
        "agreement": 1 - compared.disagreement if compared.pairs else None,
        "agreement_interval": [1 - high, 1 - low],
        "largest_difference": float(apart[0]) if len(apart) else None,
        "median_difference": float(np.median(apart)) if len(apart) else None,
        "tolerance": tolerance,
        "holds": compared.holds(tolerance),
    }
    if compared.labelled and compared.pairs:
        document |= {
            "accuracy": list(compared.accuracy),
            "right_alone": list(compared.only),
            "p_value": compared.chance,
        }
    document["different"] = [
        {
            "path": str(pair.sample.path),
            "predictions": [_prediction(scores, labels) for scores in (pair.first, pair.second)],
            "difference": pair.largest,
            **({"true": [labels[number] for number in sorted(pair.sample.classes)]} if compared.labelled else {}),
        }
        for pair in compared.different
    ]
    document["refused"] = [{"path": str(each.path), "reason": each.reason} for each in compared.refused]
    return json.dumps(document, indent=2)


def write_sheet(compared: Compared, model: str, versions: tuple[int, int], labels: Sequence[str], path: Path) -> None:
    """Write the images on which the versions differ into one self-contained HTML file."""
    listed = compared.different[:ON_THE_SHEET]
    heading = f"{model}: where version {versions[0]} and version {versions[1]} differ"
    count = f"{len(compared.different)} of {len(compared.pairs)} images, the largest differences first"
    more = f"; {ON_THE_SHEET} of them are shown" if len(listed) < len(compared.different) else ""
    figures = "\n".join(_figure(pair, versions, labels, labelled=compared.labelled) for pair in listed)
    heading = html.escape(heading)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{heading}</title>\n'
        f"<style>\n{STYLE}</style>\n<h1>{heading}</h1>\n<p>{count}{more}.</p>\n<main>\n{figures}\n</main>\n</html>\n",
        encoding="utf-8",
    )


def _figure(pair: Pair, versions: tuple[int, int], labels: Sequence[str], *, labelled: bool) -> str:
    both = ((versions[0], pair.first, pair.first_right), (versions[1], pair.second, pair.second_right))
    lines = [
        f'<span class="{"right" if right else "other"}">version {number}: '
        f"<b>{html.escape(_top(scores, labels))}</b></span>"
        for number, scores, right in both
    ]
    if labelled:
        lines.append(f"true: {html.escape(_true(pair, labels))}")
    lines.append(html.escape(f"{_name(pair.sample.path)}, {pair.largest:.3f} apart"))
    return f"<figure>{_thumbnail(pair.sample.path)}<figcaption>{'<br>'.join(lines)}</figcaption></figure>"


def _thumbnail(path: Path) -> str:
    alt = html.escape(path.name, quote=True)
    try:
        with Image.open(path) as original:
            original.draft("RGB", (2 * THUMBNAIL_PIXELS, 2 * THUMBNAIL_PIXELS))
            small = shown(original)
    except (OSError, ValueError, Image.DecompressionBombError):  # Pillow reads fewer formats than the gateway
        return f"<p>{alt} (no preview)</p>"
    small.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80)
    source = base64.b64encode(file.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{source}" alt="{alt}" width="{small.width}" height="{small.height}">'


def _prediction(scores: Probabilities, labels: Sequence[str]) -> dict[str, Any]:
    best = int(scores.argmax())
    return {"label": labels[best], "class_id": best, "score": float(scores[best])}


def _top(scores: Probabilities, labels: Sequence[str]) -> str:
    best = int(scores.argmax())
    return f"{labels[best]} {scores[best]:.3f}"


def _true(pair: Pair, labels: Sequence[str]) -> str:
    return ", ".join(labels[number] for number in sorted(pair.sample.classes)) or "none"


def _name(path: Path) -> str:
    """The file's name with its folder: in folders named after classes, files often have the same names."""
    return f"{path.parent.name}/{path.name}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
