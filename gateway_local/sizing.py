"""Instance counts and batch sizes for this machine, in configurations that Triton reads instead of config.pbtxt.

A config.pbtxt without a `count`, a `preferred_batch_size` or a `max_queue_delay_microseconds` leaves them to the plan
of gateway/machine/capacity.py; written values stay. The completed text is configs/sized.pbtxt next to config.pbtxt, and
Triton reads it if it is started with --model-config-name=sized. Standard library only: NVIDIA's image has no more.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gateway.machine.capacity import CPU_PREFERRED, Plan, plan
from gateway_local.config_text import Field, edited, parse

CONFIG = "config.pbtxt"
NAME = "sized"
ARGUMENT = f"--model-config-name={NAME}"
"""Triton's option: configs/sized.pbtxt instead of config.pbtxt for models that have one."""
FOLDER = "configs"
PARAMETER = "sized_for"  # gateway.triton.contract.SIZED_FOR, which needs protobuf
"""The parameter of a completed configuration with the inputs of its numbers."""
RAW_IMAGE = "RAW_IMAGE"
TORCHSCRIPT, ONNX = "pytorch_libtorch", "onnxruntime_onnx"
CPU_NETWORK = "cpu.onnx"  # gateway_local.cpu_network.NETWORK
"""The form of a TorchScript network that ONNX Runtime runs on a CPU, in a version's folder."""
FUSER = "ENABLE_TENSOR_FUSER"
"""Parameter of NVIDIA's libtorch backend. TorchScript's fuser compiles kernels at the second call with a batch size,
while clients wait, and a queue forms every size up to max_batch_size. Without the fuser nothing is compiled."""
_HEAD = "# Written from ../config.pbtxt when Triton was started; change that file.\n"


def roles(configs: Mapping[str, Field]) -> dict[str, bool]:
    """The steps of the ensembles that take RAW_IMAGE, by name; true for preprocessors, which read it."""
    found: dict[str, bool] = {}
    for config in configs.values():
        if RAW_IMAGE not in {each.value.strip("\"'") for each in config.all("input", "name")}:
            continue
        for step in config.all("ensemble_scheduling", "step"):
            reads = {each.value.strip("\"'") for each in step.all("input_map", "value")}
            found[step.first("model_name")] = RAW_IMAGE in reads
    return found


def completed(text: str, *, preprocessor: bool, chosen: Plan, in_onnx: bool = False) -> str:
    """A configuration with the plan's numbers where it has none; the text itself if it has all of them.

    Networks run on the plan's GPUs, if it has any, unless their configuration says otherwise: KIND_AUTO would fall back
    to the CPU without a word where a driver does not fit. On a CPU, ONNX Runtime (`in_onnx`) warms up with one batch
    of each size: it compiles nothing. Raises ValueError if the text is no configuration.
    """
    config = parse(text)
    edits: list[tuple[int, int, str]] = []
    on_gpus = []
    for group in config.all("instance_group"):
        kind = group.first("kind")
        on_gpu = chosen.gpus > 0 and (kind == "KIND_GPU" or (not preprocessor and kind in {"", "KIND_AUTO"}))
        on_gpus.append(on_gpu and not preprocessor)
        if kind == "KIND_MODEL" or (kind == "KIND_GPU" and not on_gpu):
            continue
        if on_gpu:
            edits += [(each.start, each.end, "KIND_GPU") for each in group.all("kind")]
        if not group.all("count"):
            edits.append((group.end, group.end, f"count: {_count(chosen, preprocessor=preprocessor, on_gpu=on_gpu)} "))
    if not on_gpus:
        on_gpus = [not preprocessor and chosen.gpus > 0]
        kind = "KIND_CPU" if preprocessor else "KIND_GPU" if chosen.gpus else "KIND_AUTO"
        count = _count(chosen, preprocessor=preprocessor, on_gpu=on_gpus[0])
        edits.append((config.end, config.end, f"\ninstance_group {{ kind: {kind} count: {count} }}\n"))
    written = {each.first("key") for each in config.all("parameters")}
    if any(on_gpus) and config.first("platform") == TORCHSCRIPT and FUSER not in written:
        parameter = f'parameters {{ key: "{FUSER}" value: {{ string_value: "false" }} }}'
        edits.append((config.end, config.end, f"\n{parameter}\n"))
    for batching in config.all("dynamic_batching"):
        most = int(config.first("max_batch_size") or 0)
        preferred = [size for size in (chosen.preferred if any(on_gpus) else CPU_PREFERRED) if size <= most]
        if preferred and not batching.all("preferred_batch_size"):
            edits.append((batching.end, batching.end, f"preferred_batch_size: {preferred} "))
            if any(on_gpus):
                edits.append((config.end, config.end, _warmups(text, config.all("model_warmup"), preferred)))
        may_wait = any(on_gpus) and not batching.all("default_queue_policy")
        if may_wait and not batching.all("max_queue_delay_microseconds"):
            edits.append((batching.end, batching.end, f"max_queue_delay_microseconds: {chosen.queue_delay_us} "))
    if edits and not any(on_gpus) and (in_onnx or config.first("platform") == ONNX):
        edits += _shorter(text, config.all("model_warmup"))
    if edits:
        parameter = f'parameters {{ key: "{PARAMETER}" value: {{ string_value: "{chosen.machine}" }} }}'
        edits.append((config.end, config.end, f"\n{parameter}\n"))
    return edited(text, edits)


def _warmups(text: str, written: list[Field], preferred: list[int]) -> str:
    """Warm-ups of the preferred batches that have none, each like the last one; none where none is written."""
    warmed = {each.first("batch_size") for each in written}
    last = written[-1] if written else Field("")
    sizes, names = last.all("batch_size"), last.all("name")
    added = ""
    for size in preferred:
        if sizes and str(size) not in warmed:
            own = [(each.start - last.start, each.end - last.start, str(size)) for each in sizes]
            own += [(each.start - last.start, each.end - last.start, f'"batch of {size}"') for each in names]
            added += "\nmodel_warmup " + edited(text[last.start : last.end + 1], own)
    return added


def _shorter(text: str, warmups: list[Field]) -> list[tuple[int, int, str]]:
    """Edits that leave one call of each warm-up, and none of the larger batches that `gateway model add` writes."""
    edits = []
    for each in warmups:
        before = text[: each.start].rstrip()
        if each.first("name").startswith("batch of ") and each.first("batch_size") != "1" and before.endswith(","):
            edits.append((len(before) - 1, each.end + 1, ""))
        else:
            edits += [(count.start, count.end, "1") for count in each.all("count")]
    return edits


def _count(chosen: Plan, *, preprocessor: bool, on_gpu: bool) -> int:
    if preprocessor:
        return math.ceil(chosen.preprocessors / chosen.gpus) if on_gpu else chosen.preprocessors
    return chosen.networks if on_gpu or not chosen.gpus else plan(chosen.cores, 0, chosen.costs).networks


def completed_texts(repository: Path, chosen: Plan) -> dict[str, str]:
    """The configurations that the plan completes, by model; without complete or unreadable ones."""
    files = read(repository)
    found = {}
    for name, preprocessor in roles({name: config for name, (_, config) in files.items()}).items():
        if name in files:
            text, _ = files[name]
            in_onnx = any(repository.glob(f"{name}/*/{CPU_NETWORK}"))
            found[name] = completed(text, preprocessor=preprocessor, chosen=chosen, in_onnx=in_onnx)
            if found[name] == text:
                del found[name]
    return found


def read(repository: Path) -> dict[str, tuple[str, Field]]:
    """The texts of a repository's readable configurations and their fields, by model."""
    found = {}
    for path in sorted(repository.glob(f"*/{CONFIG}")):
        try:
            text = path.read_text()
            found[path.parent.name] = text, parse(text)
        except (OSError, ValueError):
            continue
    return found


def write(repository: Path, chosen: Plan) -> None:
    """Write the completed configurations of a repository, and remove the ones that are no longer needed.

    Raises OSError where the repository is read-only.
    """
    texts = completed_texts(repository, chosen)
    for path in repository.glob(f"*/{FOLDER}/{NAME}.pbtxt"):
        if path.parent.parent.name not in texts:
            path.unlink(missing_ok=True)
    for name, text in texts.items():
        path = repository / name / FOLDER / f"{NAME}.pbtxt"
        if not path.is_file() or path.read_text() != _HEAD + text:
            path.parent.mkdir(exist_ok=True)
            draft = path.with_name(f".{NAME}-{os.getpid()}")
            draft.write_text(_HEAD + text)
            draft.replace(path)


def link(source: Path, target: Path) -> None:
    """Make or update a repository of links to another one, with separate folders for configurations."""
    models = {path.name: path for path in source.iterdir() if path.is_dir()}
    for folder in target.iterdir():
        if folder.name not in models:
            shutil.rmtree(folder)
    for name, model in models.items():
        folder = target / name
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        files = {path.name: path for path in model.iterdir() if path.name != FOLDER}
        others = {f"{FOLDER}/{path.name}": path for path in model.glob(f"{FOLDER}/*") if path.stem != NAME}
        for path in (*folder.iterdir(), *(folder / FOLDER).iterdir()):
            if path.is_symlink() and str(path.relative_to(folder)) not in {*files, *others}:
                path.unlink()
        for place, path in {**files, **others}.items():
            if not (folder / place).is_symlink():
                (folder / place).symlink_to(path)


class SizedRepository:
    """A model repository with completed configurations: in its own folders, or in one of links where it is read-only.

    `path` is what Triton is started with, with ARGUMENT.
    """

    def __init__(self, source: Path, chosen: Plan, *, linked: bool = False) -> None:
        self.source = source.resolve()
        self.chosen = chosen
        self.path = self.source
        self._linked = linked
        self._seen: object = None

    def update(self) -> None:
        """Complete all changes since the last call: added models, edited configurations."""
        try:
            self._update()
        except OSError:
            if self._linked:
                raise
            self._linked = True
            self._update()

    def _update(self) -> None:
        if self._linked and self.path == self.source:
            self.path = Path(tempfile.mkdtemp(prefix="sized-models-"))
        seen = _stamps(self.source)
        if seen == self._seen:
            return
        if self._linked:
            link(self.source, self.path)
        write(self.path, self.chosen)
        self._seen = seen

    def remove(self) -> None:
        """Remove the folder of links, if there is one."""
        if self.path != self.source:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path, self._seen = self.source, None


def _stamps(repository: Path) -> list[tuple[str, int]]:
    """Changes with the models of a repository, their versions and their configurations."""
    paths = (*repository.glob("*"), *repository.glob(f"*/{CONFIG}"))
    found = []
    for path in sorted(paths):
        try:
            found.append((str(path), path.stat().st_mtime_ns))
        except OSError:  # it has just been removed
            continue
    return found
