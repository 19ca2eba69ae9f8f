"""The output of `gateway model compare`, and the HTML sheet of images on which two versions differ."""

import html
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.table import Table

from gateway_models.proof.compare import CHANCE, Compared, Pair, Probabilities
from gateway_models.proof.html_page import embedded, page
from gateway_models.proof.reference import shown
from gateway_models.repository.summary import console

SHOWN, ON_THE_SHEET = 20, 400
"""The most images in the table and on the sheet; those with the largest differences come first."""
THUMBNAIL_PIXELS = 200


def report(compared: Compared, versions: tuple[int, int], labels: Sequence[str], sheet: Path | None) -> None:
    """Print the images on which the versions differ, the totals and the verdict; `sheet` is the path of the sheet."""
    out = console()
    first, second = versions
    if compared.different:
        columns = (
            "image",
            f"version {first}",
            f"version {second}",
            *(("true",) if compared.labelled else ()),
            "apart",
        )
        table = Table(*columns, box=None, pad_edge=False)
        for pair in compared.different[:SHOWN]:
            true = (_true(pair, labels),) if compared.labelled else ()
            cells = (_name(pair), _top(pair.first, labels), _top(pair.second, labels), *true, f"{pair.largest:.3f}")
            table.add_row(*cells)
        out.print(table)
        if len(compared.different) > SHOWN:
            out.print(f"… and {len(compared.different) - SHOWN} that are closer")
        out.print()
    for refused in compared.refused[:SHOWN]:
        out.print(f"not compared: {refused.path}: {refused.reason}")
    if len(compared.refused) > SHOWN:
        out.print(f"… and {len(compared.refused) - SHOWN} more")
    if not compared.pairs:
        out.print("nothing was compared", style="red")
        return
    low, high = compared.interval
    out.print(f"images       {len(compared.pairs)}")
    out.print(
        f"agreement    {100 * (1 - compared.disagreement):.2f} % have the same likeliest class "
        f"(95 % interval: {100 * (1 - high):.1f} to {100 * (1 - low):.1f} %)"
    )
    apart = compared.differences
    out.print(f"apart        {apart[0]:.3f} at most, {np.median(apart):.3f} in the middle (of a probability)")
    if compared.labelled:
        one, other = compared.accuracy
        only_first, only_second = compared.only
        out.print(f"accuracy     version {first} {100 * one:.2f} %, version {second} {100 * other:.2f} %")
        out.print(f"right alone  version {first} {only_first} times, version {second} {only_second} times")
        out.print(f"verdict      {verdict(compared, versions)}")
    if sheet is not None:
        out.print(f"sheet        {sheet}")


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
    """The same as a JSON document."""
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
        only_first, only_second = compared.only
        document["accuracy"] = list(compared.accuracy)
        document["right_alone"] = [only_first, only_second]
        document["p_value"] = compared.chance
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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(heading, f"<p>{count}{more}.</p>\n<main>\n{figures}\n</main>"), encoding="utf-8")


def _figure(pair: Pair, versions: tuple[int, int], labels: Sequence[str], *, labelled: bool) -> str:
    lines = [
        f'<span class="{"right" if right else "other"}">version {version}: '
        f"<b>{html.escape(_top(scores, labels))}</b></span>"
        for version, scores, right in (
            (versions[0], pair.first, pair.first_right),
            (versions[1], pair.second, pair.second_right),
        )
    ]
    if labelled:
        lines.append(f"true: {html.escape(_true(pair, labels))}")
    lines.append(html.escape(f"{_name(pair)}, {pair.largest:.3f} apart"))
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
    source = embedded(file.getvalue(), "image/jpeg")
    return f'<img src="{source}" alt="{alt}" width="{small.width}" height="{small.height}">'


def _prediction(scores: Probabilities, labels: Sequence[str]) -> dict[str, Any]:
    best = int(scores.argmax())
    return {"label": labels[best], "class_id": best, "score": float(scores[best])}


def _top(scores: Probabilities, labels: Sequence[str]) -> str:
    best = int(scores.argmax())
    return f"{labels[best]} {scores[best]:.3f}"


def _true(pair: Pair, labels: Sequence[str]) -> str:
    return ", ".join(labels[number] for number in sorted(pair.sample.classes)) or "none"


def _name(pair: Pair) -> str:
    """The file's name with its folder: in folders named after classes, files often have the same names."""
    return f"{pair.sample.path.parent.name}/{pair.sample.path.name}"
