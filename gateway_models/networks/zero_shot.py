"""Zero-shot classifiers: the image tower of a CLIP-like network, and a matrix of the embeddings of its labels' texts.

The matrix is the last layer of the network. It is also kept in a file beside it, by which `relabel` finds and replaces
it in the network's file: other labels need the text tower, and no new export of the image tower.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.hub import CONFIG, EXTRA, read_config, read_zero_shot_folder
from gateway_models.networks.isolation import Job
from gateway_models.networks.job_checks import images_of, outcome_of, report
from gateway_models.networks.onnx_runner import import_onnx, runner
from gateway_models.networks.probe import Ending, Findings, activation, check_classes
from gateway_models.networks.torchscript import Served, load_torchscript, without_deprecations
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import LABEL_EMBEDDINGS, Format

TEXTS_AT_ONCE = 256
"""Texts that the text tower computes in one batch."""


class ZeroShot(nn.Module):
    """Wraps an image tower as images fp32 [N, 3, H, W] → logits [N, labels]."""

    def __init__(self, towers: Any, embeddings: Tensor) -> None:  # noqa: ANN401  # of transformers
        super().__init__()
        self.towers = towers
        self.labels = nn.Linear(embeddings.shape[1], embeddings.shape[0], bias=hasattr(towers, "logit_bias"))
        with torch.no_grad():
            self.labels.weight.copy_(embeddings * towers.logit_scale.exp())
            if hasattr(towers, "logit_bias"):
                self.labels.bias.fill_(float(towers.logit_bias))

    def forward(self, images: Tensor) -> Tensor:
        """The scaled cosines of the images and the labels' texts."""
        found = _embedding(self.towers.get_image_features(pixel_values=images))
        logits: Tensor = self.labels(nn.functional.normalize(found, dim=-1))
        return logits


def zero_shot_network(folder: Path, labels: Sequence[str], prompts: Sequence[str]) -> ZeroShot:
    """The network of a folder that hub.read_zero_shot_folder accepts, with these labels; raises UserError."""
    read_zero_shot_folder(folder)  # again, since it may have changed after it was added
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging as transformers_logging
    except ImportError as exc:
        raise ModelFileError(f"Hugging Face models need {exc.name}: {EXTRA}") from exc
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        towers, info = AutoModel.from_pretrained(folder, use_safetensors=True, output_loading_info=True, **options)
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except Exception as exc:  # safetensors, torch and transformers have no common base class
        raise ModelFileError(f"transformers cannot load it: {str(exc).strip().splitlines()[0]}") from exc
    if missing := sorted(info["missing_keys"]):
        raise ModelFileError(f"its weights lack {missing[0]}, which would be random: was it saved before its training?")
    towers = towers.eval()
    config = read_config(folder / CONFIG)
    padding = "max_length" if str(config.get("model_type", "")).startswith("siglip") else "longest"
    report(f"computing the embeddings of {len(labels)} labels in {len(prompts)} prompts each")
    with torch.no_grad():
        each = [
            _texts([prompt.replace("{}", label) for label in labels], towers, tokenizer, padding) for prompt in prompts
        ]
        embeddings = nn.functional.normalize(torch.stack(each).mean(0), dim=-1)
    return ZeroShot(towers, embeddings).eval()


def _texts(texts: Sequence[str], towers: Any, tokenizer: Any, padding: str) -> Tensor:  # noqa: ANN401
    """Embeddings of length 1, fp32 [texts, size]."""
    longest = towers.config.text_config.max_position_embeddings
    found = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        batch = list(texts[start : start + TEXTS_AT_ONCE])
        tokens = tokenizer(batch, padding=padding, truncation=True, max_length=longest, return_tensors="pt")
        found.append(nn.functional.normalize(_embedding(towers.get_text_features(**tokens)).float(), dim=-1))
    return torch.cat(found)


def _embedding(output: Any) -> Tensor:  # noqa: ANN401  # a tensor, or from transformers 5 on an object with one
    embedding: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return embedding


def save_embeddings(network: ZeroShot, folder: Path) -> None:
    """Write the matrix of a network beside its file: fp32 [labels, size]."""
    np.save(folder / LABEL_EMBEDDINGS, network.labels.weight.detach().float().numpy())


def do_relabel(job: Job) -> Outcome:
    """Replace the labels in a network's file, which is in the job's folder with its matrix; raises UserError."""
    spec = job.spec
    assert spec.format is not None
    with torch.no_grad():
        network = zero_shot_network(Path(spec.source.removeprefix("huggingface:")), spec.texts, spec.prompts)
        findings = Findings(job.side, len(spec.texts), Ending.LOGITS)
        check_classes(findings, job.labels, multi_label=spec.multi_label)
        file = job.file(spec.format)
        old = torch.from_numpy(np.load(job.folder / LABEL_EMBEDDINGS))
        report(f"replacing the labels in {file.name}")
        (_replace_onnx if spec.format is Format.ONNX else _replace_torchscript)(file, old, network.labels.weight)
        save_embeddings(network, job.folder)
        activate = activation(Ending.LOGITS, multi_label=spec.multi_label)
        expected = [Served(network, activate, torch.float32)(batch) for batch in images_of(job)]
        written = runner(file) if spec.format is Format.ONNX else load_torchscript(file)
        return outcome_of(job, spec.format, findings, expected, written)


def _same(one: Tensor, other: Tensor) -> bool:
    # The network may be stored in half precision.
    return one.shape == other.shape and torch.allclose(one.float(), other.to(one.dtype).float(), rtol=1e-3, atol=1e-5)


def _replace_torchscript(path: Path, old: Tensor, new: Tensor) -> None:
    with without_deprecations():
        module = load_torchscript(path)
        found = 0
        for node in module.graph.findAllNodes("prim::Constant", True):  # type: ignore[attr-defined]  # noqa: FBT003
            if not node.hasAttribute("value") or node.kindOf("value") != "t":
                continue
            value = node.t("value")
            for given, wanted in ((old, new), (old.t(), new.t())):
                if _same(value, given):
                    changed = wanted.detach().to(value.dtype).contiguous()
                    node.t_("value", changed)
                    node.output().inferTypeFrom(changed)
                    found += 1
                    break
        _check_found(found)
        torch.jit.save(module, path)


def _replace_onnx(path: Path, old: Tensor, new: Tensor) -> None:
    onnx, _ = import_onnx()
    model, found = onnx.load(path), 0
    constants = [node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"]
    for tensor in (*model.graph.initializer, *constants):
        value = torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        for given, wanted in ((old, new), (old.t(), new.t())):
            if value.is_floating_point() and _same(value, given):
                array = wanted.detach().to(value.dtype).contiguous().numpy()
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
                found += 1
                break
    _check_found(found)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(new)
    del model.graph.value_info[:]
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _check_found(found: int) -> None:
    if found != 1:
        raise ModelFileError(
            f"its labels are {found} times in the network, not once: add the model again, under another name"
        )
