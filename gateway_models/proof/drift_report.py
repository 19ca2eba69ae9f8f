"""The output of `gateway model drift`: a table, JSON, and an HTML page with a plot of each property."""

import html
import json
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from gateway_models.proof.html_page import embedded, page
from gateway_models.proof.plots import distributions, frequencies, projections
from gateway_models.repository.summary import console
from gateway_predictions.drift.comparison import LEAST_DISTANCE, Drift, Shift
from gateway_predictions.drift.sample import CLASS, EMBEDDING, NAMES, WindowSample

UNITS = {
    "entropy": "nats",
    "brightness": "mean luma, 0 to 1",
    "sharpness": "falls with blur",
    "pixels": "width × height",
}
_STYLE = """\
main { grid-template-columns: repeat(auto-fill, minmax(24rem, 1fr)) }
table { border-collapse: collapse; margin-bottom: 1rem }
td, th { padding: 0.2rem 0.8rem; text-align: left } .drift { color: #a40000; font-weight: 600 }
"""
_FEW_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison, and what was compared."""

    model: str
    version: str
    reference: str
    """In words: a folder, or a time."""
    window: str
    samples: tuple[WindowSample, WindowSample]
    drift: Drift

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"{self.model}, version {self.version}: {self.window} against {self.reference}"

    @property
    def verdict(self) -> str:
        """Whether there is drift, in a sentence."""
        if self.drift.alarms:
            return f"drift: {', '.join(each.name for each in self.drift.alarms)}"
        return f"no drift at a confidence of {100 * self.drift.confidence:g} %"


def as_json(compared: Compared) -> str:
    """The comparison as a JSON document."""
    named = {"model": compared.model, "version": compared.version}
    sides = {"reference": compared.reference, "window": compared.window}
    return json.dumps({**named, **sides, **compared.drift.document()}, indent=2)


def report(compared: Compared, path: Path | None) -> None:
    """Print the distance of each property and the verdict; `path` is the path of the page."""
    out = console()
    table = Table("property", "distance", "95 % interval", "p", "", box=None, pad_edge=False)
    for shift in compared.drift.shifts:
        table.add_row(*_cells(shift))
    out.print(table)
    out.print()
    out.print(f"reference  {compared.reference}: {_counted(compared.drift, 0)}")
    out.print(f"window     {compared.window}: {_counted(compared.drift, 1)}")
    for line in _remarks(compared.drift):
        out.print(line)
    out.print(f"verdict    {compared.verdict}", style="red" if compared.drift.alarms else "green")
    if path is not None:
        out.print(f"report     {path}")


def write_page(compared: Compared, path: Path) -> None:
    """Write the comparison, with a plot of each property, into one self-contained HTML file."""
    rows = "\n".join(
        f"<tr{' class=drift' if shift.is_alarm else ''}>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(shift))
        + "</tr>"
        for shift in compared.drift.shifts
    )
    headings = "".join(f"<th>{name}</th>" for name in ("property", "distance", "95 % interval", "p", ""))
    figures = "\n".join(_figure(shift, *compared.samples) for shift in compared.drift.shifts)
    lines = [
        compared.verdict.capitalize() + ".",
        f"Reference: {_counted(compared.drift, 0)}. Window: {_counted(compared.drift, 1)}.",
        *_remarks(compared.drift),
        f"A property has drifted if at most {100 * (1 - compared.drift.confidence):g} % of windows without drift have "
        f"one as improbable (p), and its distance is at least {LEAST_DISTANCE:g}.",
    ]
    text = "\n".join(f"<p>{html.escape(line)}</p>" for line in lines)
    body = f"{text}\n<table>\n<tr>{headings}</tr>\n{rows}\n</table>\n<main>\n{figures}\n</main>"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(compared.title, body, _STYLE), encoding="utf-8")


def _cells(shift: Shift) -> tuple[str, str, str, str, str]:
    low, high = shift.interval
    distance = f"{shift.distance:.3f} ({shift.method})"
    return shift.name, distance, f"{low:.3f} to {high:.3f}", f"{shift.p_value:.3f}", "drift" if shift.is_alarm else ""


def _counted(drift: Drift, side: int) -> str:
    return f"{drift.images[side]} images of {drift.requests[side]} requests"


def _remarks(drift: Drift) -> list[str]:
    """What limits the comparison."""
    if min(drift.requests) >= _FEW_REQUESTS:
        return []
    return [f"Images of one request count as one piece of evidence: fewer than {_FEW_REQUESTS} requests show little."]


def _figure(shift: Shift, reference: WindowSample, window: WindowSample) -> str:
    if shift.name == EMBEDDING:
        image = projections(reference.embeddings, window.embeddings)
    elif shift.name in NAMES:
        labels = {**reference.labels, **window.labels} if shift.name == CLASS else {}
        image = frequencies(*([labels.get(name, name) for name in side.names[shift.name] if name is not None]
                              for side in (reference, window)))  # fmt: skip
    else:
        image = distributions(reference.numbers[shift.name], window.numbers[shift.name], UNITS.get(shift.name, ""))
    alt = html.escape(f"{shift.name} of the reference and of the window", quote=True)
    caption = f"<b>{html.escape(shift.name)}</b> {html.escape(', '.join(_cells(shift)[1:3]))}"
    return f'<figure><img src="{embedded(image, "image/png")}" alt="{alt}"><figcaption>{caption}</figcaption></figure>'
