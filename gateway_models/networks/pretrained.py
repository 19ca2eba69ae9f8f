"""Networks and processors of transformers and timm, from configurations and weights; runs no code of these files."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from gateway_models.networks.errors import ModelError, first_line, library
from gateway_models.networks.hub import (
    CONFIG,
    HUGGING_FACE,
    PROCESSORS,
    TIMM,
    read_config,
    read_folder,
    timm_config,
    weights_in,
)
from gateway_models.networks.job_checks import report
from gateway_models.networks.weights import load_into, read_tensors
from gateway_models.repository.preprocessing import reference_transforms
from gateway_models.repository.spec import ModelSpec

Processor = Callable[[Image.Image], NDArray[np.float32]]
"""From a picture in RGB to the network's input, fp32 [3, H, W]."""
SAY = "use --resize, --crop, --mean, --std and --interpolation if images can be prepared by these"
TEXTS_AT_ONCE = 256
"""Texts that the text tower of a zero-shot model computes in one batch."""
LEVELS = 0.5
"""The largest difference of a pixel, in levels of 255, that rounding explains."""


class Logits(nn.Module):
    """Wraps a classifier of transformers as images → logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Logits fp32 [N, classes] of images fp32 [N, 3, H, W]."""
        logits: Tensor = self.network(pixel_values=images).logits
        return logits


def folder_network(folder: Path) -> nn.Module:
    """The network of a folder that hub.read_folder accepts; raises UserError."""
    read_folder(folder)  # again, since it may have changed after it was added
    config = read_config(folder / CONFIG)
    if "pretrained_cfg" in config:
        return _timm_folder(folder, config)
    return Logits(_loaded("AutoModelForImageClassification", folder)).eval()


def _loaded(kind: str, folder: Path) -> Any:  # noqa: ANN401  # of transformers
    """The network of a folder by a class of transformers, in fp32, without the folder's code; raises ModelError."""
    transformers = library("transformers", "Hugging Face models")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    safely = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    try:
        network, info = getattr(transformers, kind).from_pretrained(
            folder, output_loading_info=True, dtype="float32", **safely
        )
    except Exception as exc:  # safetensors, torch and transformers have no common base class
        raise ModelError(f"transformers cannot load it: {first_line(exc)}") from exc
    missing = sorted([*info["missing_keys"], *(str(each[0]) for each in info["mismatched_keys"])])
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ModelError(
            f"its weights lack {missing[0]}{others}, which would be random: was it saved before its training?"
        )
    return network


def timm_network(architecture: str, weights: Path, classes: int | None) -> nn.Module:
    """A network of timm with the weights of a file; raises ModelError if their names or shapes do not fit."""
    network = _create(architecture, **({"num_classes": classes} if classes else {}))
    return load_into(network, read_tensors(weights), str(weights), f"{TIMM}{architecture}")


def processor(spec: ModelSpec) -> Processor:
    """The preparation of pictures for a spec: its library's own code, or the user's options; raises ModelError."""
    with _folder_of_transformers(spec) as folder:
        if folder:
            return _of_transformers(folder)
    if not spec.own_processor:
        transforms = reference_transforms(spec.prepared)
        return lambda picture: transforms(picture).numpy()
    from timm.data import create_transform, resolve_data_config

    name = spec.source.removeprefix(TIMM)
    config = timm_config(name) if spec.source.startswith(TIMM) else _folder_config(spec)["pretrained_cfg"]
    made = create_transform(**resolve_data_config({}, pretrained_cfg=dict(config)))
    return lambda picture: np.asarray(made(picture))


def _folder_config(spec: ModelSpec) -> dict[str, Any]:
    return read_config(Path(spec.source.removeprefix(HUGGING_FACE)) / CONFIG)


@contextmanager
def _folder_of_transformers(spec: ModelSpec) -> Iterator[str]:
    """The folder with the file of transformers' processor; "" if its code is not the reference."""
    if spec.processor:
        with tempfile.TemporaryDirectory(prefix="processor-") as folder:
            (Path(folder) / PROCESSORS[0]).write_text(spec.processor)
            yield folder
        return
    of_transformers = spec.own_processor and spec.source.startswith(HUGGING_FACE)
    is_its = of_transformers and "pretrained_cfg" not in _folder_config(spec)
    yield spec.source.removeprefix(HUGGING_FACE) if is_its else ""


def _of_transformers(folder: str) -> Processor:
    transformers = library("transformers", f"{SAY}. Files of its processors")
    options = {"local_files_only": True, "trust_remote_code": False, "backend": "pil"}
    try:
        own = transformers.AutoImageProcessor.from_pretrained(folder, **options)
    except Exception as exc:  # transformers has no common base class
        reason = first_line(exc).replace(folder, "the file")
        raise ModelError(f"transformers cannot load its processor ({reason}): {SAY}") from exc
    return lambda picture: np.asarray(own(picture, return_tensors="np")["pixel_values"][0])


def check_processor(spec: ModelSpec) -> None:
    """Compare the served preprocessing with the library's own; raises ModelError beyond rounding."""
    prepared = spec.prepared
    served, own = reference_transforms(prepared), processor(spec)
    levels = 255 * np.reshape(prepared.std, (3, 1, 1))
    for picture in _pictures(prepared.resize_size[-1]):
        expected, given = own(picture), served(picture).numpy()
        if expected.shape != given.shape:
            difference = f"{list(expected.shape)} instead of {list(given.shape)}"
        elif (most := float((np.abs(expected - given) * levels).max())) > LEVELS:
            difference = f"pixels that differ by up to {most:.1f} of 255 levels"
        else:
            continue
        raise ModelError(
            f"its own processor makes of a picture of {picture.width}×{picture.height} {difference} from what would be "
            f"served ({prepared.described()}): {SAY}"
        )


def _pictures(side: int) -> list[Image.Image]:
    """Noise near `side`, which leaves the crop surpluses of 0 to 3 modulo 4 in both orientations, and tiny pictures."""
    shorter = side + side // 9
    sizes = [(shorter, shorter + more) for more in range(5)]
    sizes = [*sizes, *((width, height) for height, width in sizes), (5, 8), (9, 4)]
    generator = np.random.default_rng(0)
    return [Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]


def _timm_folder(folder: Path, config: dict[str, Any]) -> nn.Module:
    classes = config.get("num_classes") or config["pretrained_cfg"].get("num_classes")
    options = {"num_classes": classes, **(config.get("model_args") or {})}
    if config.get("global_pool"):
        options["global_pool"] = config["global_pool"]
    network = _create(config["architecture"], **options)
    weights = weights_in(folder)[0]
    return load_into(network, read_tensors(weights), str(weights), f"{TIMM}{config['architecture']}")


def _create(architecture: str, **options: Any) -> nn.Module:  # noqa: ANN401  # they depend on the network
    timm = library("timm", "timm models")
    logging.getLogger("timm").setLevel(logging.ERROR)
    try:
        network: nn.Module = timm.create_model(architecture, pretrained=False, exportable=True, **options)
    except Exception as exc:  # constructors may raise anything
        raise ModelError(f"timm cannot build {architecture}: {first_line(exc)}") from exc
    return network


class ZeroShot(nn.Module):
    """Wraps the image tower of a CLIP-like network as images fp32 [N, 3, H, W] → logits [N, labels].

    Its last layer is the embeddings of the labels.
    """

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
    """The network of a folder that hub.read_folder accepts as zero-shot, with these labels; raises UserError."""
    read_folder(folder, zero_shot=True)  # again, since it may have changed after it was added
    towers = _loaded("AutoModel", folder).eval()
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as exc:  # tokenizers' errors have no common base class
        raise ModelError(f"transformers cannot load its tokenizer: {first_line(exc)}") from exc
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
