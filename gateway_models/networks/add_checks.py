"""Checks of a model that is about to be added to a repository, before anything is written."""

from dataclasses import fields, replace
from pathlib import Path

from gateway.machine.gpus import gpu_count
from gateway_local.paths import at
from gateway_models.networks.errors import ModelError
from gateway_models.networks.model_source import Source, network_labels
from gateway_models.repository.after import AfterStep, FunctionStep
from gateway_models.repository.entry import Entry, EntryError, classifier_of, entry_names, preprocessor_of, read_entry
from gateway_models.repository.retired import next_version, retired
from gateway_models.repository.spec import PROMPT, Format, ImageTensor, ModelSpec, Precision, Serving
from gateway_models.repository.writing import check_free

SHARED = {"features": "embeddings", "format": "format", "multi_label": "multi label", "tensor": "tensor"}
"""Fields of ModelSpec that are equal in all versions of a model, as Serving is, and their names in messages."""


def check_trust(source: Source) -> None:
    """Raise ModelError where adding a source runs its code, and the user did not allow that."""
    if source.spec.trust:
        return
    if source.function:
        raise _is_code(source.function.path.name)
    if source.file and source.file.runs_code:
        raise source.file.untrusted(Path(source.spec.source))


def check_zero_shot(source: Source) -> None:
    """Raise ModelError where --zero-shot or --prompt would have no effect."""
    spec = source.spec
    if spec.zero_shot and source.kind != "huggingface":
        raise ModelError(
            "--zero-shot is for a CLIP-like model of Hugging Face, huggingface:OWNER/NAME or its folder: use --labels "
            "for the classes of a trained classifier"
        )
    if spec.prompts != (PROMPT,) and not spec.texts:
        raise ModelError("--prompt is for --zero-shot FILE, the labels that it is filled with")


def check_step_trust(step: AfterStep, *, trust: bool) -> None:
    """Raise ModelError if the post-processing step is code, and the user did not allow that it runs."""
    if isinstance(step, FunctionStep) and not trust:
        raise _is_code(step.source)


def _is_code(name: str) -> ModelError:
    return ModelError(
        f"{name} is code. It runs when it is tested here, and later in Triton, with your rights: read it, then add "
        "--trust"
    )


def entry_to_extend(name: str, version: int | None, repository: Path) -> Entry | None:
    """The existing model that gets the version; None for a new model. Raises EntryError if name or number is taken."""
    exists = name in entry_names(repository)
    if version is None:
        if exists:
            raise EntryError(
                f"{repository} has a model {name!r} already: use --version N to add a version, or remove it "
                f"first: gateway model remove {name}{at(repository)}"
            )
        return None
    if version < 1:
        raise EntryError("versions are numbers from 1")
    old = read_entry(repository, name) if exists else None
    taken = old.versions.keys() if old else frozenset[int]()
    if version in taken | retired(repository, name):
        why = "already" if version in taken else "before, and its answers may still be in a cache"
        raise EntryError(
            f"{name} has had a version {version} {why}; the next one is {next_version(repository, name, taken)}"
        )
    return old


def check_written(own: Format, written_as: Format, spec: ModelSpec) -> None:
    """Raise ModelError where a network of format `own` cannot be written as `written_as` with a spec's options."""
    made_of_function, as_function = own is Format.FUNCTION, written_as is Format.FUNCTION
    as_onnx, as_torchscript = written_as is Format.ONNX, written_as is Format.TORCHSCRIPT
    serving = spec.serving
    conflicts = [
        (
            made_of_function
            and (
                not as_function
                or spec.precision is not Precision.FP32
                or spec.features
                or spec.tensor is ImageTensor.UINT8
                or bool(spec.output)
            ),
            "a Python function is served as it is: leave out --format, --precision, --embeddings, --tensor, --output",
        ),
        (as_function and not made_of_function, "--format function is for FILE.py:NAME; leave it out"),
        (
            as_torchscript and own is Format.ONNX,
            "it is ONNX, or becomes ONNX, which cannot be converted to torchscript: leave --format out, or add the "
            "PyTorch model itself",
        ),
        (
            as_onnx and spec.precision is Precision.BF16,
            "ONNX Runtime has no bf16 convolutions: use --openvino bf16, which runs a network of fp32 in bf16 on a "
            "CPU, --precision fp16 or --format torchscript",
        ),
        (
            (serving.tensorrt or serving.openvino is not None) and not as_onnx,
            "--tensorrt and --openvino run ONNX: add --format onnx",
        ),
        (
            serving.cpu_runtime and not as_torchscript,
            "--cpu-runtime is for TorchScript: leave it out, or add --format torchscript",
        ),
    ]
    for applies, reason in conflicts:
        if applies:
            raise ModelError(reason)


def default_tensor(written_as: Format) -> ImageTensor:
    """Pixels on a machine with a GPU, to which a quarter of the bytes are then copied: docs/adr/0021."""
    return ImageTensor.UINT8 if written_as is not Format.FUNCTION and gpu_count() else ImageTensor.FP32


def with_shared(given: ModelSpec, old: Entry) -> ModelSpec:
    """The spec of a new version with the fields that versions share; EntryError where its options contradict them.

    They share one configuration of each step: how Triton runs it, its tensors, and the kind of scores.
    """
    shared_by_serving = {field.name: field.name.replace("_", " ") for field in fields(Serving)}
    for new, known, names in ((given, old.spec, SHARED), (given.serving, old.spec.serving, shared_by_serving)):
        defaults = {field.name: field.default for field in fields(new)}
        for name, words in names.items():
            value, shared = getattr(new, name), getattr(known, name)
            if value != shared and (value != defaults[name] or name in given.named):
                raise EntryError(
                    f"the versions of {old.name!r} share one configuration, in which {words} is {shared} and not "
                    f"{value}: leave the option out, or add it under another name, which clients select by ?model="
                )
    return replace(given, serving=old.spec.serving, **{name: getattr(old.spec, name) for name in SHARED})


def check_same(old: Entry, spec: ModelSpec, labels: tuple[str, ...], repository: Path) -> None:
    """Raise EntryError where a new version differs in more than weights: versions share one configuration."""
    advice = f"add it under another name, which clients select by ?model=, not as a version of {old.name!r}"
    differences = spec.prepared.differences(old.spec.prepared.parameters())
    if differences:
        raise EntryError(f"it prepares its images differently ({'; '.join(differences)}): {advice}")
    if labels != network_labels(old, repository):
        raise EntryError(f"its labels differ from the labels of the other versions: {advice}")


def check_folders_are_free(name: str, repository: Path) -> None:
    """Raise EntryError where a folder of a new model exists already."""
    for folder in (name, preprocessor_of(name), classifier_of(name)):
        check_free(repository / folder)
