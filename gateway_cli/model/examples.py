"""`gateway model examples`: the pictures that the web page offers to try with a model."""

from pathlib import Path
from typing import Annotated

import typer

from gateway_cli.model.group import Name, model_app
from gateway_cli.model.places import takes_bucket
from gateway_cli.terminal import Repository, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

Examples = Annotated[
    list[Path] | None,
    typer.Option(
        "--example",
        help="A picture that the web page offers to try; may be repeated. The name of its folder is its label.",
        dir_okay=False,
        exists=True,
        show_default=False,
    ),
]


@model_app.command("examples")
@takes_bucket
def examples(
    name: Name,
    pictures: Annotated[
        list[Path] | None,
        typer.Argument(help="The pictures; none removes the present ones.", dir_okay=False, exists=True),
    ] = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Replace the pictures that the web page offers to try with a model.

    They are stored beside it, scaled down and without metadata. The name of the folder is the label:

        gateway model examples flowers test/poppy/12.jpg test/violet/3.jpg
    """
    from gateway_models.networks.model_source import labels_of
    from gateway_models.repository.entry import read_entry
    from gateway_models.repository.examples import read_examples, write_examples

    entry = read_entry(model_repository, name)
    given = read_examples(pictures or [])
    labels = labels_of(entry, model_repository, entry.in_use)
    write_examples(given, model_repository / name, labels)
    print_status(f"{name} has {len(given)} example{'' if len(given) == 1 else 's'}; a page that is reloaded shows them")
