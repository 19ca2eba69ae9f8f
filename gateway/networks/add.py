"""`gateway model add`: from a trained network to a model repository entry."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.embedded.places import at
from gateway.gpus import gpu_count
from gateway.networks.download import fetch, is_remote
from gateway.networks.functions import Said
from gateway.networks.isolation import TIMEOUT_SECONDS, Job, Say, work
from gateway.networks.model_source import (
    Source,
    SourceError,
    find_labels,
    find_preprocessing,
    find_source,
    read_labels,
    repeated,
)
from gateway.repository.entry import (
    Entry,
    EntryError,
    Format,
    ImageTensor,
    Precision,
    Serving,
    Version,
    check_name,
    classifier_of,
    entry_names,
    preprocessor_of,
    read_entry,
)
from gateway.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway.repository.retired import retired
from gateway.repository.writing import LABELS, check_free, extend, staging, write


@dataclass(frozen=True, slots=True)
class Request:
    """What to add. `version` None means a new model; a number adds to one that is there, with the same labels.

    `format` None is the source's own. `preprocessing` None means torchvision's of `like`, or of the architecture.
    `resize_library` None means that of the versions that are there, or what the preprocessing says.
    """

    source: str
    name: str
    labels: Path | None = None
    like: str | None = None
    preprocessing: Preprocessing | None = None
    weights: str | None = None
    precision: Precision = Precision.FP32
    format: Format | None = None
    multi_label: bool = False
    serving: Serving = field(default_factory=Serving)
    version: int | None = None
    resize_library: str | None = None
    tensor: ImageTensor | None = None
    """None is that of the versions that are there, or fp32."""
    input: str = ""
    """What it takes, one of functions.INPUTS; "" to find it out."""
    output: str = ""
    """Which of several outputs are the scores, by name or number."""
    pixels: bool = False
    """Whether the images are pixels of 0 to 255, whatever mean and std `like` or `preprocessing` have."""
    pixels_implied: bool = False
    """Whether `preprocessing` leaves pixels as they are only because no mean and std were said."""
    include: tuple[Path, ...] = ()
    """Files and folders that go with a function."""
    trust: bool = False
    """Whether the code of a function may run here."""
    grayscale: bool = False
    """Whether it takes one channel; mean and std are three times the same."""
    sha256: str | None = None
    """Of the source, or of the weights, where that is a URL."""
    offline: bool = False
    """Whether no network is asked for what is not here."""
    features: str = ""
    """The layer whose vectors it gives as FEATURES, or AUTO; "" for none, or as the other versions do."""


def add(request: Request, repository: Path, say: Say, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Entry:
    """Write a model's folders into a repository and return its entry; raises UserError.

    Whatever stops it, an interrupt as well, leaves the repository as it was.
    """
    check_name(request.name)
    check_gpus(request.serving)
    old = _entry_to_extend(request, repository)
    if old is None:
        _check_folders_are_free(request.name, repository)
    request = fetched(request, say)
    source = find_source(
        request.source, weights=request.weights, like=request.like, include=request.include, offline=request.offline
    )
    check_trust(source, trust=request.trust)
    kind = {"onnx": Format.ONNX, "function": Format.FUNCTION}.get(source.kind, Format.TORCHSCRIPT)
    written_as = request.format or (old.format if old else kind)
    _check_format(kind, written_as, request.precision)
    layer = request.features or (old.versions[old.in_use].features if old else "")
    _check_features(layer, written_as, old)
    tensor = _tensor(request, old, written_as)
    if request.serving.tensorrt and written_as is not Format.ONNX:
        raise SourceError("--tensorrt is for ONNX, whose backend builds the engine: add --format onnx")
    multi_label = old.multi_label if old else request.multi_label
    # A new version is prepared and named like the others where nothing else is said.
    alike = old is not None and request.like is None
    preprocessing = find_preprocessing(source, request.preprocessing or (old.preprocessing if old and alike else None))
    library = request.resize_library
    if library is None and old and request.preprocessing is None:
        library = old.preprocessing.resize_library
    if library is not None:
        preprocessing = replace(preprocessing, resize_library=library)
    if request.pixels:
        preprocessing = replace(preprocessing, mean=AS_PIXELS["mean"], std=AS_PIXELS["std"])
    if request.grayscale and not preprocessing.is_gray:
        raise SourceError(
            "--grayscale is for one channel, so --mean and --std are one number each: --mean 0.5 --std 0.25"
        )
    labels = (
        read_labels(repository / old.classifier / LABELS)
        if old and request.labels is None
        else find_labels(source, request.labels)
    )
    if request.labels and (twice := repeated(labels)):
        say(f"some labels occur more than once; only class_id distinguishes these classes: {twice}")
    if old:
        _check_same(old, preprocessing, written_as, labels, repository)
    number = request.version or _first_version(repository, request.name)
    if old is None and request.version:
        say(f"{repository} has no model {request.name!r} yet: it is a new one, with version {number} alone")
    elif old is None and number > 1:
        say(f"it is version {number}: earlier ones of this name were removed, and a cache may still have their answers")
    with staging(repository) as folder:
        network = folder / "network" / written_as.filename
        network.parent.mkdir()
        if source.function:
            source.function.stage(
                network.parent, Said(source.function.path.stem, source.function.name, request.input, request.output)
            )
        outcome = work(
            Job(
                kind=source.kind,
                source=source.location,
                weights=source.weights,
                side=preprocessing.crop_size,
                labels=len(labels),
                multi_label=multi_label,
                precision=request.precision,
                format=written_as,
                output=str(network),
                input=request.input,
                pick=request.output,
                pixels=preprocessing.gives_pixels,
                pixels_implied=request.pixels_implied,
                gray=(preprocessing.mean[0], preprocessing.std[0]) if request.grayscale else None,
                normalise=(preprocessing.mean, preprocessing.std) if tensor is ImageTensor.UINT8 else None,
                may_export=source.kind == "exported" and request.format is None and old is None,
                mapped_bytes=source.function.size() if source.function else 0,
                features=layer,
            ),
            say,
            timeout_seconds=timeout_seconds,
        )
        written_as = outcome.format or written_as
        network = network.with_name(written_as.filename)
        _check_devices(outcome.cpu_only, request.serving, say)
        version = Version(
            source.location,
            source.sha256,
            source.weights,
            outcome.ending,
            request.precision,
            outcome.difference,
            outcome.input,
            request.output,
            request.grayscale,
            tuple(map(str, source.function.include)) if source.function else (),
            layer,
            outcome.features_difference,
        )
        if old and old.features != outcome.features:
            raise EntryError(
                f"its vectors have {outcome.features} numbers and those of the other versions {old.features}: add it "
                f"under another name, which clients select by ?model=, not as a version of {old.name!r}"
            )
        if old:
            entry = replace(old, versions={**old.versions, number: version})
            extend(old, entry, network, repository)
        else:
            entry = Entry(
                name=request.name,
                classes=outcome.classes,
                preprocessing=preprocessing,
                format=written_as,
                multi_label=multi_label,
                serving=request.serving,
                versions={number: version},
                in_use=number,
                tensor=tensor,
                features=outcome.features,
            )
            write(entry, labels, network, repository)
    return entry


def fetched(request: Request, say: Say) -> Request:
    """The request with files in place of URLs; raises DownloadError or SourceError."""
    if is_remote(request.source):
        return replace(request, source=str(fetch(request.source, request.sha256, say)))
    if request.weights and is_remote(request.weights):
        return replace(request, weights=str(fetch(request.weights, request.sha256, say)))
    if request.sha256:
        raise SourceError("--sha256 is for a SOURCE or --weights from https:// or a bucket; a file is taken as it is")
    return request


def check_trust(source: Source, *, trust: bool) -> None:
    """Raise SourceError where adding a source runs somebody's code, and nobody said that it may."""
    if source.function and not trust:
        raise SourceError(
            f"{source.function.path.name} is code, which runs when it is tried here, and later in Triton, with your "
            "rights: read it, and say --trust"
        )


def check_gpus(serving: Serving) -> None:
    """Raise EntryError where a GPU is asked for that this machine does not have."""
    if not serving.gpus:
        return
    count = gpu_count()
    missing = [gpu for gpu in serving.gpus if gpu >= count]
    if missing:
        has = f"{count} GPU{'s' * (count > 1)}, numbered from 0" if count else "no GPU that its CUDA driver can see"
        raise EntryError(
            f"--gpus names GPU {missing[0]}, and this machine has {has}: leave --gpus out, and Triton takes every GPU "
            "that exists, or the CPU; or run this on the machine that serves"
        )


def _check_devices(cpu_only: Sequence[str], serving: Serving, say: Say) -> None:
    """Say, or raise EntryError where a GPU is asked for, that a network makes tensors on the CPU wherever it runs."""
    if not cpu_only:
        return
    what = (
        f"it makes tensors on the CPU whatever it runs on ({', '.join(cpu_only)}): a trace keeps the device of its "
        "example, also from device=x.device. Use x.new_zeros(…) or torch.zeros_like(x), which follow x, and save "
        "it again; or add it with --format onnx, in which nothing belongs to a device"
    )
    if serving.gpus:
        raise EntryError(f"on the GPU that --gpus names it would fail: {what}")
    say(f"this network is right on a CPU and would fail on a GPU: {what}")


def _entry_to_extend(request: Request, repository: Path) -> Entry | None:
    exists = request.name in entry_names(repository)
    if request.version is None:
        if exists:
            raise EntryError(
                f"{repository} has a model {request.name!r} already: say --version N to add a version, or remove it "
                f"first: gateway model remove {request.name}{at(repository)}"
            )
        return None
    if request.version < 1:
        raise EntryError("versions are numbers from 1")
    old = read_entry(repository, request.name) if exists else None
    taken = old.versions.keys() if old else frozenset[int]()
    gone = retired(repository, request.name)
    if request.version in taken | gone:
        why = "already" if request.version in taken else "before, and its answers may still be in a cache"
        raise EntryError(
            f"{request.name} has had a version {request.version} {why}; the next one is {max(taken | gone) + 1}"
        )
    return old


def _first_version(repository: Path, name: str) -> int:
    return max(retired(repository, name), default=0) + 1


def _check_format(kind: Format, written_as: Format, precision: Precision) -> None:
    if precision is Precision.INT8:
        raise SourceError(
            "int8 needs photos to find the range of each number by, and proof that it is right: add the model in fp32 "
            "with --format onnx, then gateway model tune NAME PHOTOS --try int8 --calibrate FOLDER"
        )
    if Format.FUNCTION in {kind, written_as}:
        if kind is not written_as:
            raise SourceError(
                f"a Python function runs as it is, and cannot be written as {written_as.value}"
                if kind is Format.FUNCTION
                else "--format function is for FILE.py:NAME; leave it out"
            )
        if precision is not Precision.FP32:
            raise SourceError("what a function computes in is its own affair: leave --precision out")
        return
    if kind is Format.ONNX and written_as is Format.TORCHSCRIPT:
        raise SourceError(
            "an ONNX file cannot be converted to TorchScript: leave --format out, or add the PyTorch model itself"
        )
    if written_as is Format.ONNX and precision is Precision.BF16:
        raise SourceError("ONNX Runtime has no bf16 convolutions: use --precision fp16 or --format torchscript")


def _check_features(layer: str, written_as: Format, old: Entry | None) -> None:
    """Raise SourceError or EntryError where vectors are asked of what cannot give them."""
    if not layer:
        return
    if written_as is Format.FUNCTION:
        raise SourceError("--features is for networks: a Python function has no layers, and gives its scores alone")
    if old and not old.features:
        raise EntryError(
            f"the other versions of {old.name!r} give no vectors, and versions share their outputs: add it under "
            "another name, which clients select by ?model="
        )


def _tensor(request: Request, old: Entry | None, written_as: Format) -> ImageTensor:
    """What passes between the steps; raises SourceError or EntryError where that cannot be."""
    if old is not None:
        if request.tensor not in {None, old.tensor}:
            raise EntryError(
                f"the other versions of {old.name} share a preprocessor that gives {old.tensor.value}: leave --tensor "
                "out, or add it under another name"
            )
        return old.tensor
    if request.tensor is ImageTensor.UINT8 and written_as is Format.FUNCTION:
        raise SourceError("--tensor uint8 puts the normalisation into the network, and a function is left as it is")
    return request.tensor or ImageTensor.FP32


def _check_same(
    old: Entry, preprocessing: Preprocessing, written_as: Format, labels: tuple[str, ...], repository: Path
) -> None:
    """The versions of a model share its configuration; what differs in more than weights is another model."""
    advice = f"add it under another name, which clients select by ?model=, not as a version of {old.name!r}"
    differences = preprocessing.differences(old.preprocessing.parameters())
    if differences:
        raise EntryError(f"it prepares its images differently ({'; '.join(differences)}): {advice}")
    if written_as is not old.format:
        raise EntryError(f"it is {written_as.value} but the other versions are {old.format.value}: {advice}")
    if labels != read_labels(repository / old.classifier / LABELS):
        raise EntryError(f"its labels differ from those of the other versions: {advice}")


def _check_folders_are_free(name: str, repository: Path) -> None:
    for folder in (name, preprocessor_of(name), classifier_of(name)):
        check_free(repository / folder)
