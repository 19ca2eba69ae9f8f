"""`gateway model drift`: whether a model's inputs and answers are still distributed as in a reference."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.command_line.addresses import Triton
from gateway.command_line.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.group import Name, explain_how_to_load, model_app, reload
from gateway_models.commands.predictions import LogUrl, log_url

if TYPE_CHECKING:
    from gateway_models.predictions.reader import LogReader

DRIFTED = 3
"""The exit status of a window that has drifted; 1 means an error, such as too few images."""
MAX_DAYS = 10_000


@model_app.command("drift")
def drift(
    name: Name,
    reference: Annotated[
        str,
        typer.Option("--reference", metavar="LOG|DAYS", help="Another log, or how many days of the log before --days."),
    ],
    log: LogUrl = None,
    days: Annotated[
        float, typer.Option("--days", help="The window: the last days of the log.", min=0.001, max=MAX_DAYS)
    ] = 1.0,
    version: Annotated[
        int | None, typer.Option("--version", help="By default the one with most images in the window.")
    ] = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    store: Annotated[
        bool,
        typer.Option(
            "--store",
            help="Store the reference with the model, for the metrics of a running service, instead of a comparison.",
        ),
    ] = False,
) -> None:
    """Compare logged images and answers with a reference; exits with 3 if they have drifted.

    Compared are the best class, score and entropy, and the size and format of the image, by the rows that were logged
    at random.

        gateway model drift flowers --log /var/lib/gateway/log --reference /var/lib/gateway/expected

        gateway model drift flowers --log s3://bucket/log --reference 28 --days 1 || mail …

    A cron job learns from the exit status: 0 without drift, 3 with drift, 1 if it could not be measured.
    """
    if address is not None and not store:
        raise typer.BadParameter("it reloads the model after --store, which is missing", param_hint="--triton")
    before = _days(reference)
    expected = log_url(log) if before else log_url(reference)
    from gateway_models.predictions.drift import CONFIDENCE, compare, sample_from, version_in
    from gateway_models.predictions.reader import LogReader

    now = datetime.now(UTC)
    if store:
        since = now - timedelta(days=before) if before else None
        _store(name, version, LogReader(expected), since, address, model_repository)
        return
    reader, begin = LogReader(log_url(log)), now - timedelta(days=days)
    number = str(version) if version is not None else version_in(reader, name, begin, now)
    window = sample_from(reader, name, number, begin, now)
    period = (begin - timedelta(days=before), begin) if before else (None, None)
    shifts = compare(sample_from(LogReader(expected), name, number, *period), window)
    side = f"the {before:g} days before" if before else expected
    emit(f"{name}, version {number}: the last {days:g} days against {side}")
    for each in shifts:
        sides = f"{each.reference} and {each.window} images"
        mark = "  drift" if each.drift else ""
        emit(f"{each.name:<11}{each.distance:.3f} ({each.method}), p {each.p_value:.3f}, {sides}{mark}")
    alarms = [shift.name for shift in shifts if shift.drift]
    verdict = f"drift: {', '.join(alarms)}" if alarms else f"no drift at a confidence of {100 * CONFIDENCE:g} %"
    emit(f"verdict    {verdict}")
    if alarms:
        raise typer.Exit(DRIFTED)


def _days(reference: str) -> float | None:
    """The number of days of a reference; None if it is another log."""
    try:
        days = float(reference)
    except ValueError:
        return None
    if not 0 < days <= MAX_DAYS:  # neither NaN nor infinity
        raise typer.BadParameter(f"{reference} is not a number of days up to {MAX_DAYS:,}", param_hint="--reference")
    return days


def _store(
    name: str, version: int | None, log: "LogReader", since: datetime | None, address: str | None, repository: Path
) -> None:
    """Store the sample of a log with a version, by default the one in use, in the configuration of its ensemble."""
    from gateway_models.predictions.drift import reference_of, sample_from
    from gateway_models.repository.manage import entry_with_version
    from gateway_models.repository.writing import rewrite

    entry = entry_with_version(repository, name, version)
    number = version or entry.in_use
    sample = sample_from(log, name, str(number), since, None)
    changed = replace(entry.versions[number], drift_reference=reference_of(sample).text())
    rewrite(replace(entry, versions={**entry.versions, number: changed}), repository)
    print_status(f"{sample.images} images are the reference of version {number} of {name} in {repository}")
    reload(address, load=entry.ensembles)
    explain_how_to_load(name, address)
