"""The original of a served model: the network that the user added, before conversion."""

import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from gateway_models.networks.adapted import Adapted, Form, arranged, known_form
from gateway_models.networks.after import write_step
from gateway_models.networks.errors import ModelError
from gateway_models.networks.file_kinds import PROGRAM, kind_of
from gateway_models.networks.functions import find_function, is_function
from gateway_models.networks.hub import HUGGING_FACE, TIMM, folder_digest
from gateway_models.networks.isolation import IMAGES, SCORES, Job, NetworkProcess, Task
from gateway_models.networks.model_source import RECIPE, TORCHVISION, digest, file_kind
from gateway_models.networks.probe import Ending, activation
from gateway_models.networks.torchscript import load_torchscript
from gateway_models.networks.weights import load_into, read_tensors
from gateway_models.repository.entry import EntryError, Version
from gateway_models.repository.preprocessing_sources import weights_enum
from gateway_models.repository.spec import ModelSpec


def original_module(spec: ModelSpec, classes: int | None) -> nn.Module:
    """Load the network of a spec's source, in eval mode, with this number of classes where that can be chosen.

    Files of untrusted code are refused unless `trust`. Raises UserError.
    """
    source = spec.source
    if source.startswith(TORCHVISION):
        return _torchvision(source.removeprefix(TORCHVISION), spec, classes)
    if source.startswith((HUGGING_FACE, TIMM)):
        from gateway_models.networks.pretrained import folder_network, timm_network, zero_shot_network

        if source.startswith(TIMM):
            return timm_network(source.removeprefix(TIMM), Path(spec.weights or ""), classes)
        folder = Path(source.removeprefix(HUGGING_FACE))
        if spec.texts:
            return zero_shot_network(folder, spec.texts, spec.prompts)
        return folder_network(folder)
    if source.startswith(RECIPE):
        from gateway_models.networks.export import EFFICIENTNET_LITE0

        if source != f"{RECIPE}{EFFICIENTNET_LITE0.name}":
            raise ModelError(f"there is no {source}; there is {RECIPE}{EFFICIENTNET_LITE0.name}")
        return EFFICIENTNET_LITE0.build().eval()
    return load_written(Path(source), trust=spec.trust)


def load_written(path: Path, *, trust: bool = False) -> nn.Module:
    """Load the network of a TorchScript or torch.export file, in eval mode; raises UserError."""
    if kind_of(path) is PROGRAM:
        if not trust:
            raise PROGRAM.untrusted(path)
        from gateway_models.networks.programs import load_program

        return load_program(path)
    module: nn.Module = load_torchscript(path, trust=trust)
    return module


Answers = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""From images fp32 [N, 3, side, side] to probabilities [N, classes], and embeddings [N, size] or None."""


def code_runner(
    spec: ModelSpec, kind: str, stage: Callable[[Path], None] = lambda _: None
) -> Callable[[Tensor], Tensor]:
    """An original with code of others, which was trusted before, in a process that ends with the function.

    The function gives scores fp32 [N, classes] of images fp32 [N, 3, H, W], or for a step of rows [N, classes + size].
    `kind` is as in Job, and `stage` writes the folder of a function or a step. The function raises ModelError if the
    original cannot be loaded or fails, and WorkFailed if its process ends.
    """
    scratch = tempfile.TemporaryDirectory(prefix="original-")
    job = Job(spec, kind, 0, Path(scratch.name), Task.SCORES)
    process = NetworkProcess(lambda _: None)

    def scores(images: Tensor) -> Tensor:
        np.save(job.folder / IMAGES, images.numpy())
        process.run(job, TypeAdapter(None))
        return torch.from_numpy(np.load(job.folder / SCORES))

    weakref.finalize(scores, scratch.cleanup)
    stage(job.folder)
    return scores


def original_answers(version: Version) -> Answers:
    """The original of a version as a function of images, with softmax or sigmoid appended if it has none.

    This includes the post-processing step. Raises EntryError if the original is missing or has changed, and
    ModelError.
    """
    network = network_answers(version)
    if version.spec.after is None:
        return network
    spec = replace(version.spec, source=version.spec.after.described())
    step = code_runner(spec, "step", lambda folder: write_step(version.spec, version.outcome, folder))

    def answers(images: Tensor) -> tuple[Tensor, Tensor | None]:
        scores, embeddings = network(images)
        return step(scores if embeddings is None else torch.cat([scores, embeddings], dim=1)), embeddings

    return answers


def network_answers(version: Version) -> Answers:
    """As `original_answers`, without the post-processing step."""
    spec, outcome = version.spec, version.outcome
    activate = activation(Ending(outcome.ending), multi_label=spec.multi_label)
    run: Callable[[Tensor], Tensor | tuple[Tensor, Tensor]]
    if is_function(spec.source):
        run = _function(version)
    else:
        file = _unchanged(spec)
        form = replace(known_form(spec), input=outcome.input)
        kind = file_kind(spec.source)
        if kind.opener:
            run = code_runner(replace(spec, input=form.input), kind.key)
        elif file.suffix == ".onnx":
            run = _onnx(file, form, spec)
        else:
            module = original_module(spec, outcome.classes)
            adapted = Adapted(module, form, spec.output).eval()
            run = adapted
            if spec.features:
                from gateway_models.networks.embeddings import embeddings_of

                inner = embeddings_of(adapted, spec.prepared.crop_size)
                run = lambda images: (adapted(images), inner(images))  # noqa: E731

    def answers(images: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode():
            answer = run(images)
            scores, embeddings = answer if isinstance(answer, tuple) else (answer, None)
            return activate(scores.float()), None if embeddings is None else embeddings.float()

    return answers


def _unchanged(spec: ModelSpec) -> Path:
    """The file or folder of an original; raises EntryError if it does not exist or has changed since it was added."""
    by_name = spec.source.startswith((TORCHVISION, TIMM))
    path = Path(spec.weights or "" if by_name else spec.source.removeprefix(HUGGING_FACE))
    if not spec.sha256:
        return path
    if not path.exists():
        raise EntryError(f"the original, {path}, no longer exists: put it back, or add the model again")
    hugging_face = spec.source.startswith(HUGGING_FACE)
    found = folder_digest(path) if hugging_face else digest(path)
    if found != spec.sha256:
        raise EntryError(f"{path} has changed since it was added: add it again as a new version")
    return path


def _onnx(file: Path, form: Form, spec: ModelSpec) -> Callable[[Tensor], Tensor | tuple[Tensor, Tensor]]:
    from gateway_models.networks.onnx_graph import check_signature, load_onnx
    from gateway_models.networks.onnx_runner import runner

    model = load_onnx(file)
    scores = check_signature(model, spec.prepared.crop_size, form, spec.output).output
    run: Callable[[Tensor], Tensor | tuple[Tensor, Tensor]] = runner(file, scores)
    if spec.features:
        from gateway_models.networks.embeddings import inner_tensor, pair_runner

        run = pair_runner(model, scores, inner_tensor(model, scores))
    return lambda images: run(arranged(images, form))


def _function(version: Version) -> Callable[[Tensor], Tensor]:
    spec = version.spec
    source = find_function(spec.source, spec.include)
    if source.digest() != spec.sha256:
        raise EntryError(
            f"{source.path}, or a file that it needs, has changed since it was added: add it again as a new version"
        )
    config = {"input": version.outcome.input, "activation": "none"}
    return code_runner(spec, "function", lambda folder: source.stage("function", folder, **config))


def _torchvision(architecture: str, spec: ModelSpec, classes: int | None) -> nn.Module:
    from torchvision.models import get_model

    weights = spec.weights
    if not weights:
        try:
            module: nn.Module = get_model(architecture, weights=weights_enum(spec.like or ""))
        except OSError as exc:
            raise ModelError(
                f"its weights {spec.like} cannot be downloaded ({exc}): download the file on a machine with network "
                "access and use --weights FILE"
            ) from exc
        return module.eval()
    tensors = read_tensors(Path(weights))
    options: dict[str, int | bool] = {"num_classes": classes} if classes else {}
    if architecture in {"googlenet", "inception_v3"}:
        # torchvision builds the auxiliary heads for training only on request.
        options["aux_logits"] = any("aux" in name.lower() for name in tensors)
    module = get_model(architecture, weights=None, **options)
    return load_into(module, tensors, weights, f"{TORCHVISION}{architecture}")
