"""Model repositories on the command line: folders, and buckets, of which a command gets a working copy."""

import inspect
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.command_line.terminal import print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.group import model_app

Place = Annotated[
    str,
    typer.Option(
        "--model-repository",
        help="Folder of Triton's models, by default triton_models; or s3://BUCKET/PATH, gs://, as://.",
        show_default=False,
    ),
]


def takes_bucket(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with a `model_repository`: a bucket's is a copy, and its changes are written back."""

    @wraps(command)
    def run(*, model_repository: str, **values: Any) -> None:  # noqa: ANN401  # of the options
        from gateway_models.repository.bucket import is_bucket, working_copy

        if not is_bucket(model_repository):
            folder = Path(model_repository)
            if folder.exists() and not folder.is_dir():
                raise typer.BadParameter(f"{folder} is a file", param_hint="--model-repository")
            command(model_repository=folder, **values)
            return
        if values.get("address") is not None:
            raise typer.BadParameter(
                "--triton excludes a bucket: Triton servers that follow it load the change by themselves "
                "(gateway model pull --follow); others load it with POST /models/NAME/load and an admin key"
            )
        with working_copy(model_repository) as copy:
            command(model_repository=copy.folder, **values)
            if count := copy.publish():
                objects = f"{count} object{'s' * (count > 1)}"
                print_status(f"wrote {objects} into {model_repository}; Triton servers that follow it load the change")

    signature = inspect.signature(command, eval_str=True)
    place = inspect.Parameter(
        "model_repository", inspect.Parameter.KEYWORD_ONLY, default=str(DEFAULT_MODEL_REPOSITORY), annotation=Place
    )
    parameters = [
        place if name == place.name else parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@model_app.command("pull", hidden=True)
def pull(
    url: Annotated[str, typer.Argument(help="Bucket: s3://BUCKET/PATH, gs://… or as://ACCOUNT/CONTAINER/PATH.")],
    folder: Annotated[Path, typer.Argument(help="Folder for its models, which Triton serves.", file_okay=False)],
    follow: Annotated[
        float, typer.Option(help="Seconds between two checks of the bucket; 0: copy once and end.", min=0)
    ] = 0.0,
    triton: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="HTTP address of the Triton that loads the changes, such as http://127.0.0.1:8000."
        ),
    ] = None,
) -> None:
    """Copy the model repository of a bucket into a folder; --follow keeps it up to date.

    Triton in a pod serves the folder: an init container copies the bucket before it starts, and a container beside it
    follows. Models that change are loaded by --triton, steps before ensembles; no request fails meanwhile.
    """
    from gateway_models.repository.bucket import RepositoryBucket
    from gateway_models.repository.follow import SETTLE_SECONDS, Follower, load_models
    from gateway_models.repository.follow import follow as follow_bucket

    follower = Follower(RepositoryBucket(url), folder)
    changed = follower.update()
    print_status(f"{folder} has the models of {url}{f': {len(changed)} were copied' if changed else ''}")
    if follow:

        def load(models: set[str]) -> set[str]:
            if triton is None:
                return set()
            time.sleep(SETTLE_SECONDS)
            return load_models(triton, folder, models, print_status)

        follow_bucket(follower, follow, print_status, load)
