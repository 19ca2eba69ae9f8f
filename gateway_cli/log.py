"""`gateway log …`: export what the prediction log has, bring back labels, and delete images from it."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import UserError
from gateway.settings import variable
from gateway_cli.addresses import DEFAULT_GATEWAY, RunningGateway
from gateway_cli.terminal import ApiKey, emit, print_status

if TYPE_CHECKING:
    import httpx


class Uncertainty(StrEnum):
    """Two classes with similar scores, scores spread over many classes, or a low best score."""

    MARGIN = "margin"
    ENTROPY = "entropy"
    SCORE = "score"


log_app = typer.Typer(
    help="The prediction log: what the models answered, for labels, evaluation and deletion.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

LogUrl = Annotated[
    str | None,
    typer.Option(
        "--log", metavar="URL", help="Folder or bucket of the log (GATEWAY_LOG_PREDICTIONS).", show_default=False
    ),
]
Days = Annotated[
    float | None, typer.Option("--days", help="Only the results of the last days.", min=0, show_default=False)
]


def log_url(given: str | None) -> str:
    """The log to use; raises LogUnavailable if none is named, there is none, or a package for its reader is missing."""
    from gateway.environment import load_settings
    from gateway_predictions.requirements import LogUnavailable, check_packages, folder_of
    from gateway_predictions.settings import PredictionLogSettings

    url = given or PredictionLogSettings.of(load_settings()).log_predictions
    if url is None:
        raise LogUnavailable(f"no prediction log is named: set --log or {variable('log_predictions')}")
    check_packages(url)
    folder = folder_of(url)
    if folder is not None and not folder.is_dir():
        raise LogUnavailable(
            f"{folder} is not a folder: name the one to which the service logs, with --log or "
            f"{variable('log_predictions')}"
        )
    return url


def since(days: float | None) -> datetime | None:
    """The time some days ago."""
    return None if days is None else datetime.now(UTC) - timedelta(days=days)


@log_app.command("forget")
def forget(
    sha256: Annotated[
        str,
        typer.Argument(metavar="HASH", help="SHA-256 of the image's file, as sha256sum prints it.", show_default=False),
    ],
    log: LogUrl = None,
) -> None:
    """Delete one image from the log: its file, its rows, and the feedback on them."""
    url = log_url(log)
    from gateway_predictions.forget import forget as run
    from gateway_predictions.reader import LogReader

    done = run(LogReader(url), sha256)
    emit(f"deleted from {url}: {done.rows} rows, {done.feedback} feedbacks, {done.images} image files")
    print_status(
        "a running service may have rows that are not written yet: repeat this after "
        f"{variable('log_predictions_file_seconds')}"
    )


@log_app.command("export")
def export(
    folder: Annotated[
        Path, typer.Argument(help="New folder for the table and the images.", file_okay=False, show_default=False)
    ],
    log: LogUrl = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model's results.", show_default=False)] = None,
    days: Days = None,
    most_uncertain: Annotated[
        int | None,
        typer.Option(
            "--most-uncertain", metavar="N", help="Only the N most uncertain images.", min=1, show_default=False
        ),
    ] = None,
    by: Annotated[Uncertainty, typer.Option("--by", help="What uncertain means.")] = Uncertainty.MARGIN,
    *,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Only images without feedback.")] = False,
    diverse: Annotated[
        bool,
        typer.Option("--diverse/--similar", help="Whether embeddings, if there are any, spread the uncertain images."),
    ] = True,
) -> None:
    """Write logged results to a folder to be labelled: a CSV, the images, and tasks for Label Studio."""
    source = log_url(log)
    from gateway_predictions.export import ExportSelection
    from gateway_predictions.export import export as run
    from gateway_predictions.reader import LogReader

    wanted = ExportSelection(model, since(days), unlabelled, most_uncertain, by, diverse)
    count = run(LogReader(source), folder, wanted)
    emit(f"{folder}: {count} images to label")


@log_app.command("import")
def import_labels(
    file: Annotated[
        Path,
        typer.Argument(help="The exported labels.csv, filled in, or Label Studio's JSON export.", show_default=False),
    ],
    url: RunningGateway = DEFAULT_GATEWAY,
    api_key: ApiKey = None,
) -> None:
    """Send the labels that people gave to a service as feedback; exits with 1 if it refuses any."""
    import httpx

    from gateway_predictions.label_files import read_labels

    labels = read_labels(file)
    refused = 0
    headers = {"X-API-Key": api_key} if api_key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        for label in labels:
            try:
                response = client.post("/feedback", json=label.feedback)
            except httpx.HTTPError as exc:
                raise UserError(f"{url} does not answer: {exc}") from exc
            if not response.is_success:
                refused += 1
                print_status(f"{label.request_id}, image {label.index}: {_reason(response)}")
    emit(f"{len(labels) - refused} of {len(labels)} labels sent to {url}")
    raise typer.Exit(bool(refused))


def _reason(response: "httpx.Response") -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"
