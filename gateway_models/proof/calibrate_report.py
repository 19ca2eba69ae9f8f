"""The output of `gateway model calibrate`: a table, JSON, and the reliability diagram as PNG and in an HTML page."""

import html
import json
from collections.abc import Iterable
from pathlib import Path

from rich.table import Table

from gateway_models.proof.calibrate import Calibrated
from gateway_models.proof.html_page import embedded, page
from gateway_models.proof.plots import reliability
from gateway_models.repository.summary import console
from gateway_predictions.calibration import Calibration

_STYLE = "table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: 0.2rem 0.8rem; text-align: left }\n"
COLUMNS = ("of the images held out", "before", "after")


def rows(found: Calibrated) -> list[tuple[str, str, str]]:
    """Each measure before and after, with intervals of 95 %."""
    return [
        ("expected calibration error", str(found.before.error), str(found.after.error)),
        ("Brier score", str(found.before.brier), str(found.after.brier)),
        ("log loss", f"{found.log_loss[0]:.4f}", f"{found.log_loss[1]:.4f}"),
        ("top-1", f"{100 * found.accuracy[0]:.2f} %", f"{100 * found.accuracy[1]:.2f} %"),
    ]


def lines(found: Calibrated) -> list[str]:
    """What was fitted, and by how much it helps."""
    gain = found.error_gain
    certain = gain.low > 0
    return [
        f"fitted on {found.fitted_on} images, shown on {found.held_out} others",
        f"temperature {found.scaling.temperature:.4f}: {_direction(found.scaling.temperature)}",
        found.per_class,
        f"the calibration error is smaller by {gain}" + ("" if certain else ", which may be chance"),
    ]


def report(found: Calibrated) -> None:
    """Print the table and what was fitted."""
    out = console()
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows(found):
        table.add_row(*row)
    out.print(table)
    out.print()
    for line in lines(found):
        out.print(line)


def write_diagram(found: Calibrated, title: str, plot: Path, sheet: Path) -> None:
    """Write the reliability diagram as a PNG, and the HTML page with it and the numbers."""
    image = reliability([("before", found.before), ("after", found.after)], title)
    for path in (plot, sheet):
        path.parent.mkdir(parents=True, exist_ok=True)
    plot.write_bytes(image)
    body = (
        "".join(f"<p>{html.escape(line)}</p>\n" for line in lines(found))
        + _table(COLUMNS, rows(found))
        + f'<img src="{embedded(image, "image/png")}" alt="reliability diagram before and after">\n'
        + "".join(
            f"<h2>{name}</h2>\n" + _table(("score", "images", "mean score", "share right"), _bins(calibration))
            for name, calibration in (("before", found.before), ("after", found.after))
        )
    )
    sheet.write_text(page(title, body, _STYLE), encoding="utf-8")


def as_json(found: Calibrated, name: str, base: int, number: int | None) -> str:
    """The result as a JSON document; `number` is the new version, or None if none was written."""
    bias = None if found.scaling.bias is None else found.scaling.bias.tolist()
    document = {
        "model": name,
        "version": base,
        "new_version": number,
        "temperature": found.scaling.temperature,
        "bias": bias,
        "fitted_on": found.fitted_on,
        "held_out": found.held_out,
        "before": {**found.before.document(), "log_loss": found.log_loss[0], "top_1": found.accuracy[0]},
        "after": {**found.after.document(), "log_loss": found.log_loss[1], "top_1": found.accuracy[1]},
        "smaller_error": found.error_gain.document(),
        "smaller_brier_score": found.brier_gain.document(),
    }
    return json.dumps(document, indent=2)


def _direction(temperature: float) -> str:
    if temperature > 1:
        return "the network was more sure than it was right"
    return "the network was less sure than it was right" if temperature < 1 else "the scores stay"


def _bins(calibration: Calibration) -> list[tuple[str, str, str, str]]:
    return [
        (f"{each.low:.2f} to {each.high:.2f}", str(each.images), f"{each.score:.3f}", f"{each.right:.3f}")
        for each in calibration.bins
    ]


def _table(columns: Iterable[str], cells: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>\n" for row in cells)
    return f"<table><tr>{head}</tr>\n{body}</table>\n"
