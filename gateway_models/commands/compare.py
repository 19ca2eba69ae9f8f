"""`gateway model compare`: two versions of a model on the same images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.command_line.addresses import Triton
from gateway.command_line.terminal import Repository, print_status
from gateway.errors import UserError
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.group import Name, model_app
from gateway_models.commands.proof import DecodeAs

if TYPE_CHECKING:
    from gateway_models.repository.entry import Entry


@model_app.command("compare")
def compare(
    name: Name,
    first: Annotated[int, typer.Argument(help="A version, such as the one in use.", min=1)],
    second: Annotated[int, typer.Argument(help="The other version.", min=1)],
    data: Annotated[
        Path,
        typer.Argument(help="A folder of images; for the accuracy a folder for each class, or a CSV of path,label."),
    ],
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            help="Exit with 1 beyond this share of images with another answer, such as 0.02.",
            min=0,
            max=1,
        ),
    ] = None,
    decode: DecodeAs = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Compare two versions of a model: agreement, accuracy, and whether that is chance.

    Two answers of a multi-label model agree if they have the same labels, those with a probability of at least 0.5.

        gateway model compare flowers 1 2 photos/test

        gateway model compare flowers 1 2 photos/ --tolerance 0.02

    A version can also be compared on live traffic: gateway model use flowers 1 --shadow 2=10.
    """
    from gateway_models.proof.compare import Compared
    from gateway_models.proof.dataset import read_samples
    from gateway_models.proof.report import comparison_report
    from gateway_models.proof.serving import classified

    versions = (first, second)
    entry, labels = _local(name, versions, model_repository)
    samples, labelled = read_samples(data, labels, multi_label=entry.spec.multi_label)
    answers, refused = classified(samples, entry, versions, model_repository, print_status, url=address, decode=decode)
    compared = Compared(answers, refused, labelled, entry.spec.multi_label)
    comparison_report(compared, versions, labels).print()
    if not compared.holds(tolerance):
        if compared.pairs:
            print_status(f"{100 * compared.disagreement:.2f} % differ, more than --tolerance {tolerance:g} allows")
        raise typer.Exit(1)


def _local(name: str, versions: tuple[int, int], repository: Path) -> "tuple[Entry, Sequence[str]]":
    """A model with both versions, and the labels that they must have in common."""
    from gateway_models.networks.model_source import labels_of
    from gateway_models.repository.manage import entry_with_version

    for version in versions:
        entry = entry_with_version(repository, name, version)
    labels, others = (labels_of(entry, repository, version) for version in versions)
    if labels != others:
        raise UserError(
            f"versions {versions[0]} and {versions[1]} have different classes: compare versions with the same ones"
        )
    return entry, labels
