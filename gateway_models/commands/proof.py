"""`gateway model verify|evaluate|tune`: checks a served model's results, accuracy and speed."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.command_line.addresses import Triton
from gateway.command_line.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.group import Name, model_app
from gateway_models.repository.spec import Decode

Images = Annotated[
    list[Path] | None, typer.Argument(help="Images, or folders of them; by default those in docs/examples/.")
]
Version = Annotated[int | None, typer.Option("--version", help="Version to use; by default the one in use.")]


DecodeAs = Annotated[
    Decode | None, typer.Option("--decode", help="How to decode large JPEGs; by default as in the model's entry.")
]
Tolerance = Annotated[
    float, typer.Option("--tolerance", help="Largest allowed difference of a probability.", min=0, max=1)
]


@model_app.command("verify")
def verify(
    name: Name,
    images: Images = None,
    version: Version = None,
    tolerance: Tolerance = 1e-3,
    decode: DecodeAs = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Check that served results equal the original model's.

    Exits with 1 if a probability differs by more than the tolerance.
    """
    from gateway_local.paths import SHIPPED_EXAMPLES
    from gateway_models.networks.model_source import labels_of
    from gateway_models.proof.image_files import image_files, parted
    from gateway_models.proof.parity import Parity, compare_served, runs_on_gpu
    from gateway_models.proof.report import parity_report
    from gateway_models.proof.serving import serving
    from gateway_models.repository.manage import entry_with_version
    from gateway_models.repository.summary import progress

    entry = entry_with_version(model_repository, name, version)
    files = image_files(images or [SHIPPED_EXAMPLES])
    number = version or entry.in_use
    with serving(model_repository, (entry.ensemble_of(number),), print_status, url=address) as triton:
        results = compare_served(entry, number, triton, files, decode)
        on_gpu = runs_on_gpu(entry, triton)
        found = Parity(*parted(progress(results, len(files), "comparing")), on_gpu)
    parity_report(found, labels_of(entry, model_repository, number), tolerance).print()
    if not found.holds(tolerance):
        raise typer.Exit(1)


@model_app.command("evaluate")
def evaluate(
    name: Name,
    data: Annotated[
        Path | None, typer.Argument(help="A folder with a folder for each class, or a CSV of path,label.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="File for the confusion matrix; by default NAME-confusion.png.", dir_okay=False),
    ] = None,
    version: Version = None,
    decode: DecodeAs = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    log: Annotated[
        str | None,
        typer.Option(
            "--log", metavar="URL", help="Instead of DATA: logged results with feedback, by day, version and class."
        ),
    ] = None,
    days: Annotated[float | None, typer.Option("--days", help="For --log: only the last days.", min=0)] = None,
) -> None:
    """Measure how often the served model is right: top-1, top-5, each class, a confusion matrix.

    Top-5 is left out for a model of five classes or fewer.
    """
    if (data is None) == (log is None):
        raise typer.BadParameter("name either DATA or --log URL")
    if log is None and days is not None:
        raise typer.BadParameter("--days is for --log")
    if log is not None and (plot is not None or decode is not None or address is not None):
        raise typer.BadParameter("--plot, --decode and --triton are for DATA")
    if log is not None:
        from gateway_models.commands.log_accuracy import evaluate_log

        evaluate_log(log, name, None if version is None else str(version), days)
        return
    assert data is not None
    from gateway_models.networks.model_source import labels_of
    from gateway_models.proof.dataset import read_dataset
    from gateway_models.proof.evaluate import Evaluation
    from gateway_models.proof.plots import confusion_matrix
    from gateway_models.proof.report import evaluation_report
    from gateway_models.proof.serving import classified
    from gateway_models.repository.manage import entry_with_version

    entry = entry_with_version(model_repository, name, version)
    number = version or entry.in_use
    labels = labels_of(entry, model_repository, number)
    samples = read_dataset(data, labels, multi_label=entry.spec.multi_label)
    answers, refused = classified(samples, entry, (number,), model_repository, print_status, url=address, decode=decode)
    evaluation = Evaluation(entry.versions[number].classes, entry.spec.multi_label, answers, refused)
    evaluation_report(evaluation, labels).print()
    if not evaluation.answers:
        raise typer.Exit(1)
    plot = plot or Path(f"{name}-confusion.png")
    plot.parent.mkdir(parents=True, exist_ok=True)
    confusion_matrix(evaluation.confusion(), labels, plot, f"{name} on {data}")
    emit(f"confusion matrix: {plot}")


@model_app.command("tune")
def tune(
    name: Name,
    images: Images = None,
    tolerance: Tolerance = 1e-3,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Seconds to measure each variant.", min=0.2, max=600)
    ] = 4.0,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only, without changing the model.")] = False,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Measure runtimes and precisions of a network here; keep the fastest correct one."""
    from gateway_local.paths import SHIPPED_EXAMPLES
    from gateway_models.proof.image_files import image_files
    from gateway_models.proof.tune import Tuner, report
    from gateway_models.repository.entry import read_entry

    entry = read_entry(model_repository, name)
    tuner = Tuner(entry, model_repository, image_files(images or [SHIPPED_EXAMPLES]), seconds, print_status)
    with tuner:
        for measured in tuner.run():
            print_status(measured.progress_line())
        best = tuner.best(tolerance)
        report(tuner.measured, best, tolerance)
        if not dry_run and best is not None:
            tuner.keep(best.variant)
    if best is None:
        emit("no variant is within the tolerance; the model is unchanged")
        raise typer.Exit(1)
    if not dry_run:
        emit(f"{name} is now served as {best.variant.described()}")
