"""Folders and weights as Hugging Face and timm write them, seeded and tiny."""

import logging
from pathlib import Path
from typing import Any

LABELS = ("cornflower", "daisy", "poppy", "sunflower", "violet")


def vit() -> Any:
    """A ViT of transformers for images of 32 pixels."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    config = ViTConfig(
        image_size=32,
        patch_size=8,
        initializer_range=0.5,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        id2label=dict(enumerate(LABELS)),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = ViTForImageClassification(config)
        torch.nn.init.normal_(network.classifier.weight, std=0.5)
    return network


def save_vit(network: Any, folder: Path) -> Path:
    """The folder of such a ViT, with its processor."""
    from transformers import ViTImageProcessor

    network.save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}, resample=3).save_pretrained(folder)
    return folder


def timm_network(architecture: str, classes: int = 5) -> Any:
    """A network of timm with seeded weights."""
    import timm
    import torch

    logging.getLogger("timm").setLevel(logging.ERROR)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = timm.create_model(architecture, num_classes=classes)
        torch.nn.init.normal_(network.get_classifier().weight, std=3.0)
    return network.eval()
