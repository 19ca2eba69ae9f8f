"""`gateway model parity|evaluate|tune`: checks a served model's results, accuracy and speed."""

import math
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gateway_cli.addresses import Triton
from gateway_cli.model.group import Gateway, GatewayKey, Name, check_gateway, model_app
from gateway_cli.terminal import Repository, emit, print_status
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_local.tuning import TUNING
from gateway_models.proof.variants import USUAL, NetworkRuntime, TuneStep
from gateway_models.repository.spec import Decode

T = TypeVar("T", float, float | None)

Images = Annotated[list[Path] | None, typer.Argument(help="Images, or folders of them; by default those in examples/.")]
Version = Annotated[
    int | None, typer.Option("--version", help="Version to use; by default the one in use.", show_default=False)
]


def a_number(value: T) -> T:
    """Validate an option: NaN is refused."""
    # NaN passes the checks of min and max.
    if isinstance(value, float) and math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value


DecodeAs = Annotated[
    Decode | None,
    typer.Option("--decode", help="How to decode large JPEGs; by default as in the model's entry.", show_default=False),
]
Tolerance = Annotated[
    float,
    typer.Option("--tolerance", help="Largest allowed difference of a probability.", min=0, max=1, callback=a_number),
]


@model_app.command("parity")
def parity(
    name: Name,
    images: Images = None,
    version: Version = None,
    tolerance: Tolerance = 1e-3,
    decode: DecodeAs = None,
    address: Triton = None,
    gateway: Gateway = None,
    api_key: GatewayKey = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Check that served results equal the original model's, with images prepared by PIL and torchvision.

    Exits with 1 if a probability differs by more than the tolerance.
    """
    from gateway_local.paths import SHIPPED_EXAMPLES
    from gateway_models.networks.model_source import labels_of
    from gateway_models.proof.image_files import NotCompared, image_files, read_image_files, resize_for
    from gateway_models.proof.over_http import OverHttp
    from gateway_models.proof.parity import Comparison, Parity, compare, compare_over_http, runs_on_gpu
    from gateway_models.proof.parity_report import report
    from gateway_models.proof.serving import serving
    from gateway_models.repository.manage import entry_with_version
    from gateway_models.repository.summary import progress

    check_gateway(gateway, address, decode)
    entry = entry_with_version(model_repository, name, version)
    files = image_files(images or [SHIPPED_EXAMPLES])
    number = version or entry.in_use
    on_gpu = False
    if gateway is not None:
        with OverHttp(gateway, name, number, api_key) as service:
            results = list(progress(compare_over_http(entry, number, service, files), len(files), "comparing"))
    else:
        inputs = read_image_files(files, resize_for(entry, decode))
        with serving(model_repository, (entry.ensemble_of(number),), print_status, url=address) as triton:
            on_gpu = runs_on_gpu(entry, triton)
            results = list(progress(compare(entry, number, triton, inputs), len(files), "comparing"))
    found = Parity(
        [each for each in results if isinstance(each, Comparison)],
        [each for each in results if isinstance(each, NotCompared)],
        on_gpu,
    )
    report(found, labels_of(entry, model_repository, number), tolerance)
    if not found.holds(tolerance):
        raise typer.Exit(1)


@model_app.command("evaluate")
def evaluate(
    name: Name,
    data: Annotated[
        Path | None,
        typer.Argument(help="A folder with a folder for each class, or a CSV of path,label.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="File for the confusion matrix; by default NAME-confusion.png.", dir_okay=False),
    ] = None,
    version: Version = None,
    decode: DecodeAs = None,
    address: Triton = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Compare the ways to decode large JPEGs and to resize: one row each, no plot."),
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="URL",
            help="Instead of DATA: the logged results that clients gave feedback on, by day, version and class.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", help="For --log: only the last days.", min=0, show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For --log: print JSON.")] = False,
) -> None:
    """Measure how often the served model is right: top-1, top-5, each class, a confusion matrix, images per second.

    Top-5 is left out for a model of five classes or fewer.
    """
    if (data is None) == (log is None):
        raise typer.BadParameter("name either DATA or --log URL")
    if log is not None:
        from gateway_cli.log_accuracy import evaluate_log

        evaluate_log(log, name, None if version is None else str(version), days, as_json=as_json)
        return
    assert data is not None
    from gateway_models.networks.model_source import labels_of
    from gateway_models.proof.alternatives import compare as alternatives
    from gateway_models.proof.dataset import read_dataset
    from gateway_models.proof.evaluate import Evaluation
    from gateway_models.proof.evaluate import evaluate as run
    from gateway_models.proof.evaluate_report import compared, report
    from gateway_models.proof.image_files import resize_for
    from gateway_models.proof.serving import serving
    from gateway_models.repository.manage import entry_with_version
    from gateway_models.repository.summary import progress

    entry = entry_with_version(model_repository, name, version)
    number = version or entry.in_use
    labels = labels_of(entry, model_repository, number)
    samples = read_dataset(data, labels, multi_label=entry.multi_label)
    if compare:
        if address is not None or decode is not None:
            raise typer.BadParameter(
                "--compare tries every --decode with its own Triton, and excludes --triton and --decode"
            )
        found = []
        for each in alternatives(entry, number, model_repository, samples, print_status):
            print_status(f"{each.described()}: top-1 {100 * each.evaluation.top(1):.2f} %")
            found.append(each)
        compared(found)
        return
    ensemble = entry.ensemble_of(number)
    evaluation = Evaluation(entry.versions[number].classes, entry.multi_label)
    with serving(model_repository, (ensemble,), print_status, url=address) as triton:
        answers = run(ensemble, triton.address, samples, evaluation, resize_for(entry, decode))
        for _ in progress(answers, len(samples), "evaluating"):
            pass
    report(evaluation, labels, plot or Path(f"{name}-confusion.png"), f"{name} on {data}")
    if not evaluation.answers:
        raise typer.Exit(1)


@model_app.command("tune")
def tune(
    name: Name,
    images: Images = None,
    tolerance: Tolerance = 1e-3,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Seconds to measure each variant.", min=0.2, max=600, callback=a_number)
    ] = 4.0,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="File for the plot; by default NAME-tuning.png.", dir_okay=False)
    ] = None,
    stages: Annotated[
        list[TuneStep] | None,
        typer.Option(
            "--try",
            help="What to vary; repeatable. By default formats, instances and batches (with --runtime only formats); "
            "minutes.",
            show_default=False,
        ),
    ] = None,
    runtimes: Annotated[
        list[NetworkRuntime] | None,
        typer.Option(
            "--runtime",
            help="Keep the fastest of these runtimes, even if the present one is faster; repeatable.",
            show_default=False,
        ),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only, without changing the model.")] = False,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Measure runtimes, precisions, instances and batch sizes here; keep the fastest variant with correct results."""
    from gateway_local.paths import SHIPPED_EXAMPLES
    from gateway_models.proof.image_files import image_files
    from gateway_models.proof.tune import Tuner, report
    from gateway_models.repository.entry import read_entry

    entry = read_entry(model_repository, name)
    usual = (TuneStep.FORMATS,) if runtimes else USUAL
    tuner = Tuner(entry, model_repository, image_files(images or [SHIPPED_EXAMPLES]), seconds, print_status)
    if runtimes:
        tuner.runtimes = frozenset(runtimes)
    with tuner:
        for measured in tuner.run(tolerance, stages or usual):
            print_status(measured.progress_line())
        best = tuner.best(tolerance)
        report(tuner.measured, best, tolerance, plot or Path(f"{name}-tuning.png"))
        if best is None:
            if not dry_run:
                tuner.record(None)
            wanted = f" by {' or '.join(sorted(runtimes))}" if runtimes else ""
            emit(f"no variant{wanted} is within the tolerance; the model is unchanged")
            raise typer.Exit(1)
        if dry_run:
            return
        tuner.keep(best.variant)
    emit(f"{name} is now served as {best.variant.described()}; the table is in {model_repository / name / TUNING}")
