"""The output of `gateway model evaluate NAME --log URL`."""

import typer

from gateway.command_line.terminal import emit, print_status
from gateway_models.commands.predictions import log_url, since


def evaluate_log(url: str, model: str, version: str | None, days: float | None) -> None:
    """Print the accuracy on the logged results that clients gave feedback on; exits with 1 if there are none."""
    url = log_url(url)
    from gateway_models.predictions.accuracy import accuracy, by_class, drawn, grouped
    from gateway_models.predictions.reader import LogReader
    from gateway_models.predictions.shares import CLASS_COLUMNS
    from gateway_models.repository.summary import Report

    known = LogReader(url).labelled(model=model, since=since(days))
    known = [each for each in known if version is None or each.row["version"] == version]
    if not known:
        print_status(f"{url} has no result of {model} with feedback: send some to POST /feedback")
        raise typer.Exit(1)
    by_day = grouped(known, lambda each: f"{each.row['time']:%Y-%m-%d}")
    by_version = grouped(known, lambda each: each.row["version"] or "")
    for title, shares in (("day", by_day), ("version", by_version)):
        rows = [(name, str(share.count), str(share)) for name, share in shares.items()]
        Report((title, "images", "accuracy (95 %)"), rows).print()
    shares = {"all labelled results": accuracy(known), "logged and labelled at random": accuracy(drawn(known))}
    facts = {name: f"{share.count}: {share}" for name, share in shares.items()}
    Report(CLASS_COLUMNS, [each.row for each in by_class(known)], facts=facts).print()
    emit(
        "Rules log uncertain results, and users report wrong answers more often than right ones: the accuracy of the",
        "service is in the last line, for images that were chosen at random to be labelled.",
    )
