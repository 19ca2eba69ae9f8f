"""Folders of Hugging Face and timm: inspected, refused with a reason, prepared as their own libraries do, and loaded.

Weights of another architecture, of torchvision or timm, are refused with the one that they fit.
"""

import json
import os
import re
import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision import models

from gateway.errors import UserError
from gateway.values.labels import LabelsError
from gateway_models.networks.add import completed
from gateway_models.networks.errors import ModelError
from gateway_models.networks.hub import fetch_folder, read_folder, timm_config, timm_preprocessing
from gateway_models.networks.jobs import do
from gateway_models.networks.model_source import find_labels, find_preprocessing, find_source
from gateway_models.networks.originals import load_written, original_module
from gateway_models.networks.pretrained import check_processor, processor
from gateway_models.networks.weights import read_tensors
from gateway_models.repository.preprocessing import reference_transforms
from gateway_models.repository.preprocessing_sources import from_file, processor_in
from gateway_models.repository.spec import ModelSpec
from tests.gateway_models.networks.builders import job
from tests.gateway_models.networks.pretrained import LABELS, save_vit, timm_network
from tests.gateway_models.networks.pretrained import vit as vit_network
from tests.gateway_models.repository.entries import SMALL

IMAGES = torch.rand(2, 3, 32, 32)


def noise(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Path:
    return save_vit(vit_network(), tmp_path_factory.mktemp("vit"))


def folder(path: Path, config: object, *files: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name in files:
        (path / name).write_bytes(b"")
    return path


VIT = {"architectures": ["ViTForImageClassification"], "model_type": "vit"}
TIMM = {"architecture": "test_resnet", "num_classes": 5, "pretrained_cfg": {"input_size": [3, 160, 160]}}
CONFIG, SAFE, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"


def test_folder_has_labels_preprocessing_and_the_network_of_transformers(vit):
    from transformers import ViTForImageClassification

    source = find_source(ModelSpec(str(vit), "model"))
    assert source.spec.source == f"huggingface:{vit}"
    assert find_labels(source, None) == LABELS
    found = find_preprocessing(source, None)
    assert (found.resize_size, found.crop_size, found.interpolation) == ((32, 32), 32, "bicubic")
    assert find_source(ModelSpec(f"huggingface:{vit}", "model")) == source
    with torch.no_grad():
        expected = ViTForImageClassification.from_pretrained(vit).eval()(IMAGES).logits
        assert torch.equal(original_module(source.spec, None)(IMAGES), expected)


def test_readme_describes_a_folder_and_is_no_part_of_the_network(vit, tmp_path):
    copy = shutil.copytree(vit, tmp_path / "copy")
    before = find_source(ModelSpec(str(copy), "model"))
    (copy / "README.md").write_text("# vit\nA small network. It is.")
    source = find_source(ModelSpec(str(copy), "model"))
    assert (before.described.sentence, source.described.sentence) == ("", "A small network.")
    assert source.spec.sha256 == before.spec.sha256


def test_small_logits_of_a_known_classifier_are_not_probabilities(vit, tmp_path):
    """A network that is not trained may give numbers between 0 and 1 alone, as a sigmoid would."""
    from transformers import ViTForImageClassification

    network = ViTForImageClassification.from_pretrained(vit)
    with torch.no_grad():
        network.classifier.weight.mul_(0.001)
        network.classifier.bias.copy_(torch.linspace(0.1, 0.9, len(LABELS)))
    network.save_pretrained(tmp_path / "small")
    source = f"huggingface:{tmp_path / 'small'}"
    assert do(job(source, "huggingface", tmp_path, labels=len(LABELS))).ending == "logits"
    assert load_written(tmp_path / "model.pt")(IMAGES).sum(dim=1).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["ViTModel"]}, "has ViTModel, and a folder of …ForImageClassification.*embeddings"),
        ({}, "has no architecture"),
        ({**VIT, "id2label": {"0": "a", "2": "b"}}, "has 2 labels, and none for class 1"),
        ({**VIT, "id2label": {"a": "0"}}, "names that are not numbers"),
        ({**VIT, "auto_map": {"AutoModel": "code.Net"}}, "auto_map in config"),
        ({**VIT, "backbone_config": {"auto_map": {"AutoModel": "code.Net"}}}, "auto_map in config"),
        ({**VIT, "attn_implementation": "someone/kernels"}, "attn_implementation in config"),
        ({**VIT, "quantization_config": {"quant_method": "any"}}, "quantization_config in config"),
        ({**TIMM, "architecture": "hf-hub:someone/model"}, "which is not a name in timm"),
        ({**TIMM, "architecture": "local-dir:/tmp"}, "which is not a name in timm"),
        ({**TIMM, "model_args": {"checkpoint_path": "evil.pth"}}, "checkpoint_path in model_args"),
        ({**TIMM, "model_args": {"pretrained_cfg": {"file": "evil.pth"}}}, "pretrained_cfg in model_args"),
        ({**TIMM, "pretrained_cfg": []}, "is not a configuration of timm"),
        ({**TIMM, "pretrained_cfg": {"crop_pct": 1e-320}}, "timm cannot read its pretrained_cfg"),
        ({**TIMM, "pretrained_cfg": {"crop_mode": ["center"]}}, "only center and squash are supported"),
        ("{", "cannot be read as JSON"),
        ("[]", "does not contain a JSON object"),
        ('{"a":' * 100_000, "cannot be read as JSON"),
        ('{"a": "' + "x" * (64 * 2**20) + '"}', "is larger than"),
    ],
    ids=lambda value: "" if isinstance(value, (dict, str)) and len(str(value)) > 60 else None,
)
def test_folder_that_is_no_classifier_or_names_code_is_refused(tmp_path, config, reason):
    with pytest.raises((ModelError, LabelsError), match=reason):
        read_folder(folder(tmp_path, config, SAFE))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: (path / CONFIG).unlink(), r"SOURCE must be a file.* or a folder with config\.json"),
        (lambda path: (path / SAFE).unlink(), "has no weights: model.safetensors is expected"),
        (lambda path: (path / SAFE).rename(path / PICKLED), "has pytorch_model.bin, which is not supported"),
        (lambda path: os.mkfifo(path / "more.safetensors"), r"more\.safetensors is not a regular file"),
    ],
)
def test_folder_without_its_files_is_refused(tmp_path, change, reason):
    (tmp_path / "._model.safetensors").write_bytes(b"of macOS")
    change(folder(tmp_path, VIT, SAFE))
    with pytest.raises(ModelError, match=reason):
        read_folder(tmp_path)


def test_classes_without_names_want_a_file_of_labels(tmp_path):
    config = {**VIT, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
    source = find_source(ModelSpec(str(folder(tmp_path / "model", config, SAFE)), "model"))
    with pytest.raises(ModelError, match="use --labels FILE"):
        find_labels(source, None)
    with pytest.raises(ModelError, match="how did training prepare its images"):
        find_preprocessing(source, None)


def test_folder_trained_for_several_labels_asks_for_the_option(tmp_path):
    path = folder(tmp_path, {**VIT, "problem_type": "multi_label_classification"}, SAFE)
    with pytest.raises(ModelError, match=r"several labels \(problem_type in config\.json\): add --multi-label"):
        find_source(ModelSpec(str(path), "model"))
    find_source(ModelSpec(str(path), "model", multi_label=True))


def test_every_processor_of_an_image_classifier_is_equal_or_refused():
    """Pixel for pixel on pictures of odd sizes, or refused with a reason, as the documents have it."""
    script = runpy.run_path("docs/processors.py")
    found = dict(script["results"]())
    assert {found[name] for name in ("Bit", "CLIP", "ConvNext", "MobileNetV1", "ViT")} == {script["EQUAL"]}
    assert found["MobileViT"] == "refused: do_flip_channel_order"
    assert not [result for result in found.values() if "would be served" in result]
    page = script["PAGE"].read_text()
    assert script["with_table"](page, script["table"](found)) == page, "run: python docs/processors.py"


def test_weights_that_lack_a_part_are_refused(vit, tmp_path):
    for path in vit.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    state = read_tensors(vit / SAFE)
    save_file({name: value for name, value in state.items() if "classifier" not in name}, tmp_path / SAFE)
    with pytest.raises(ModelError, match=r"its weights lack classifier\.bias and 1 others, which would be random"):
        original_module(ModelSpec(f"huggingface:{tmp_path}", "model"), None)
    (tmp_path / SAFE).write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(ModelError, match="transformers cannot load it"):
        original_module(ModelSpec(f"huggingface:{tmp_path}", "model"), None)


def test_name_that_cannot_be_fetched_is_reported(monkeypatch):
    def refuses(*_, **__):
        raise OSError("no route to host")

    with pytest.raises(ModelError, match="is not a model's name on Hugging Face"):
        fetch_folder("nothing")
    for source in ("timm:resnet5", "torchvision:resnet_50"):
        with pytest.raises(UserError, match=r"has no (model|classifier) 'resnet_?50?'.* lists? them"):
            find_source(ModelSpec(source, "model"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuses)
    with pytest.raises(ModelError, match=r"cannot be downloaded \(no route to host\): on a machine .*hf download"):
        fetch_folder("nobody/nothing")


def test_file_of_a_processor_has_its_librarys_code_as_reference(tmp_path):
    """With ONNX or TorchScript: the values of the class's own code, and refused where our reading differs."""
    from transformers import ConvNextImageProcessor, ConvNextImageProcessorPil

    ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.9).save_pretrained(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    spec = ModelSpec("head.onnx", "head", preprocessing=from_file(path), processor=processor_in(path))
    check_processor(spec)
    picture = noise(90, 120)
    own = ConvNextImageProcessorPil.from_pretrained(tmp_path)(picture, return_tensors="np")["pixel_values"]
    assert np.abs(processor(spec)(picture) - own[0]).max() < 1e-6
    with pytest.raises(ModelError, match=r"its own processor makes of a picture of .* use --resize, --crop"):
        check_processor(replace(spec, preprocessing=replace(spec.prepared, resize_size=(64,))))
    unnamed = json.loads(spec.processor)
    del unnamed["image_processor_type"]
    with pytest.raises(ModelError, match=r"transformers cannot load its processor .*: use --resize"):
        check_processor(replace(spec, processor=json.dumps(unnamed)))


def test_weights_in_half_precision_are_served_in_fp32(tmp_path):
    """As transformers 5 would load them by default, the network would refuse its images."""
    network = vit_network().half()
    source = find_source(ModelSpec(str(save_vit(network, tmp_path)), "model"))
    with torch.no_grad():
        found = original_module(source.spec, None)(IMAGES)
        assert torch.allclose(found, network.float().eval()(IMAGES).logits, atol=1e-5)


def test_folder_whose_processor_prepares_images_otherwise_is_refused(vit, monkeypatch):
    """For any cause: here a step that our reading of the file does not know."""
    from transformers import ViTImageProcessorPil

    source = find_source(ModelSpec(str(vit), "model"))
    spec = completed(source, None)
    assert spec.own_processor
    check_processor(spec)
    own = ViTImageProcessorPil.resize
    monkeypatch.setattr(ViTImageProcessorPil, "resize", lambda self, image, **more: own(self, image[::-1], **more))
    with pytest.raises(ModelError, match=r"a picture of 35×35 pixels that differ by up to \d+\.\d of 255 levels"):
        check_processor(spec)
    assert not completed(find_source(replace(spec, preprocessing=SMALL)), None).own_processor


@pytest.mark.parametrize("largest", [256, pytest.param(4096, marks=pytest.mark.long)])
def test_every_configuration_of_timm_is_equal_or_refused(largest):
    """Each combination of values that a network of timm was published with."""
    from timm import list_pretrained
    from timm.data import create_transform, resolve_data_config

    keys = ("input_size", "interpolation", "crop_pct", "crop_mode")
    published = map(timm_config, list_pretrained())
    configs = {tuple(each.get(key) for key in keys): each for each in published if each["input_size"][1] <= largest}
    refused = 0
    for config in configs.values():
        try:
            ours = timm_preprocessing(config)
        except UserError as exc:
            assert re.search("crop_mode is 'border'|only squares|black borders", str(exc))  # noqa: PT017
            refused += 1
            continue
        side = ours.resize_size[-1]
        picture = noise(side + 9, side + 12)
        theirs = create_transform(**resolve_data_config({}, pretrained_cfg=config))
        assert torch.allclose(reference_transforms(ours)(picture), theirs(picture), atol=1e-5), config
    assert refused < len(configs) / 10


def test_unknown_recipe_is_refused():
    with pytest.raises(ModelError, match="there is no recipe:mine; there is recipe:efficientnet-lite0"):
        original_module(ModelSpec("recipe:mine", "model"), None)


@pytest.mark.parametrize(
    ("asked", "classes", "advice"),
    [
        (
            "torchvision:resnet34",
            5,
            r"Missing key\(s\) in state_dict: \S+layer1\.2\.conv1\.weight.* Name the architecture",
        ),
        (
            "torchvision:resnet18",
            7,
            r"shape torch\.Size\(\[5, 512\]\).* give --labels FILE",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, asked, classes, advice):
    torch.save(models.get_model("resnet18", num_classes=5).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(ModelError, match=advice) as refused:
        original_module(ModelSpec(asked, "model", weights=str(tmp_path / "weights.pth")), classes)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_of_timm_come_from_safetensors_or_a_state_dict(tmp_path, suffix):
    network = timm_network("test_vit")
    path = tmp_path / f"weights.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(network.state_dict(), path)
    source = find_source(ModelSpec("timm:test_vit", "model", weights=str(path)))
    assert find_preprocessing(source, None) == timm_preprocessing(timm_config("test_vit"))
    images = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        assert torch.allclose(original_module(source.spec, 5)(images), network(images), atol=1e-6)


def test_timm_folder_has_labels_and_preprocessing(tmp_path):
    network = timm_network("test_resnet")
    save_file(network.state_dict(), tmp_path / SAFE)
    config = {"input_size": [3, 160, 160], "crop_pct": 0.95, "mean": [0.5] * 3, "std": [0.5] * 3}
    names = {str(number): label for number, label in reversed(list(enumerate(LABELS)))}
    folder(tmp_path, {"architecture": "test_resnet", "num_classes": 5, "pretrained_cfg": config, "label_names": names})
    source = find_source(ModelSpec(str(tmp_path), "model"))
    assert find_labels(source, None) == LABELS
    assert find_preprocessing(source, None).resize_size == (168,)
    images = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        assert torch.allclose(original_module(source.spec, None)(images), network(images), atol=1e-6)


def test_deit_with_a_teacher_is_served_by_its_mean_of_both_heads(tmp_path):
    from transformers import DeiTConfig, DeiTForImageClassificationWithTeacher, DeiTImageProcessor

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = DeiTConfig(image_size=32, patch_size=8, id2label=dict(enumerate(LABELS)), initializer_range=0.5, **sizes)
    network = DeiTForImageClassificationWithTeacher(config).eval()
    network.save_pretrained(tmp_path)
    DeiTImageProcessor(size={"height": 36, "width": 36}, crop_size=32).save_pretrained(tmp_path)
    source = find_source(ModelSpec(str(tmp_path), "model"))
    with torch.no_grad():
        expected = network(IMAGES).logits
        assert torch.allclose(original_module(source.spec, None)(IMAGES), expected, atol=1e-6)


def test_folder_of_timm_that_transformers_saved_is_served(tmp_path):
    """TimmWrapperForImageClassification: its weights have a prefix, and its classes may lack names."""
    from transformers import TimmWrapperConfig, TimmWrapperForImageClassification

    cfg = {"input_size": [3, 160, 160], "crop_pct": 0.95, "mean": [0.5] * 3, "std": [0.5] * 3}
    config = TimmWrapperConfig(architecture="test_resnet", num_labels=5, pretrained_cfg=cfg)
    network = TimmWrapperForImageClassification(config).eval()
    network.save_pretrained(tmp_path)
    source = find_source(ModelSpec(str(tmp_path), "model"))
    assert source.described.labels == ()
    spec = completed(source, None)
    check_processor(spec)
    images = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        assert torch.allclose(original_module(spec, None)(images), network(images).logits, atol=1e-6)
    config.problem_type = "multi_label_classification"
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="add --multi-label"):
        find_source(ModelSpec(str(tmp_path), "model"))
