"""`gateway model compare`: two versions of a model on the same images."""

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway_cli.addresses import Triton
from gateway_cli.model.group import Gateway, Name, check_gateway, model_app
from gateway_cli.model.proof import DecodeAs, a_number
from gateway_cli.terminal import ApiKey, Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.repository.spec import Decode

if TYPE_CHECKING:
    from gateway_models.proof.dataset import Sample
    from gateway_models.proof.evaluate import SampleAnswer
    from gateway_models.repository.entry import Entry


def _versions(context: typer.Context, incomplete: str) -> list[str]:
    """Shell completion: the versions of the model on the command line."""
    from gateway.errors import UserError
    from gateway_models.repository.entry import read_entry

    repository = Path(context.params.get("model_repository") or DEFAULT_MODEL_REPOSITORY)
    try:
        entry = read_entry(repository, context.params.get("name") or "")
    except (UserError, OSError):
        return []
    taken = context.params.get("first")
    return [str(each) for each in sorted(entry.versions) if str(each).startswith(incomplete) and each != taken]


@model_app.command("compare")
def compare(
    name: Name,
    first: Annotated[
        int,
        typer.Argument(help="A version, such as the one in use.", show_default=False, autocompletion=_versions, min=1),
    ],
    second: Annotated[
        int, typer.Argument(help="The other version.", show_default=False, autocompletion=_versions, min=1)
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of images. If it has a folder for each class, or is a CSV of path,label, accuracy is "
            "compared as well.",
            show_default=False,
        ),
    ],
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            help="Largest allowed share of images with a different top class, such as 0.02; exits with 1 beyond it.",
            min=0,
            max=1,
            callback=a_number,
            show_default=False,
        ),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            "--sheet", help="HTML file for the images that differ; by default NAME-FIRST-SECOND.html.", dir_okay=False
        ),
    ] = None,
    decode: DecodeAs = None,
    address: Triton = None,
    gateway: Gateway = None,
    api_key: ApiKey = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON document; write a sheet only with --sheet.")
    ] = False,
) -> None:
    """Compare two versions of a model: how often they agree, which is right more often, and whether that is chance.

    The images on which they differ go to a sheet, an HTML file to look through before a version is put into use.

        gateway model compare flowers 1 2 photos/test

        gateway model compare flowers 1 2 photos/ --tolerance 0.02 --gateway http://127.0.0.1:8080

    A version can also be compared on live traffic: GATEWAY_MODEL_SHADOW=flowers=2:10.
    """
    from gateway_models.proof.compare import Compared
    from gateway_models.proof.compare import compare as run
    from gateway_models.proof.dataset import read_samples
    from gateway_models.proof.over_http import described, predict_over_http
    from gateway_models.proof.report import as_json, comparison_report, write_sheet
    from gateway_models.repository.summary import progress

    if first == second:
        raise typer.BadParameter(f"version {first} is compared with itself: name two versions")
    check_gateway(gateway, address, decode)
    versions = (first, second)
    if gateway is not None:
        model = described(gateway, name, api_key)
        labels = model["labels"]
        samples, labelled = read_samples(data, labels, multi_label=bool(model.get("multi_label")))
        answers = predict_over_http(gateway, name, versions, samples, api_key)
    else:
        entry, labels = _local(name, versions, model_repository)
        samples, labelled = read_samples(data, labels, multi_label=entry.multi_label)
        answers = _on_triton(entry, versions, samples, decode, address, model_repository)
    with contextlib.closing(answers):
        compared = Compared.of(progress(run(answers), len(samples), "comparing"), labelled=labelled)
    sheet_path = sheet or (None if json else Path(f"{name}-{first}-{second}.html"))
    if sheet_path is not None and compared.different:
        write_sheet(compared, name, versions, labels, sheet_path)
    if json:
        typer.echo(as_json(compared, name, versions, labels, tolerance))
    else:
        comparison_report(compared, versions, labels).print()
        if compared.different:
            emit(f"sheet: {sheet_path}")
    if not compared.holds(tolerance):
        if compared.pairs:
            print_status(f"{100 * compared.disagreement:.2f} % differ, more than --tolerance {tolerance:g} allows")
        raise typer.Exit(1)


def _local(name: str, versions: tuple[int, int], repository: Path) -> "tuple[Entry, Sequence[str]]":
    """A model with both versions, and the labels that they must have in common."""
    from gateway_models.networks.model_source import labels_of
    from gateway_models.proof.compare import NotComparable
    from gateway_models.repository.manage import entry_with_version

    for version in versions:
        entry = entry_with_version(repository, name, version)
    labels, others = (labels_of(entry, repository, version) for version in versions)
    if labels != others:
        raise NotComparable(
            f"versions {versions[0]} and {versions[1]} have different classes: compare versions with the same ones"
        )
    return entry, labels


def _on_triton(
    entry: "Entry",
    versions: tuple[int, int],
    samples: "Sequence[Sample]",
    decode: Decode | None,
    address: str | None,
    repository: Path,
) -> "Generator[tuple[SampleAnswer, ...]]":
    from gateway_models.proof.evaluate import predict_each
    from gateway_models.proof.image_files import resize_for
    from gateway_models.proof.serving import serving

    ensembles = tuple(entry.ensemble_of(version) for version in versions)
    with serving(repository, ensembles, print_status, url=address) as triton:
        yield from predict_each(ensembles, triton.address, samples, resize_for(entry, decode))
