"""`gateway predictions …`: export logged results, import their labels, and delete images from the log."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.command_line.addresses import DEFAULT_GATEWAY, RunningGateway
from gateway.command_line.terminal import ApiKey, emit, print_status
from gateway.errors import UserError
from gateway.settings import variable

if TYPE_CHECKING:
    import httpx

predictions_app = typer.Typer(
    help="The prediction log: what the models answered, for labels, evaluation and deletion.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

LogUrl = Annotated[
    str | None, typer.Option("--log", metavar="URL", help="Folder or bucket of the log (GATEWAY_LOG_PREDICTIONS).")
]


def log_url(given: str | None) -> str:
    """The log to use; raises LogUnavailable if none is named, there is none, or a package for its reader is missing."""
    from gateway.environment import load_settings
    from gateway_models.predictions.settings import PredictionLogSettings
    from gateway_models.predictions.store import LogUnavailable, check_packages, folder_of

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


@predictions_app.command("forget")
def forget(
    sha256: Annotated[str, typer.Argument(metavar="HASH", help="SHA-256 of the image's file.")],
    log: LogUrl = None,
) -> None:
    """Delete an image from the log: file, rows and feedback."""
    url = log_url(log)
    from gateway_models.predictions.forget import forget as run
    from gateway_models.predictions.reader import LogReader

    rows, feedback, images = run(LogReader(url), sha256)
    emit(f"deleted from {url}: {rows} rows, {feedback} feedbacks, {images} image files")
    print_status("a running service may have rows that are not written yet: repeat this after a minute")


@predictions_app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="New folder for the tasks and the images.", file_okay=False)],
    log: LogUrl = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model's results.")] = None,
    days: Annotated[float | None, typer.Option("--days", help="Only the results of the last days.", min=0)] = None,
    most_uncertain: Annotated[
        int | None,
        typer.Option(
            "--most-uncertain", metavar="N", help="Only the N images whose two best scores differ least.", min=1
        ),
    ] = None,
    random: Annotated[
        int | None,
        typer.Option(
            "--random",
            metavar="N",
            help="Only N images that were logged at random; their labels give the accuracy.",
            min=1,
        ),
    ] = None,
    image_url: Annotated[
        str | None,
        typer.Option(
            "--image-url", metavar="URL", help="URL of the log's images, such as s3://bucket/log; none is copied."
        ),
    ] = None,
) -> None:
    """Write logged results without feedback to a folder: the images, and tasks for Label Studio."""
    if random is not None and most_uncertain is not None:
        raise typer.BadParameter("not with --most-uncertain, which prefers images", param_hint="--random")
    source = log_url(log)
    from gateway_models.predictions.labels import choose
    from gateway_models.predictions.labels import export as run
    from gateway_models.predictions.reader import LogReader

    reader = LogReader(source)
    rows = choose(reader, model=model, since=since(days), uncertain=most_uncertain, drawn=random)
    run(reader, rows, folder, image_url=image_url)
    emit(f"{folder}: {len(rows)} images to label")


@predictions_app.command("import")
def import_labels(
    file: Annotated[Path, typer.Argument(help="Label Studio's JSON export.")],
    url: RunningGateway = DEFAULT_GATEWAY,
    api_key: ApiKey = None,
) -> None:
    """Send labels to a service as feedback; exits with 1 if it refuses any."""
    import httpx

    from gateway_models.predictions.labels import read_labels

    labels = read_labels(file)
    refused = 0
    headers = {"X-API-Key": api_key} if api_key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        for label in labels:
            try:
                response = client.post("/feedback", json=label)
            except httpx.HTTPError as exc:
                raise UserError(f"{url} does not answer: {exc}") from exc
            if not response.is_success:
                refused += 1
                print_status(f"{label['request_id']}, image {label['index']}: {_reason(response)}")
    emit(f"{len(labels) - refused} of {len(labels)} labels sent to {url}")
    raise typer.Exit(bool(refused))


def _reason(response: "httpx.Response") -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"
