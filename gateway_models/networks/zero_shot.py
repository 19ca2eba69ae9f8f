"""Zero-shot classifiers: the image tower of a CLIP-like network; its last layer is the embeddings of the labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gateway_models.networks.errors import ModelError
from gateway_models.networks.hub import CONFIG, read_config, read_folder
from gateway_models.networks.job_checks import report
from gateway_models.networks.pretrained import loaded

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
    """The network of a folder that hub.read_folder accepts as zero-shot, with these labels; raises UserError."""
    read_folder(folder, zero_shot=True)  # again, since it may have changed after it was added
    towers = loaded("AutoModel", folder).eval()
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as exc:  # tokenizers' errors have no common base class
        raise ModelError(f"transformers cannot load its tokenizer: {str(exc).strip().splitlines()[0]}") from exc
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
