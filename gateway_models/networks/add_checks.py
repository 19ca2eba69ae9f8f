"""Checks of a model that is about to be added to a repository, before anything is written."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from gateway.machine.gpus import gpu_count
from gateway_local.paths import at
from gateway_models.networks.file_kinds import UNTRUSTED_PROGRAM
from gateway_models.networks.model_source import (
    Source,
    SourceError,
    network_labels,
)
from gateway_models.repository.after import AfterStep, FunctionStep
from gateway_models.repository.entry import Entry, EntryError, classifier_of, entry_names, preprocessor_of, read_entry
from gateway_models.repository.retired import retired
from gateway_models.repository.spec import PROMPT, Format, ImageTensor, ModelSpec, Precision, Serving
from gateway_models.repository.writing import check_free


def check_trust(source: Source) -> None:
    """Raise SourceError where adding a source runs its code, and the user did not allow that."""
    check_step_trust(source.spec.after, trust=source.spec.trust)
    if source.function and not source.spec.trust:
        raise _is_code(source.function.path.name)
    if source.kind == "exported" and not source.spec.trust:
        raise SourceError(f"{source.spec.source}: {UNTRUSTED_PROGRAM}")
    code = source.framework.code if source.framework else ""
    if source.framework and code and not source.spec.trust:
        path = Path(source.spec.source)
        raise SourceError(
            f"{path} is {source.framework.content}: {code}. If its author may run code here, with your rights, add "
            f"--trust. Or {source.framework.by_hand(path)}"
        )


def check_zero_shot(source: Source) -> None:
    """Raise SourceError where --zero-shot or --prompt would have no effect."""
    spec = source.spec
    if spec.zero_shot and source.kind != "huggingface":
        raise SourceError(
            "--zero-shot is for a CLIP-like model of Hugging Face, huggingface:OWNER/NAME or its folder: use --labels "
            "for the classes of a trained classifier"
        )
    if spec.prompts != (PROMPT,) and not spec.texts:
        raise SourceError("--prompt is for --zero-shot FILE, the labels that it is filled with")


def check_step_trust(step: AfterStep | None, *, trust: bool) -> None:
    """Raise SourceError where a step after the network is code, and the user did not allow that it runs."""
    if isinstance(step, FunctionStep) and not trust:
        raise _is_code(step.source)


def _is_code(name: str) -> SourceError:
    return SourceError(
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
    gone = retired(repository, name)
    if version in taken | gone:
        why = "already" if version in taken else "before, and its answers may still be in a cache"
        raise EntryError(f"{name} has had a version {version} {why}; the next one is {max(taken | gone) + 1}")
    return old


def first_version(repository: Path, name: str) -> int:
    """The number of a new model's first version, above those of removed versions of the same name."""
    return max(retired(repository, name), default=0) + 1


def check_format(kind: Format, written_as: Format, precision: Precision) -> None:
    """Raise SourceError where a network of format `kind` cannot be written as `written_as` in this precision."""
    if Format.FUNCTION in {kind, written_as}:
        if kind is not written_as:
            raise SourceError(
                f"a Python function is served unchanged and cannot be written as {written_as.value}"
                if kind is Format.FUNCTION
                else "--format function is for FILE.py:NAME; leave it out"
            )
        if precision is not Precision.FP32:
            raise SourceError("a function chooses its own precision: leave out --precision")
        return
    if kind is Format.ONNX and written_as is Format.TORCHSCRIPT:
        raise SourceError(
            f"it is ONNX, or becomes ONNX, which cannot be converted to {written_as.value}: leave --format out, or add "
            "the PyTorch model itself"
        )
    if written_as is Format.ONNX and precision is Precision.BF16:
        raise SourceError(
            "ONNX Runtime has no bf16 convolutions: use --openvino bf16, which runs a network of fp32 in bf16 on a "
            "CPU, --precision fp16 or --format torchscript"
        )


def check_features(wanted: bool, written_as: Format, old: Entry | None) -> None:  # noqa: FBT001
    """Raise SourceError or EntryError where embeddings are requested from a model that cannot give them."""
    if not wanted:
        return
    if written_as is Format.FUNCTION:
        raise SourceError("--embeddings is for networks: a Python function has no layers and returns only scores")
    if old and not old.embedding_size:
        raise EntryError(
            f"the other versions of {old.name!r} give no embeddings, and versions share their outputs: add it under "
            "another name, which clients select by ?model="
        )


def tensor_between(wanted: ImageTensor | None, old: Entry | None, written_as: Format) -> ImageTensor:
    """The type of the tensor between preprocessor and network; raises SourceError or EntryError where it cannot be.

    By default pixels on a machine with a GPU, to which a quarter of the bytes are then copied: docs/adr/0021.
    """
    if old is not None:
        if wanted not in {None, old.tensor}:
            raise EntryError(
                f"the other versions of {old.name} share a preprocessor that gives {old.tensor.value}: leave --tensor "
                "out, or add it under another name"
            )
        return old.tensor
    if wanted is ImageTensor.UINT8 and written_as is Format.FUNCTION:
        raise SourceError("--tensor uint8 moves the normalisation into the network, but functions are not changed")
    return wanted or (ImageTensor.UINT8 if written_as is not Format.FUNCTION and gpu_count() else ImageTensor.FP32)


def check_shared(old: Entry, given: ModelSpec) -> None:
    """Raise EntryError where options contradict what the versions of a model share: how Triton runs them, and labels.

    A new version takes what the others have where an option was left out.
    """
    options: list[tuple[str, Any, Any, Any]] = [
        (field.name, field.default, given.serving, old.serving) for field in fields(Serving)
    ]
    options.append(("multi_label", False, given, old.spec))
    for name, default, new, known in options:
        value, shared = getattr(new, name), getattr(known, name)
        if value != shared and (value != default or name in given.named):
            raise EntryError(
                f"the versions of {old.name!r} share one configuration, in which {name.replace('_', ' ')} is {shared} "
                f"and not {value}: leave the option out, or add it under another name, which clients select by ?model="
            )


def check_same(old: Entry, spec: ModelSpec, labels: tuple[str, ...], repository: Path) -> None:
    """Raise EntryError where a new version differs in more than weights: versions share one configuration."""
    advice = f"add it under another name, which clients select by ?model=, not as a version of {old.name!r}"
    differences = spec.prepared.differences(old.preprocessing.parameters())
    if differences:
        raise EntryError(f"it prepares its images differently ({'; '.join(differences)}): {advice}")
    if spec.format and spec.format is not old.format:
        raise EntryError(f"it is {spec.format.value} but the other versions are {old.format.value}: {advice}")
    if labels != network_labels(old, repository):
        raise EntryError(f"its labels differ from those of the other versions: {advice}")


def check_folders_are_free(name: str, repository: Path) -> None:
    """Raise EntryError where a folder of a new model exists already."""
    for folder in (name, preprocessor_of(name), classifier_of(name)):
        check_free(repository / folder)
