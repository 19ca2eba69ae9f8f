"""Zero-shot models: a small CLIP answers as transformers computes it."""

import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from gateway.errors import UserError
from gateway_models.networks.add import add, add_changed
from gateway_models.networks.model_source import find_source
from gateway_models.networks.onnx_runner import runner
from gateway_models.networks.originals import original_answers
from gateway_models.networks.torchscript import load_torchscript
from gateway_models.repository.entry import Entry, read_entry
from gateway_models.repository.spec import (
    MAX_PROMPTS,
    Format,
    ModelSpec,
    Precision,
    read_prompts,
)
from tests.gateway_models.repository.entries import SMALL

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
UNKNOWN = "<unk>"
WORDS = ("a", "photo", "of", "cat", "dog", "fox", "red", "the")
PROMPTS = ("a photo of a {}", "the {}")
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """A folder of a CLIP with random weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("clip")
    numbers = {word: number for number, word in enumerate(("<start>", "<end>", UNKNOWN, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(numbers, UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 0), ("<end>", 1)]
    )
    tokens = {"pad_token": "<end>", "unk_token": UNKNOWN}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 16, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1}
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def repository_of_two(clip, tmp_path_factory) -> Path:
    """A repository with the model `clip` of two labels, as TorchScript; not to be changed."""
    folder = tmp_path_factory.mktemp("two")
    add(request(clip, folder, "cat", "dog"), folder / "models", print)
    return folder / "models"


def labelled(path: Path, *labels: str) -> Path:
    path.write_text("".join(f"{label}\n" for label in labels))
    return path


def request(clip: Path, folder: Path, *labels: str, **changes) -> ModelSpec:
    file = labelled(folder / "labels.txt", *labels)
    return ModelSpec(str(clip), "clip", zero_shot=file, prompts=PROMPTS, preprocessing=SMALL, **changes)


def expected(clip: Path, *labels: str) -> torch.Tensor:
    """The probabilities by CLIPModel.forward, with the mean of the texts' embeddings of length 1."""
    from transformers import AutoTokenizer, CLIPModel

    model, tokenizer = CLIPModel.from_pretrained(clip).eval(), AutoTokenizer.from_pretrained(clip)
    with torch.no_grad():
        total = torch.zeros(())
        for prompt in PROMPTS:
            texts = tokenizer([prompt.format(label) for label in labels], padding=True, return_tensors="pt")
            output = model(pixel_values=IMAGES, **texts)
            total = total + output.text_embeds
        logits = output.image_embeds @ nn.functional.normalize(total, dim=-1).T * model.logit_scale.exp()
    return logits.softmax(-1)


def served(entry: Entry, repository: Path) -> torch.Tensor:
    file = entry.model_file(repository, entry.in_use)
    with torch.no_grad():
        return (runner(file) if entry.format is Format.ONNX else load_torchscript(file))(IMAGES)


@pytest.mark.parametrize(
    ("written_as", "precision", "tolerance"),
    [
        (None, None, 1e-5),
        pytest.param(Format.ONNX, Precision.FP16, 0.01, marks=pytest.mark.long),
        pytest.param(None, Precision.BF16, 0.05, marks=pytest.mark.long),
        pytest.param(Format.ONNX, Precision.FP32, 1e-5, marks=pytest.mark.long),
    ],
)
def test_scores_are_those_of_the_library(clip, repository_of_two, tmp_path, written_as, precision, tolerance):
    repository = repository_of_two
    if precision:
        repository = tmp_path / "models"
        add(request(clip, tmp_path, "cat", "dog", format=written_as, precision=precision), repository, print)
    entry, wanted = read_entry(repository, "clip"), expected(clip, "cat", "dog")
    assert torch.allclose(served(entry, repository), wanted, atol=tolerance)
    # `verify` computes the original with the same labels.
    assert torch.allclose(original_answers(entry.versions[1])(IMAGES)[0], wanted, atol=1e-5)


def test_image_embeddings_are_those_of_the_tower(clip, tmp_path):
    entry = add(request(clip, tmp_path, "cat", "dog", features=True), tmp_path / "models", print)
    assert entry.embedding_size == 24


def test_same_texts_change_nothing_and_changed_ones_are_the_next_version(clip, repository_of_two, tmp_path):
    """As `gateway up FOLDER --zero-shot FILE` adds it."""
    repository = Path(shutil.copytree(repository_of_two, tmp_path / "models"))
    spec = request(clip, tmp_path, "cat", "dog")
    assert add_changed(spec, repository, print)[1:] == (1, False)
    spec = replace(spec, prompts=PROMPTS[:1])
    assert add_changed(spec, repository, print)[1:] == (2, True)
    with pytest.raises(UserError, match="its labels differ"):
        add_changed(request(clip, tmp_path, "cat", "fox"), repository, print)


def test_clip_without_labels_is_told_of_the_option(clip):
    with pytest.raises(UserError, match=r"CLIPModel, which compares images with texts: add --zero-shot labels\.txt"):
        find_source(ModelSpec(str(clip), "clip"))


@pytest.mark.parametrize("prompts", [["a photo"], ["{}"] * (MAX_PROMPTS + 1)], ids=["no place", "past the limit"])
def test_wrong_prompts_are_refused(prompts):
    with pytest.raises(UserError, match=r"is no prompt|prompts are more than 100"):
        read_prompts(prompts)
    assert len(read_prompts(["{}"] * MAX_PROMPTS)) == MAX_PROMPTS
