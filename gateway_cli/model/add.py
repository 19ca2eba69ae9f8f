"""`gateway model export|add|new`: from a trained network to Triton's model repository."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.environment import load_settings
from gateway.errors import LoadFailed, UserError
from gateway.gpus import gpu_count
from gateway.triton.contract import SEQUENCE_MODEL
from gateway_cli.model import add_options as option
from gateway_cli.model.group import Url, explain_how_to_load, model_app, reload
from gateway_cli.model.preprocessing_options import preprocessing_of
from gateway_cli.terminal import Repository, emit, print_status
from gateway_local.hosts import is_loopback
from gateway_local.runtime import DEFAULT_MODEL_REPOSITORY
from gateway_models.networks.functions import INPUTS, is_function
from gateway_models.networks.model_source import SourceError
from gateway_models.repository.entry import Decode, Entry, Format, Precision, Serving


@model_app.command("export")
def export(
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing default model.")] = False,
) -> None:
    """Write the default model, EfficientNet-Lite0 with its ImageNet weights, into the model repository."""
    from gateway_local.paths import install_models
    from gateway_models.networks.export import export_default

    install_models(model_repository, print_status)
    export_default(model_repository, print_status, force=force)


@model_app.command("add")
def add(
    source: option.ModelSource,
    name: option.ModelName,
    labels: option.Labels = None,
    like: option.Like = None,
    resize: option.Resize = None,
    crop: option.Crop = None,
    mean: option.Mean = None,
    std: option.Std = None,
    interpolation: option.Interpolation = None,
    resize_library: option.ResizeLibrary = None,
    preprocessing: option.Preprocessing = None,
    weights: option.WeightsFile = None,
    include: option.Include = None,
    input_form: option.FunctionInput = "",
    output: option.ScoresOutput = "",
    features: option.Features = "",
    sha256: option.Sha256 = None,
    precision: option.ComputePrecision = Precision.FP32,
    model_format: option.StorageFormat = None,
    instances: option.Instances = None,
    preprocessor_instances: option.PreprocessorInstances = None,
    gpus: option.Gpus = "",
    max_batch_size: option.MaxBatchSize = 64,
    preferred: option.Preferred = None,
    queue_delay_us: option.QueueDelayUs = 0,
    decode: option.LargeJpegs = Decode.EXACT,
    tensor: option.Tensor = None,
    *,
    tensorrt: option.Tensorrt = False,
    pixels: option.Pixels = False,
    trust: option.Trust = False,
    grayscale: option.Grayscale = False,
    offline: option.Offline = False,
    no_cache: option.NoCache = False,
    cache_classifier: option.CacheClassifier = False,
    stream: option.Stream = False,
    sequence_model: option.SequenceModel = "",
    multi_label: option.MultiLabel = False,
    version: option.NewVersion = None,
    url: Url = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Add a trained classifier: test it, append softmax or sigmoid if it has neither, and write it to the repository.

    SOURCE is a file of `torch.export.save(…)`, `torch.onnx.export(…)` or TorchScript, a folder or a name.
    A model that fails the checks is refused with the reason. Without --trust, no code in a file is executed.

        gateway model add flowers.pt --name flowers --labels labels.txt --like ResNet50_Weights.IMAGENET1K_V2

        gateway model add flowers.onnx --name flowers --labels labels.txt
            --resize 256 --crop 224 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225

        gateway model add torchvision:resnet50 --name resnet50

        gateway model add torchvision:resnet50 --name flowers --labels labels.txt --weights state_dict.pth

        gateway model add better.pt --name flowers --version 2

        gateway model add torchvision:resnet50 --name vectors --features auto

        gateway model add my_model.py:classify --name mine --labels labels.txt --crop 224 --trust
    """
    from gateway_models.repository.stateful import provide_stateful

    if stream or sequence_model:
        stateful = sequence_model or SEQUENCE_MODEL
        if provide_stateful(stateful, model_repository):
            print_status(f"wrote {model_repository / stateful}")
        reload(url, load=(stateful,))
    from gateway.memory import usable_memory
    from gateway.triton.footprint import check_load
    from gateway_local.memory_plan import SHIPPED_COUNT, count_for_new_model, warn_of_memory
    from gateway_models.networks.add import AddRequest
    from gateway_models.networks.add import add as add_model

    count = instances
    if count is None:
        count = count_for_new_model(model_repository, _backend(source, model_format), gpus=gpu_count())
    serving = Serving(
        max_batch_size=max_batch_size,
        preferred=_fitting(max_batch_size) if preferred is None else _integers(preferred),
        queue_delay_us=queue_delay_us,
        instances=count,
        preprocessor_instances=count if preprocessor_instances is None else preprocessor_instances,
        gpus=_integers(gpus),
        cache=not no_cache,
        cache_classifier=cache_classifier,
        tensorrt=tensorrt,
        sequence_model=sequence_model,
        decode=decode,
    )
    if input_form not in {"", *INPUTS}:
        raise SourceError(f"{input_form!r} is not an input; use one of {', '.join(INPUTS)}")
    # A function gets pixels by default; the check on images shows whether that is right.
    implied = is_function(source) and mean is None and std is None and crop is not None and not pixels
    request = AddRequest(
        source=source,
        name=name,
        labels=labels,
        like=like,
        preprocessing=preprocessing_of(
            preprocessing,
            like,
            resize,
            crop,
            mean,
            std,
            interpolation,
            pixels=pixels or implied,
            grayscale=grayscale,
        ),
        input=input_form,
        output=output,
        features=features,
        pixels=pixels,
        pixels_implied=implied,
        include=tuple(include or ()),
        grayscale=grayscale,
        offline=offline,
        sha256=sha256,
        trust=trust or _trusts(source),
        weights=weights,
        precision=precision,
        format=_format(model_format),
        multi_label=multi_label,
        serving=serving,
        version=version,
        resize_library=resize_library,
        tensor=tensor,
    )
    entry = add_model(request, model_repository, print_status)
    if instances is None and count < SHIPPED_COUNT and version is None:
        print_status(f"{name} has one process for each step, because cores or memory are few; --instances 2 runs two")
    settings = load_settings()
    warn_of_memory(model_repository, settings, print_status, gpus=gpu_count())
    if url is not None and is_loopback(url):
        try:
            check_load(name, model_repository, settings.memory_check, usable_memory())
        except LoadFailed as exc:
            raise UserError(f"{name} is in {model_repository}, and Triton has not loaded it: {exc}") from exc
    # Loading a new ensemble loads its steps; an existing step must be reloaded to get its new version.
    reload(url, load=entry.ensembles if version is None else (entry.classifier, *entry.ensembles))
    _summary(entry, model_repository, version or entry.in_use)
    explain_how_to_load(name, url)


def _format(wanted: option.Written | None) -> Format | None:
    if wanted is option.Written.TENSORRT:
        raise SourceError(
            "a TensorRT engine must be built on the kind of GPU that will run it, with trtexec from the server's "
            "release of TensorRT, so it is not built here. Use --format onnx --tensorrt instead: ONNX Runtime then "
            "builds the engine where the model is served, in NVIDIA's image and on a GPU"
        )
    if wanted is option.Written.AOTI:
        raise SourceError(
            "a package of AOTInductor is machine code for the kind of processor or GPU that compiled it. NVIDIA's "
            "PyTorch backend runs it without batches (a beta since 26.03), and the Triton of `gateway up` not at all. "
            "Use --format torchscript or --format onnx instead, which run in batches"
        )
    return Format(wanted.value) if wanted else None


def _backend(source: str, wanted: option.Written | None) -> str:
    """The backend that will probably run the model."""
    if is_function(source):
        return "python"
    return "onnxruntime" if wanted is option.Written.ONNX or source.endswith(".onnx") else "pytorch"


def _trusts(source: str) -> bool:
    """Ask on a terminal whether a function's code may run."""
    if not is_function(source) or not sys.stdin.isatty():
        return False
    return typer.confirm(f"{source} is code. It will run with your permissions, here and later in Triton. Continue?")


def _fitting(max_batch_size: int) -> tuple[int, ...]:
    return tuple(size for size in Serving().preferred if size <= max_batch_size)


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",") if part))
    except ValueError as exc:
        raise SourceError(f"{text!r} must be whole numbers separated by commas") from exc


def _summary(entry: Entry, repository: Path, version: int) -> None:
    """Print the written files and how to call the model."""
    from gateway_models.repository.summary import added

    added(entry, repository, version)


@model_app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="The new model's name; NAME.py is written here.", show_default=False)],
) -> None:
    """Write NAME.py, a commented template of a Python function for `gateway model add NAME.py:classify`."""
    from gateway_models.networks.functions import write_skeleton

    path = write_skeleton(name, Path.cwd())
    emit(f"{path.name} is written. Change it, then:")
    emit(f"  gateway model add {path.name}:classify --name {name} --labels labels.txt --resize 256 --crop 224 --trust")
