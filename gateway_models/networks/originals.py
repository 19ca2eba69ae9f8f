"""The original of a served model: the network that the user added, before conversion."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from gateway_models.networks.adapted import PLAIN, Adapted, Form, Gray, arranged
from gateway_models.networks.features import Featured
from gateway_models.networks.file_kinds import Kind, ModelFileError, kind_of
from gateway_models.networks.function_process import FunctionProcess
from gateway_models.networks.functions import find_function, is_function
from gateway_models.networks.hub import HUGGING_FACE, TIMM, read_folder
from gateway_models.networks.model_source import RECIPE, TORCHVISION, digest
from gateway_models.networks.probe import Ending, activation
from gateway_models.networks.torchscript import load_torchscript
from gateway_models.networks.weights import load_into, read_state_dict
from gateway_models.repository.entry import Entry, EntryError, Version
from gateway_models.repository.preprocessing_sources import weights_enum


def original_module(source: str, weights: str, classes: int | None, *, trust: bool = False) -> nn.Module:
    """Load the network of a source, in eval mode: a prefix and a name or folder, or a file.

    The file is TorchScript or torch.export; with `trust`, a program may execute code while it is loaded. `weights`
    is a file, the name of torchvision weights or "".
    Raises UserError.
    """
    if source.startswith(TORCHVISION):
        return _torchvision(source.removeprefix(TORCHVISION), weights, classes)
    if source.startswith((HUGGING_FACE, TIMM)):
        from gateway_models.networks.pretrained import folder_network, timm_network

        if source.startswith(TIMM):
            return timm_network(source.removeprefix(TIMM), Path(weights), classes)
        return folder_network(Path(source.removeprefix(HUGGING_FACE)))
    if source.startswith(RECIPE):
        from gateway_models.networks.export import RECIPES

        return RECIPES[source.removeprefix(RECIPE)].build().eval()
    if kind_of(Path(source)) is Kind.EXPORTED_PROGRAM:
        from gateway_models.networks.programs import load_program

        return load_program(Path(source), trust=trust)
    module: nn.Module = load_torchscript(Path(source))
    return module


Answers = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""From images fp32 [N, 3, side, side] to probabilities [N, classes], and embeddings [N, size] or None."""


def original_probabilities(entry: Entry, version: Version) -> Callable[[Tensor], Tensor]:
    """As `original_answers`, but only the probabilities."""
    answers = original_answers(entry, version)
    return lambda images: answers(images)[0]


def original_answers(entry: Entry, version: Version) -> Answers:
    """The original of a version as a function of images, with softmax or sigmoid appended if it has none.

    Raises EntryError if the original is missing or has changed, and ModelFileError.
    """
    if is_function(version.source):
        probabilities = _function_probabilities(entry, version)
        return lambda images: (probabilities(images), None)
    if version.source.startswith(HUGGING_FACE):
        _check_folder(version)
    file = Path(
        version.weights if version.source.startswith((TORCHVISION, TIMM)) and version.sha256 else version.source
    )
    if version.sha256 and not version.source.startswith(HUGGING_FACE):
        if not file.is_file():
            raise EntryError(f"the original, {file}, no longer exists: put it back, or add the model again")
        if digest(file) != version.sha256:
            raise EntryError(f"{file} has changed since it was added: add it again as a new version")
    activate = activation(Ending(version.ending), multi_label=entry.multi_label)
    gray = Gray(entry.preprocessing.mean[0], entry.preprocessing.std[0]) if version.grayscale else None
    form = Form(version.input or PLAIN, gray)
    run: Callable[[Tensor], Tensor | tuple[Tensor, Tensor]]
    if file.suffix == ".onnx":
        run = _onnx(file, entry.preprocessing.crop_size, form, version)
    else:
        module = original_module(version.source, version.weights, entry.classes, trust=version.trusted)
        run = (
            Featured(module, form, version.output, version.features, entry.classes)
            if version.features
            else Adapted(module, form, version.output)
        ).eval()

    def answers(images: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode():
            answer = run(images)
            scores, embeddings = answer if isinstance(answer, tuple) else (answer, None)
            return activate(scores.float()), None if embeddings is None else embeddings.float()

    return answers


def _onnx(file: Path, side: int, form: Form, version: Version) -> Callable[[Tensor], Tensor | tuple[Tensor, Tensor]]:
    from gateway_models.networks.onnx_graph import check_signature, load_onnx
    from gateway_models.networks.onnx_runner import runner

    model = load_onnx(file)
    scores = check_signature(model, side, form, version.output).output
    run: Callable[[Tensor], Tensor | tuple[Tensor, Tensor]] = runner(file, scores)
    if version.features:
        from gateway_models.networks.onnx_features import inner_tensor, pair_runner

        run = pair_runner(model, scores, inner_tensor(model, scores, version.features))
    return lambda images: run(arranged(images, form))


def _check_folder(version: Version) -> None:
    if read_folder(Path(version.source.removeprefix(HUGGING_FACE))).digest() != version.sha256:
        raise EntryError(
            f"{version.source.removeprefix(HUGGING_FACE)} has changed since it was added: add it again as a new version"
        )


def _function_probabilities(entry: Entry, version: Version) -> Callable[[Tensor], Tensor]:
    source = find_function(version.source, [Path(path) for path in version.include])
    if source.digest() != version.sha256:
        raise EntryError(
            f"{source.path}, or a file that it needs, has changed since it was added: add it again as a new version"
        )
    activate = activation(Ending(version.ending), multi_label=entry.multi_label)
    # User code runs in a separate process.
    run = FunctionProcess(source, input=version.input, output=version.output)
    return lambda images: activate(run(images))


def _torchvision(architecture: str, weights: str, classes: int | None) -> nn.Module:
    from torchvision.models import get_model

    if weights and not Path(weights).is_file():
        try:
            module: nn.Module = get_model(architecture, weights=weights_enum(weights))
        except OSError as exc:
            raise ModelFileError(
                f"its weights {weights} cannot be downloaded ({exc}): download the file on a machine with network "
                "access and use --weights FILE"
            ) from exc
        return module.eval()
    state = read_state_dict(Path(weights))
    # torchvision builds the auxiliary heads for training only on request.
    extra = {"aux_logits": True} if any(name.startswith(("aux", "AuxLogits")) for name in state) else {}
    try:
        module = get_model(architecture, weights=None, **({"num_classes": classes} if classes else {}), **extra)
    except TypeError:
        module = get_model(architecture, weights=None, **({"num_classes": classes} if classes else {}))
    return load_into(module, state, weights, architecture, classes)
