"""Models in Hugging Face's format: a folder with config.json, model.safetensors and preprocessor_config.json."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.values.labels import numbered
from gateway.values.text_files import read_text
from gateway_client.files import is_hidden
from gateway_models.networks.errors import ModelError, first_line, library
from gateway_models.repository.card import readme_sentence
from gateway_models.repository.preprocessing import Preprocessing
from gateway_models.repository.preprocessing_sources import MAX_JSON_BYTES, from_file

HUGGING_FACE, TIMM = "huggingface:", "timm:"
CONFIG, WEIGHTS = "config.json", "*.safetensors*"
PROCESSORS = ["preprocessor_config.json", "processor_config.json"]
"""Files of a processor; transformers 5 may write the second one alone."""
WANTED = [CONFIG, *PROCESSORS, WEIGHTS]
TOKENIZER = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
]
"""More files, for the text tower of a zero-shot model."""
ZERO_SHOT = ("CLIPModel", "SiglipModel")
"""Architectures of transformers with an image tower and a text tower in one space."""
MAX_JSON_DEPTH = 16
"""Levels of nested configurations, such as a backbone's."""
CODE = frozenset({"auto_map", "custom_pipelines", "trust_remote_code", "quantization_config", "use_kernels"})
"""Keys of config.json that make transformers import code of the folder or of another package."""
IMPLEMENTATIONS = frozenset(
    {"attn_implementation", "_attn_implementation", "_attn_implementation_internal"}
    | {"experts_implementation", "_experts_implementation", "_experts_implementation_internal"}
)
BUILT_IN = (None, "eager", "sdpa", "batched_mm", "grouped_mm")
"""Values of IMPLEMENTATIONS that download no kernel from the hub."""
LOADS = frozenset(
    {"cache_dir", "checkpoint_path", "file", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}
    | {"pretrained_model_args"}
)
"""Arguments of timm.create_model that make it read other files than the folder's weights."""
MULTI_LABEL = "multi_label_classification"
UNNAMED = re.compile(r"LABEL_\d+")
"""The names that transformers gives to unnamed classes."""
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Described:
    """What a folder or a file says about its model; () and None for missing parts."""

    labels: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    multi_label: bool = False
    """Whether it was trained to give an image several labels."""
    sentence: str = ""
    """The first one of its description."""


def folder_digest(folder: Path) -> str:
    """The SHA-256 over the configurations and the weights of a folder, with their file names."""
    hasher = hashlib.sha256()
    for path in sorted(path for pattern in WANTED for path in _matching(folder, pattern)):
        hasher.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(2**20):
                hasher.update(block)
    return hasher.hexdigest()


def read_folder(path: Path, *, zero_shot: bool = False) -> Described:
    """Inspect a folder of transformers or timm without loading it, with `zero_shot` one of two towers.

    Raises ModelError or PreprocessingError.
    """
    config = read_config(path / CONFIG)
    for weights in _matching(path, WEIGHTS):
        if not weights.is_file():
            raise ModelError(f"{weights} is not a regular file")
    if not weights_in(path):
        others = [each.name for each in path.iterdir() if each.suffix in {".bin", ".pt", ".pth", ".h5", ".msgpack"}]
        there = f"{others[0]}, which is not supported" if others else "no weights"
        raise ModelError(
            f"{path} has {there}: model.safetensors is expected, which model.save_pretrained(folder) of transformers "
            "and timm.models.save_for_hf(model, folder, safe_serialization=True) write"
        )
    if "pretrained_cfg" in config and "architecture" in config and not zero_shot:
        return _timm_folder(path, config)
    architectures = config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    tokenizer = path / "tokenizer_config.json"
    for file in (path / CONFIG, *([tokenizer] if zero_shot and tokenizer.is_file() else [])):
        if code := _names_code(read_config(file)):
            raise ModelError(
                f"{path} contains or references code ({code} in {file.name}), which is not run. If you trust it, "
                "load it in Python and export it: `gateway model add model.pt2`"
            )
    if zero_shot:
        if architecture in ZERO_SHOT:
            return Described(preprocessing=_preprocessing(path), sentence=readme_sentence(path))
        raise ModelError(
            f"{path} has {architecture or 'no architecture'}, and --zero-shot needs {' or '.join(ZERO_SHOT)}, as CLIP, "
            "OpenCLIP and SigLIP have them on Hugging Face"
        )
    if architecture in ZERO_SHOT:
        raise ModelError(
            f"{path} has {architecture}, which compares images with texts: add --zero-shot labels.txt, a file with one "
            "label per line, and --prompt 'a photo of a {}' for other texts than this"
        )
    if not architecture.endswith(("ForImageClassification", "ForImageClassificationWithTeacher")):
        raise ModelError(
            f"{path} has {architecture or 'no architecture'}, and a folder of …ForImageClassification is expected. A "
            "network that gives embeddings needs a classification layer: docs/guides/embeddings.md shows how to add "
            "one, trained or not, for POST /embed"
        )
    multi_label = config.get("problem_type") == MULTI_LABEL
    return Described(_labels(config.get("id2label"), path), _preprocessing(path), multi_label, readme_sentence(path))


def _preprocessing(path: Path) -> Preprocessing | None:
    processor = next((path / name for name in PROCESSORS if (path / name).is_file()), None)
    return from_file(processor) if processor else None


def fetch_folder(name: str, *, zero_shot: bool = False) -> Path:
    """The folder of OWNER/NAME, from Hugging Face's cache or the hub; raises ModelError."""
    if not _REPOSITORY.fullmatch(name):
        raise ModelError(f"{name!r} is not a model's name on Hugging Face, such as microsoft/resnet-50")
    hub = library("huggingface_hub", "Hugging Face models")
    patterns = [*WANTED, "README.md", *(TOKENIZER if zero_shot else ())]
    try:
        return Path(hub.snapshot_download(name, allow_patterns=patterns))
    except Exception as exc:  # httpx, the hub and the file system have no common base class
        raise ModelError(
            f"{name} cannot be downloaded ({first_line(exc)}): on a machine with network access, run hf download "
            f"{name} --local-dir FOLDER, and use FOLDER in place of the name"
        ) from exc


def timm_config(architecture: str) -> Mapping[str, Any]:
    """The pretrained configuration of timm's ARCH or ARCH.TAG; raises ModelError."""
    timm = library("timm", "timm models")
    if not timm.is_model(architecture):
        raise ModelError(f"timm has no model {architecture!r}: timm.list_models() and timm.list_pretrained() list them")
    config = timm.models.get_pretrained_cfg(architecture)
    found: Mapping[str, Any] = config.to_dict() if config else {}
    return found


def timm_preprocessing(config: Mapping[str, Any]) -> Preprocessing:
    """Preprocessing of timm's evaluation (timm.data.create_transform), from a configuration; raises ModelError."""
    try:
        # timm refuses an empty configuration, for which it has this default.
        given = {"input_size": (3, 224, 224), **config}
        values = library("timm", "timm models").data.resolve_data_config({}, pretrained_cfg=given)
        channels, height, width = values["input_size"]
        mean, std = (tuple(map(float, values[name])) for name in ("mean", "std"))
        shorter = math.floor(height / float(values["crop_pct"]))
    except (TypeError, ValueError, AssertionError, OverflowError) as exc:
        raise ModelError(f"timm cannot read its pretrained_cfg: {exc or type(exc).__name__}") from exc
    if channels != 3 or height != width:
        raise ModelError(
            f"its input_size is {list(values['input_size'])}, but only squares with three channels are supported"
        )
    resized = {"center": (shorter,), "squash": (shorter, shorter)}.get(str(values["crop_mode"]))
    if resized is None:
        raise ModelError(
            f"its crop_mode is {values['crop_mode']!r}, but only center and squash are supported: use --resize, "
            "--crop, --mean, --std"
        )
    return Preprocessing(resized, int(height), str(values["interpolation"]), mean, std)


def weights_in(folder: Path) -> list[Path]:
    """The files of weights in a folder, in order."""
    return _matching(folder, "*.safetensors")


def _matching(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder without hidden ones, such as ._model.safetensors, which macOS adds."""
    return sorted(path for path in folder.glob(pattern) if not is_hidden(path.name))


def _names_code(config: object, depth: int = 0) -> str:
    """The first key of a configuration, at any depth, that makes transformers import code; "" if there is none."""
    if isinstance(config, list) and depth < MAX_JSON_DEPTH:
        return next(filter(None, (_names_code(inner, depth + 1) for inner in config)), "")
    if not isinstance(config, dict):
        return ""
    if depth >= MAX_JSON_DEPTH:
        return "too many nested configurations"
    for key, value in config.items():
        if (key in CODE and value) or (key in IMPLEMENTATIONS and value not in BUILT_IN):
            return str(key)
        if found := _names_code(value, depth + 1):
            return found
    return ""


def _timm_folder(path: Path, config: Mapping[str, Any]) -> Described:
    arguments = config.get("model_args") or {}
    if not isinstance(config["pretrained_cfg"], dict) or not isinstance(arguments, dict):
        raise ModelError(f"{path / CONFIG} is not a configuration of timm")
    # timm loads names with a prefix from the hub or from another folder.
    if not re.fullmatch(r"[\w.]+", str(config["architecture"])):
        raise ModelError(
            f"{path / CONFIG} has the architecture {config['architecture']!r}, which is not a name in timm"
        )
    if refused := sorted(LOADS & arguments.keys()):
        raise ModelError(
            f"{path / CONFIG} has {refused[0]} in model_args, which makes timm load other files: remove it, since "
            "the weights come from the folder"
        )
    names = config.get("label_names") or config["pretrained_cfg"].get("label_names") or ()
    return Described(
        _labels(names if isinstance(names, Mapping) else dict(enumerate(names)), path),
        timm_preprocessing(config["pretrained_cfg"]),
        config.get("problem_type") == MULTI_LABEL,
        readme_sentence(path),
    )


def _labels(id2label: object, path: Path) -> tuple[str, ...]:
    """The labels in config.json's id2label in the order of their numbers; () if there are none."""
    if not isinstance(id2label, Mapping):
        return ()
    names = numbered(id2label.items(), path / CONFIG)
    return () if all(map(UNNAMED.fullmatch, names)) else names


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON object of a folder; raises ModelError."""
    try:
        values = json.loads(read_text(path, max_bytes=MAX_JSON_BYTES))
    except FileNotFoundError as exc:
        raise ModelError(
            f"{path.parent} is a folder; SOURCE must be a file, such as the model.pt2 in it, or a folder with "
            "config.json as Hugging Face and timm write it"
        ) from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelError(f"{path} cannot be read as JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise ModelError(f"{path} does not contain a JSON object")
    return values
