"""`gateway model drift`: whether a model's inputs and answers are still distributed as in a reference."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.command_line.addresses import Triton
from gateway.command_line.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.group import Name, explain_how_to_load, model_app, reload
from gateway_models.commands.predictions import LogUrl, log_url
from gateway_models.commands.proof import a_number

if TYPE_CHECKING:
    from gateway_models.predictions.drift import WindowSample

DRIFTED = 3
"""The exit status of a window that has drifted; 1 means an error, such as too few images."""


@model_app.command("drift")
def drift(
    name: Name,
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            metavar="FOLDER|DAYS",
            help="A folder of images, or how many days of the log before --days.",
            show_default=False,
        ),
    ],
    log: LogUrl = None,
    days: Annotated[
        float, typer.Option("--days", help="The window: the last days of the log.", min=0.001, callback=a_number)
    ] = 1.0,
    version: Annotated[
        int | None,
        typer.Option("--version", help="By default the one with most images in the window.", show_default=False),
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
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Compare logged images and answers with a reference; exits with 3 if they have drifted.

    Compared are the best class, score and entropy, and the size and format of the image, by the rows that were logged
    at random.

        gateway model drift flowers --log /var/lib/gateway/log --reference photos/validation

        gateway model drift flowers --log s3://bucket/log --reference 28 --days 1 --json || mail …

    A cron job learns from the exit status: 0 without drift, 3 with drift, 1 if it could not be measured.
    """
    folder, before = _reference(reference)
    if store and as_json:
        raise typer.BadParameter("--json is for a comparison, and --store makes none")
    now = datetime.now(UTC)
    if store:
        _store(name, version, folder, now - timedelta(days=before), log, address, model_repository)
        return
    source = log_url(log)
    from gateway_models.predictions.drift import CONFIDENCE, compare, sample_from, version_in
    from gateway_models.predictions.reader import LogReader

    reader = LogReader(source)
    begin = now - timedelta(days=days)
    number = str(version) if version is not None else version_in(reader, name, begin, now)
    window = sample_from(reader, name, number, begin, now)
    if folder is not None:
        expected = _classified(name, int(number), folder, address, model_repository)
    else:
        expected = sample_from(reader, name, number, begin - timedelta(days=before), begin)
    shifts = compare(expected, window)
    side = str(folder) if folder else f"the {before:g} days before"
    title = f"{name}, version {number}: the last {days:g} days against {side}"
    alarms = [shift.name for shift in shifts if shift.drift]
    if as_json:
        properties = [asdict(shift) for shift in shifts]
        facts = {"model": name, "version": number, "drift": bool(alarms), "confidence": CONFIDENCE}
        emit(json.dumps({**facts, "properties": properties}))
    else:
        emit(title)
        for each in shifts:
            sides = f"{each.reference} and {each.window} images"
            mark = "  drift" if each.drift else ""
            emit(f"{each.name:<11}{each.distance:.3f} ({each.method}), p {each.p_value:.3f}, {sides}{mark}")
        verdict = f"drift: {', '.join(alarms)}" if alarms else f"no drift at a confidence of {100 * CONFIDENCE:g} %"
        emit(f"verdict    {verdict}")
    if alarms:
        raise typer.Exit(DRIFTED)


def _reference(given: str) -> tuple[Path | None, float]:
    """The folder of a reference, or None and a number of days."""
    if Path(given).is_dir():
        return Path(given), 0.0
    try:
        days = float(given)
    except ValueError:
        days = 0.0
    if not 0 < days <= 10_000:  # neither NaN nor infinity
        raise typer.BadParameter(
            f"{given} is neither a folder nor a number of days up to 10,000", param_hint="--reference"
        )
    return None, days


def _classified(name: str, version: int, folder: Path, address: str | None, repository: Path) -> "WindowSample":
    """The sample of a folder's images, classified by a Triton."""
    from gateway_models.networks.model_source import labels_of
    from gateway_models.predictions.drift import sample_of
    from gateway_models.proof.drift import chosen_samples, described
    from gateway_models.proof.image_files import parted, reasons
    from gateway_models.proof.serving import classifying
    from gateway_models.repository.manage import entry_with_version

    entry = entry_with_version(repository, name, version)
    samples = chosen_samples(folder)
    with classifying(samples, entry, (version,), repository, print_status, url=address) as answers:
        found, refused = parted(described(answers, multi_label=entry.multi_label))
    for line in reasons(refused):
        print_status(f"left out: {line}")
    labels = {str(number): label for number, label in enumerate(labels_of(entry, repository, version))}
    return sample_of(found, labels)


def _store(
    name: str,
    version: int | None,
    folder: Path | None,
    since: datetime,
    log: str | None,
    address: str | None,
    repository: Path,
) -> None:
    """Store the sample of a folder, or of the last days of the log, with a version, by default the one in use."""
    from gateway_models.repository.manage import entry_with_version

    entry = entry_with_version(repository, name, version)
    number = version or entry.in_use
    if folder is not None:
        sample = _classified(name, number, folder, address, repository)
    else:
        source = log_url(log)
        from gateway_models.predictions.drift import sample_from
        from gateway_models.predictions.reader import LogReader

        sample = sample_from(LogReader(source), name, str(number), since, None)
    from gateway_models.proof.drift import store

    store(entry, number, sample, repository)
    print_status(f"{sample.images} images are the reference of version {number} of {name} in {repository}")
    reload(address, load=entry.ensembles)
    explain_how_to_load(name, address)
