"""Builds networks of transformers and timm from a configuration and a weights file; runs no code of these files."""

import logging
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.hub import CONFIG, EXTRA, TIMM, import_timm, read_config, read_folder
from gateway_models.networks.weights import load_into, read_state_dict


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
    try:
        from transformers import AutoModelForImageClassification
        from transformers.utils import logging as transformers_logging
    except ImportError as exc:
        raise ModelFileError(f"Hugging Face models need {exc.name}: {EXTRA}") from exc
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        network, info = AutoModelForImageClassification.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as exc:  # safetensors, torch and transformers have no common base class
        raise ModelFileError(f"transformers cannot load it: {str(exc).strip().splitlines()[0]}") from exc
    missing = sorted([*info["missing_keys"], *(str(each[0]) for each in info["mismatched_keys"])])
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ModelFileError(
            f"its weights lack {missing[0]}{others}, which would be random: was it saved before its training?"
        )
    return Logits(network).eval()


def timm_network(architecture: str, weights: Path, classes: int | None) -> nn.Module:
    """A network of timm with the weights of a file; raises ModelFileError if their names or shapes do not fit."""
    network = _create(architecture, **({"num_classes": classes} if classes else {}))
    return load_into(network, read_state_dict(weights), str(weights), f"{TIMM}{architecture}")


def _timm_folder(folder: Path, config: dict[str, Any]) -> nn.Module:
    classes = config.get("num_classes") or config["pretrained_cfg"].get("num_classes")
    options = {"num_classes": classes, **(config.get("model_args") or {})}
    if config.get("global_pool"):
        options["global_pool"] = config["global_pool"]
    network = _create(config["architecture"], **options)
    (weights,) = sorted(folder.glob("*.safetensors"))[:1]
    return load_into(network, read_state_dict(weights), str(weights), f"{TIMM}{config['architecture']}")


def _create(architecture: str, **options: Any) -> nn.Module:  # noqa: ANN401  # they depend on the network
    timm = import_timm()
    logging.getLogger("timm").setLevel(logging.ERROR)
    try:
        network: nn.Module = timm.create_model(architecture, pretrained=False, exportable=True, **options)
    except Exception as exc:  # constructors may raise anything
        raise ModelFileError(f"timm cannot build {architecture}: {str(exc).strip().splitlines()[0]}") from exc
    return network
