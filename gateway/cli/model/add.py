"""`gateway model export|add|new`: from a trained network to Triton's model repository."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.model.app import Url, model_app, reload
from gateway.cli.model.preprocessing import preprocessing_of
from gateway.cli.terminal import Repository, say
from gateway.embedded.runtime import DEFAULT_MODEL_REPOSITORY
from gateway.networks.functions import INPUTS, is_function
from gateway.networks.sources import SourceError
from gateway.repository.entry import Decode, Entry, Format, ImageTensor, Precision, Serving
from gateway.triton.contract import SEQUENCE_MODEL


class Written(StrEnum):
    """What --format takes: the formats, and two that are refused with the way to have the same."""

    TORCHSCRIPT = Format.TORCHSCRIPT.value
    ONNX = Format.ONNX.value
    EXPORTED = Format.EXPORTED.value
    FUNCTION = Format.FUNCTION.value
    TENSORRT = "tensorrt"
    AOTI = "aoti"


PREPROCESSING, SERVING = "How images were prepared in training", "How Triton runs it"


@model_app.command("export")
def export(
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing one.")] = False,
) -> None:
    """Write the default model, EfficientNet-Lite0 with its ImageNet weights, into the model repository."""
    from gateway.embedded.places import furnish
    from gateway.networks.export import export_default

    furnish(model_repository, say)
    export_default(model_repository, say, force=force)


@model_app.command("add")
def add(
    source: Annotated[
        str,
        typer.Argument(
            help="A torch.export, TorchScript or ONNX file, a folder of Hugging Face, torchvision:ARCH, timm:ARCH, "
            "huggingface:OWNER/NAME, or a Python function, FILE.py:NAME.",
            show_default=False,
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="What clients ask for.", show_default=False)],
    labels: Annotated[
        Path | None,
        typer.Option("--labels", help="File with one label per line, in the order of the classes.", dir_okay=False),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            help="As for these torchvision weights, e.g. ResNet50_Weights.IMAGENET1K_V2.",
            rich_help_panel=PREPROCESSING,
        ),
    ] = None,
    resize: Annotated[
        str | None,
        typer.Option(
            "--resize", help="Shorter side, or height,width; by default the crop's.", rich_help_panel=PREPROCESSING
        ),
    ] = None,
    crop: Annotated[
        int | None, typer.Option("--crop", help="Side of the centre crop.", rich_help_panel=PREPROCESSING)
    ] = None,
    mean: Annotated[
        str | None, typer.Option("--mean", help="R,G,B on a scale from 0 to 1.", rich_help_panel=PREPROCESSING)
    ] = None,
    std: Annotated[
        str | None, typer.Option("--std", help="R,G,B on a scale from 0 to 1.", rich_help_panel=PREPROCESSING)
    ] = None,
    interpolation: Annotated[
        str | None,
        typer.Option("--interpolation", help="bilinear (default), bicubic, …", rich_help_panel=PREPROCESSING),
    ] = None,
    resize_library: Annotated[
        str | None,
        typer.Option(
            "--resize-library",
            help="Library that training resized with: pillow (the installed one), such as pillow-12.1, or torch.",
            rich_help_panel=PREPROCESSING,
        ),
    ] = None,
    preprocessing: Annotated[
        Path | None,
        typer.Option(
            "--preprocessing",
            help="A JSON file with these, or Hugging Face's preprocessor_config.json.",
            dir_okay=False,
            rich_help_panel=PREPROCESSING,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="For torchvision:ARCH and timm:ARCH: a weights file instead of a download."),
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option("--include", help="For FILE.py:NAME, a file or folder that it imports or reads; may be repeated."),
    ] = None,
    input_form: Annotated[
        str,
        typer.Option(
            "--input",
            help=f"What FILE.py:NAME takes, where its annotation does not say: {', '.join(INPUTS)}.",
            show_default=False,
        ),
    ] = "",
    output: Annotated[
        str,
        typer.Option(
            "--output", help="Which of several outputs are the scores: a name, or a number from 0.", show_default=False
        ),
    ] = "",
    features: Annotated[
        str,
        typer.Option(
            "--features",
            help="Vectors for POST /embed: auto for what the last linear layer is given, or the name of a layer.",
            show_default=False,
        ),
    ] = "",
    sha256: Annotated[
        str | None,
        typer.Option("--sha256", help="For a SOURCE or --weights that is a URL: its checksum.", show_default=False),
    ] = None,
    precision: Annotated[
        Precision, typer.Option("--precision", help="Precision to compute in.", rich_help_panel=SERVING)
    ] = Precision.FP32,
    model_format: Annotated[
        Written | None,
        typer.Option("--format", help="Storage format; by default that of the source.", rich_help_panel=SERVING),
    ] = None,
    instances: Annotated[int, typer.Option("--instances", help="Instances to run.", rich_help_panel=SERVING)] = 2,
    preprocessor_instances: Annotated[
        int,
        typer.Option(
            "--preprocessor-instances",
            help="Processes that decode, each on one core; `gateway capacity` computes how many.",
            rich_help_panel=SERVING,
        ),
    ] = 2,
    gpus: Annotated[
        str,
        typer.Option(
            "--gpus", help="GPUs to use, such as 0,1; by default every GPU, or else the CPU.", rich_help_panel=SERVING
        ),
    ] = "",
    max_batch_size: Annotated[
        int, typer.Option("--max-batch-size", help="Maximum number of images in a batch.", rich_help_panel=SERVING)
    ] = 64,
    preferred: Annotated[
        str | None,
        typer.Option(
            "--preferred", help="Batch sizes to form, such as 8,16,32; by default 4,8.", rich_help_panel=SERVING
        ),
    ] = None,
    queue_delay_us: Annotated[
        int,
        typer.Option(
            "--queue-delay-us",
            help="Longest wait for such a batch, in µs: on a GPU, 1000 forms larger batches.",
            rich_help_panel=SERVING,
        ),
    ] = 0,
    decode: Annotated[
        Decode,
        typer.Option(
            "--decode",
            help="Large JPEGs: exact, or fast, which moves scores by some 0.01; `evaluate` measures both.",
            rich_help_panel=SERVING,
        ),
    ] = Decode.EXACT,
    tensor: Annotated[
        ImageTensor | None,
        typer.Option(
            "--tensor",
            help="What the network gets: normalised fp32 (default), or uint8 pixels, which it then normalises itself.",
            show_default=False,
            rich_help_panel=SERVING,
        ),
    ] = None,
    *,
    tensorrt: Annotated[
        bool,
        typer.Option(
            "--tensorrt",
            help="With --format onnx: NVIDIA's ONNX Runtime backend runs it by TensorRT, where there is a GPU.",
            rich_help_panel=SERVING,
        ),
    ] = False,
    pixels: Annotated[
        bool,
        typer.Option(
            "--pixels",
            help="It takes pixels of 0 to 255 and normalises them itself, in place of --mean and --std.",
            rich_help_panel=PREPROCESSING,
        ),
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="For FILE.py:NAME: its code may run here and in Triton.")
    ] = False,
    grayscale: Annotated[
        bool,
        typer.Option(
            "--grayscale",
            help="It takes one channel; --mean and --std are one number each.",
            rich_help_panel=PREPROCESSING,
        ),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="For huggingface:OWNER/NAME: only what is in its cache, no network.")
    ] = False,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache", help="Compute repeated requests again instead of caching responses.", rich_help_panel=SERVING
        ),
    ] = False,
    cache_classifier: Annotated[
        bool,
        typer.Option(
            "--cache-classifier",
            help="Cache the network's own output too: it serves the same picture encoded differently.",
            rich_help_panel=SERVING,
        ),
    ] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Write the stateful model for its streams as well, if it is missing.",
            rich_help_panel=SERVING,
        ),
    ] = False,
    sequence_model: Annotated[
        str,
        typer.Option(
            "--sequence-model",
            help="A stateful model of your own for its streams, a folder of the repository.",
            show_default=False,
            rich_help_panel=SERVING,
        ),
    ] = "",
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="Give each class a probability of its own (sigmoid).")
    ] = False,
    version: Annotated[
        int | None,
        typer.Option("--version", help="Add a version to an existing model; not in use yet."),
    ] = None,
    url: Url = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
) -> None:
    """Add a trained classifier: test it, append softmax or sigmoid if it has neither, and write it to the repository.

    SOURCE is a file of `torch.export.save(…)`, `torch.onnx.export(…)` or TorchScript, a folder or a name.
    A model that cannot be right is refused with the reason. Without --trust, no code in a file is executed.

        gateway model add flowers.pt --name flowers --labels labels.txt --like ResNet50_Weights.IMAGENET1K_V2

        gateway model add flowers.onnx --name flowers --labels labels.txt
            --resize 256 --crop 224 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225

        gateway model add torchvision:resnet50 --name resnet50

        gateway model add torchvision:resnet50 --name flowers --labels labels.txt --weights state_dict.pth

        gateway model add better.pt --name flowers --version 2

        gateway model add torchvision:resnet50 --name vectors --features auto

        gateway model add my_model.py:classify --name mine --labels labels.txt --crop 224 --trust
    """
    from gateway.repository.stateful import provide_stateful

    if stream or sequence_model:
        follower = sequence_model or SEQUENCE_MODEL
        if provide_stateful(follower, model_repository):
            say(f"wrote {model_repository / follower}")
        reload(url, load=(follower,))
    from gateway.networks.add import Request
    from gateway.networks.add import add as add_model

    serving = Serving(
        max_batch_size=max_batch_size,
        preferred=_fitting(max_batch_size) if preferred is None else _integers(preferred),
        queue_delay_us=queue_delay_us,
        instances=instances,
        preprocessor_instances=preprocessor_instances,
        gpus=_integers(gpus),
        cache=not no_cache,
        cache_classifier=cache_classifier,
        tensorrt=tensorrt,
        sequence_model=sequence_model,
        decode=decode,
    )
    if input_form not in {"", *INPUTS}:
        raise SourceError(f"{input_form!r} is not an input; use one of {', '.join(INPUTS)}")
    # A function takes pixels unless it is said otherwise; the trial finds out whether that is right.
    implied = is_function(source) and mean is None and std is None and crop is not None and not pixels
    request = Request(
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
    entry = add_model(request, model_repository, say)
    # A new ensemble brings its steps; an existing step must learn of its new version.
    reload(url, load=entry.ensembles if version is None else (entry.classifier, *entry.ensembles))
    _summary(entry, model_repository, version or entry.in_use)


def _format(wanted: Written | None) -> Format | None:
    if wanted is Written.TENSORRT:
        raise SourceError(
            "a TensorRT engine is built on the kind of GPU that will run it, by trtexec of the same TensorRT as the "
            "server's, which is not done here. In its place: --format onnx --tensorrt, by which ONNX Runtime builds "
            "the engine where it is served, in NVIDIA's image and on a GPU"
        )
    if wanted is Written.AOTI:
        raise SourceError(
            "a package of AOTInductor is machine code for the kind of processor or GPU that compiled it. NVIDIA's "
            "PyTorch backend runs it without batches (a beta since 26.03), and the Triton of `gateway up` not at all. "
            "In its place: --format torchscript or --format onnx, which run in batches"
        )
    return Format(wanted.value) if wanted else None


def _trusts(source: str) -> bool:
    """Ask on a terminal whether a function's code may run."""
    if not is_function(source) or not sys.stdin.isatty():
        return False
    return typer.confirm(f"{source} is code. Adding it runs it here, and later in Triton, with your rights. Go on?")


def _fitting(max_batch_size: int) -> tuple[int, ...]:
    return tuple(size for size in Serving().preferred if size <= max_batch_size)


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",") if part))
    except ValueError as exc:
        raise SourceError(f"{text!r} must be whole numbers separated by commas") from exc


def _summary(entry: Entry, repository: Path, version: int) -> None:
    """What was written, and how to call it."""
    from gateway.repository.summary import added

    added(entry, repository, version)


@model_app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="The new model's name; NAME.py is written here.", show_default=False)],
) -> None:
    """Write NAME.py, a commented template of a Python function for `gateway model add NAME.py:classify`."""
    from gateway.networks.functions import write_skeleton

    path = write_skeleton(name, Path.cwd())
    typer.echo(f"{path.name} is written. Change it, then:")
    typer.echo(
        f"  gateway model add {path.name}:classify --name {name} --labels labels.txt --resize 256 --crop 224 --trust"
    )
