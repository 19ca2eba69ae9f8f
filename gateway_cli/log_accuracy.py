"""`gateway model evaluate NAME --log URL`: what it prints."""

import json
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from gateway_cli.log import log_url, since
from gateway_cli.terminal import emit, print_status

if TYPE_CHECKING:
    from gateway_local.console import PlainConsole
    from gateway_predictions.calibration import Calibration

CLASSES_SHOWN = 30
GROUPS = {"all": "all labelled results", "drawn": "results logged and labelled at random, as of the service"}


def evaluate_log(url: str, model: str, version: str | None, days: float | None, *, as_json: bool) -> None:
    """Print the accuracy on the logged results that clients gave feedback on; exits with 1 if there are none."""
    url = log_url(url)
    from gateway_local.console import PlainConsole
    from gateway_predictions.accuracy import accuracy, calibrations
    from gateway_predictions.reader import LogReader

    known = LogReader(url).labelled(model=model, since=since(days))
    known = [each for each in known if version is None or each.row["version"] == version]
    if not known:
        print_status(f"{url} has no result of {model} with feedback: send some to POST /feedback")
        raise typer.Exit(1)
    found = accuracy(known)
    if as_json:
        documents = {name: each.document() for name, each in calibrations(known).items()}
        emit(json.dumps({**found.document(), "calibration": documents}))
        return
    out = PlainConsole()
    for title, shares in (("day", found.by_day), ("version", found.by_version)):
        table = Table(title, "images", "accuracy (95 %)", box=None, pad_edge=False)
        for name, share in shares.items():
            table.add_row(name, str(share.count), str(share))
        out.print(table)
        out.print()
    table = Table("class", "images", "recall (95 %)", "predicted", "precision (95 %)", box=None, pad_edge=False)
    for each in found.classes[:CLASSES_SHOWN]:
        table.add_row(
            each.label, str(each.recall.count), str(each.recall), str(each.precision.count), str(each.precision)
        )
    out.print(table)
    if len(found.classes) > CLASSES_SHOWN:
        out.print(f"… and {len(found.classes) - CLASSES_SHOWN} more classes; --json has all")
    out.print()
    out.print(f"all labelled results      {found.all.count}: {found.all}")
    out.print(f"logged at random          {found.sampled.count}: {found.sampled}")
    out.print(f"and labelled at random    {found.drawn.count}: {found.drawn}")
    out.print(
        "Rules log uncertain results, and users report wrong answers more often than right ones: the accuracy of the"
    )
    out.print("service is in the last line, for images that were chosen at random to be labelled.")
    for name, calibration in calibrations(known).items():
        out.print()
        _print_calibration(out, GROUPS[name], calibration)


def _print_calibration(out: "PlainConsole", what: str, calibration: "Calibration") -> None:
    """Print how the scores of the best classes compare with how often they were right."""
    table = Table("score", "images", "mean score", "right", box=None, pad_edge=False)
    for each in calibration.bins:
        table.add_row(f"{each.low:.2f} to {each.high:.2f}", str(each.images), f"{each.score:.3f}", f"{each.right:.3f}")
    out.print(f"calibration on {what}")
    out.print(table)
    out.print(f"expected calibration error  {calibration.expected_calibration_error}")
    out.print(f"Brier score                 {calibration.brier_score}")
