"""`gateway model add`: from a trained network to a model repository entry."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway_models.networks.add_checks import (
    check_devices,
    check_features,
    check_folders_are_free,
    check_format,
    check_gpus,
    check_same,
    check_trust,
    entry_to_extend,
    first_version,
    tensor_between,
)
from gateway_models.networks.download import fetch, is_remote
from gateway_models.networks.functions import FunctionConfig
from gateway_models.networks.isolation import TIMEOUT_SECONDS, Job, Report, work
from gateway_models.networks.model_source import (
    SourceError,
    find_labels,
    find_preprocessing,
    find_source,
    read_labels,
    repeated,
)
from gateway_models.repository.entry import (
    Entry,
    EntryError,
    Format,
    ImageTensor,
    Precision,
    Serving,
    Version,
    check_name,
)
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway_models.repository.writing import LABELS, extend, staging, write


@dataclass(frozen=True, slots=True)
class AddRequest:
    """The model to add. `version` None adds a new model; a number adds that version to an existing one.

    `format` None keeps the source's own. `preprocessing` None means torchvision's for `like` or for the architecture.
    `resize_library` None means that of the existing versions, or of the preprocessing.
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
    """None means that of the existing versions, or fp32."""
    input: str = ""
    """The network's input format, one of functions.INPUTS; "" to detect it."""
    output: str = ""
    """The output with the scores, by name or number, where there are several."""
    pixels: bool = False
    """Whether the images are pixels of 0 to 255; the mean and std of `like` or `preprocessing` are then ignored."""
    pixels_implied: bool = False
    """Whether `preprocessing` leaves pixels unchanged only because no mean and std were given."""
    include: tuple[Path, ...] = ()
    """Files and folders that a function needs."""
    trust: bool = False
    """Whether the code of a function, or of a torch.export file with more than tensors, may run here."""
    grayscale: bool = False
    """Whether the network takes one channel; mean and std then repeat one number three times."""
    sha256: str | None = None
    """The expected SHA-256 of the source or the weights where these are a URL."""
    offline: bool = False
    """Whether downloads are forbidden."""
    features: str = ""
    """The layer whose output is the embedding (FEATURES), or AUTO; "" means that of the existing versions, or none."""


def add(request: AddRequest, repository: Path, report: Report, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Entry:
    """Write a model's folders into a repository and return its entry; raises UserError.

    On any failure, including an interrupt, the repository is left unchanged.
    """
    check_name(request.name)
    check_gpus(request.serving)
    old = entry_to_extend(request.name, request.version, repository)
    if old is None:
        check_folders_are_free(request.name, repository)
    request = fetched(request, report)
    source = find_source(
        request.source, weights=request.weights, like=request.like, include=request.include, offline=request.offline
    )
    check_trust(source, trust=request.trust)
    trusted = request.trust and source.kind == "exported"
    kind = {"onnx": Format.ONNX, "function": Format.FUNCTION}.get(source.kind, Format.TORCHSCRIPT)
    written_as = request.format or (old.format if old else kind)
    check_format(kind, written_as, request.precision)
    layer = request.features or (old.versions[old.in_use].features if old else "")
    check_features(layer, written_as, old)
    tensor = tensor_between(request.tensor, old, written_as)
    if request.serving.tensorrt and written_as is not Format.ONNX:
        raise SourceError("--tensorrt is for ONNX, whose backend builds the engine: add --format onnx")
    multi_label = old.multi_label if old else request.multi_label
    # By default, a new version has the preprocessing and labels of the others.
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
        report(f"some labels occur more than once; only class_id distinguishes these classes: {twice}")
    if old:
        check_same(old, preprocessing, written_as, labels, repository)
    number = request.version or first_version(repository, request.name)
    if old is None and request.version:
        report(f"{repository} has no model {request.name!r} yet: it is a new one, with version {number} alone")
    elif old is None and number > 1:
        report(f"it is version {number}: earlier ones of this name were removed, and a cache may have their answers")
    with staging(repository) as folder:
        network = folder / "network" / written_as.filename
        network.parent.mkdir()
        if source.function:
            source.function.stage(
                network.parent,
                FunctionConfig(source.function.path.stem, source.function.name, request.input, request.output),
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
                trust=trusted,
            ),
            report,
            timeout_seconds=timeout_seconds,
        )
        written_as = outcome.format or written_as
        network = network.with_name(written_as.filename)
        check_devices(outcome.cpu_only, request.serving, report)
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
            trusted,
        )
        if old and old.features != outcome.features:
            raise EntryError(
                f"embeddings have {outcome.features} numbers and those of the other versions {old.features}: add it "
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


def fetched(request: AddRequest, report: Report) -> AddRequest:
    """The request with URLs downloaded and replaced by files; raises DownloadError or SourceError."""
    if is_remote(request.source):
        return replace(request, source=str(fetch(request.source, request.sha256, report)))
    if request.weights and is_remote(request.weights):
        return replace(request, weights=str(fetch(request.weights, request.sha256, report)))
    if request.sha256:
        raise SourceError(
            "--sha256 is for a SOURCE or --weights from https:// or a bucket; local files are not checked"
        )
    return request
