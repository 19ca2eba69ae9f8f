"""Checks of the model repository, as Triton reads it."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from gateway.errors import ContractBroken
from gateway.findings import Finding, fail, ok, warn
from gateway.ingest.resizing import names_release
from gateway.triton.codec import Codecs
from gateway.triton.contract import CLASSIFIER, pinned
from gateway.triton.model_config import (
    HOLDS_BACK,
    REMEDY,
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
    has_queue_policy,
    parameters,
    read_model_config,
    steps,
)
from gateway_local.cuda_pool import arguments, pool_bytes, uncacheable
from gateway_local.tuning import WARNING, runtimes
from gateway_machine.capacity import Plan
from gateway_machine.gpus import gpu_count
from gateway_plugins.demand.footprint import Need, need
from gateway_plugins.shared.safe_path import SafePath, UnsafePath, safe_name

CONFIG = "config.pbtxt"
LIMITED = "nothing, if they do not matter; gateway model add writes a model without them"
"""Advice for a model with limitations."""
FILE_NAMES = {
    "python": "model.py",
    "pytorch": "model.pt",
    "pytorch_libtorch": "model.pt",
    "onnxruntime": "model.onnx",
    "onnxruntime_onnx": "model.onnx",
    "tensorrt": "model.plan",
    "tensorrt_plan": "model.plan",
}
"""The file in a version's folder by backend or platform, unless default_model_filename is set."""

Configs = Mapping[str, ModelConfig]


def read(repository: Path) -> tuple[Configs, Finding]:
    """The configurations that can be read, by folder, and a finding about those that cannot."""
    configs: dict[str, ModelConfig] = {}
    faults = []
    paths = sorted(repository.glob(f"*/{CONFIG}"))
    for path in paths:
        try:
            config = read_model_config(path)
        except (OSError, ValueError) as exc:
            faults.append(str(exc))
            continue
        configs[path.parent.name] = config
        if config.name and config.name != path.parent.name:
            faults.append(f"{path}: name is {config.name!r}, which differs from its folder's")
        faults += [
            f"{path}: the step {step!r} is not a model of this repository"
            for step in steps(config)
            if not _is_model(repository, step)
        ]
    if not paths:
        return configs, fail("models", f"{repository} has no */{CONFIG}", "name the folder with --model-repository")
    if faults:
        return configs, fail("models", "\n".join(faults), f"correct {CONFIG}")
    return configs, ok("models", f"{', '.join(configs)} in {repository}")


def _is_model(repository: Path, step: str) -> bool:
    try:
        return (repository / safe_name(step) / CONFIG).is_file()
    except UnsafePath:
        return False


def contract(configs: Configs, model: str, codecs: Codecs | None = None) -> Finding:
    """Whether the model that answers by default fits the gateway's contract."""
    if model not in configs:
        return fail(
            "contract", f"there is no model {model!r}", "GATEWAY_MODEL must name one of the repository's models"
        )
    try:
        codec = (codecs or Codecs()).of(configs[model])
    except ContractBroken as exc:
        return fail("contract", exc.message, f"correct {model}/{CONFIG}")
    last = [model, *steps(configs[model])][-1]
    if lacks := codec.limitations(configs.get(last, ModelConfig(name=last))):
        return warn("contract", "\n".join([f"{model} is served with limitations", *lacks]), LIMITED)
    return ok("contract", f"{model} fits the gateway's contract")


def tensors(configs: Configs) -> Finding:
    """Whether the input tensors of each step of an ensemble match the outputs of the step before it."""
    faults = [fault for name in configs for fault in mismatches(name, configs)]
    if faults:
        return fail("tensors", "\n".join(faults), f"correct data_type or dims in one {CONFIG} of the two")
    return ok("tensors", "every step takes what the one before it gives")


def files(repository: Path, configs: Configs) -> Finding:
    """Whether every model has a version, and every version its file."""
    lacks = []
    for name, config in configs.items():
        versions = [folder for folder in (repository / name).iterdir() if folder.is_dir() and folder.name.isdigit()]
        if not versions:
            lacks.append(f"{name} has no version, a folder such as {name}/1")
        file_name = config.default_model_filename or FILE_NAMES.get(config.backend or config.platform)
        if file_name:
            lacks += _missing(file_name, versions)
    if not lacks:
        return ok("model files", "every version has its file")
    no_version = f"{CLASSIFIER} has no version, a folder such as {CLASSIFIER}/1"
    no_file = f"{repository / CLASSIFIER / '1' / 'model.pt'} is missing"
    if lacks in ([no_version], [no_file]):
        return warn("model files", lacks[0], "gateway up makes it at its first start; gateway model export does so now")
    return fail("model files", "\n".join(lacks), "add the files, or run gateway model export for the default model")


def _missing(file_name: str, versions: list[Path]) -> list[str]:
    try:
        paths = [folder / SafePath(file_name) for folder in versions]
    except UnsafePath as exc:
        return [f"default_model_filename: {exc}"]
    return [f"{path} is missing" for path in paths if not path.exists()]


def has_version(repository: Path, name: str, version: str) -> bool:
    """Whether clients can request a version of a model."""
    return (repository / pinned(name, version)).is_dir() or (repository / name / version).is_dir()


def labels(repository: Path, configs: Configs) -> Finding:
    """Whether the label files exist and have one line per class."""
    faults = []
    counts = []
    for name, config in configs.items():
        for output in config.output:
            if not output.label_filename:
                continue
            try:
                path = repository / name / SafePath(output.label_filename)
            except UnsafePath as exc:
                faults.append(f"{name}/{CONFIG}: label_filename: {exc}")
                continue
            classes = output.dims[-1] if output.dims else -1
            try:
                lines = len(path.read_text("utf-8").splitlines())
            except (OSError, UnicodeDecodeError) as exc:
                faults.append(f"cannot read {path}: {getattr(exc, 'strerror', 'it is not UTF-8')}")
                continue
            counts.append(f"{lines} in {name}/{output.label_filename}")
            if classes > 0 and lines != classes:
                faults.append(f"{path} has {lines} lines, and {output.name} has {classes} classes")
    if faults:
        return fail("labels", "\n".join(faults), "one line for each class, in the order of the model's output")
    if not counts:
        return warn("labels", "no model has any: answers will name classes by number", "set label_filename")
    return ok("labels", ", ".join(counts))


def batching(configs: Configs) -> Finding:
    """Whether no model has a queue policy, with which Triton leaves requests waiting beside a free instance."""
    held_back = [name for name, config in configs.items() if has_queue_policy(config)]
    if held_back:
        return warn("batching", f"{', '.join(held_back)}: {HOLDS_BACK}", f"in {CONFIG}, {REMEDY}")
    return ok("batching", "no model has a queue policy, which would leave requests waiting")


def resize_library(configs: Configs) -> Finding:
    """Whether a preprocessor names a Pillow release, as earlier releases of this project allowed."""
    named = [
        f"{name} ({library})"
        for name, config in configs.items()
        if names_release(library := parameters(config).get("resize_library", ""))
    ]
    if named:
        return warn(
            "resize library",
            f"{', '.join(named)} names a Pillow release; the installed Pillow {version('pillow')} resizes, and a few "
            "pixels may differ by some levels",
            f"set resize_library to pillow in {CONFIG}, and compare: gateway model parity NAME",
        )
    return ok("resize library", "no model names a Pillow release")


def networks(repository: Path, configs: Configs, gpus: int) -> Finding:
    """Whether what was recorded about the networks' runtime on a CPU belongs to their files."""
    warnings = [
        line.removeprefix(WARNING) for line in runtimes(repository, configs, "", gpus=gpus) if line.startswith(WARNING)
    ]
    if warnings:
        return warn("networks", "\n".join(warnings), "until then it needs up to twice the processor time")
    return ok("networks", "no record of a network's runtime is damaged")


def gpu_memory(configs: Configs, gpus: int, images_in_flight: int) -> Finding:
    """Whether GPU memory can hold the tensors that a preprocessor leaves there, and whether a cache can read them."""
    if models := uncacheable(configs, gpus):
        return fail(
            "GPU memory",
            f"{', '.join(models)}: the response cache reads inputs in host memory only, and a preprocessor leaves them "
            "on the GPU",
            f"put the preprocessor on the CPU (KIND_CPU), or set response_cache {{ enable: false }} in {CONFIG}",
        )
    options = " ".join(arguments(pool_bytes(configs, gpus, images_in_flight)))
    if options:
        return warn(
            "GPU memory",
            f"a preprocessor leaves its images on the GPU: with a smaller pool than {options} answers are silently "
            "wrong under load; gateway up sets it, every other Triton must be started with it",
            f"put the preprocessor on the CPU: instance_group [ {{ kind: KIND_CPU }} ] in {CONFIG}",
        )
    return ok("GPU memory", "no preprocessor leaves images on a GPU")


def sizes(configs: Configs, chosen: Plan) -> Finding:
    """What the plan for this machine is, and which models have counts of their own."""
    lines = chosen.explained()
    written = [
        f"{name}: its {CONFIG} has a count of its own"
        for name in sorted({step for config in configs.values() for step in steps(config)} & configs.keys())
        if any(group.count for group in configs[name].instance_group)
    ]
    if not written:
        return ok("sizes", "\n".join(lines))
    return ok("sizes", "\n".join([*lines, *written, f"without `count`, these are sized too: {CONFIG}, or model add"]))


def instances(repository: Path, configs: Configs) -> int:
    """The number of processes that the embedded Triton, whose backends are Python-based, starts for these models."""
    return sum(each.processes for each in need(repository, configs, gpus=gpu_count()).footprints)


def memory(repository: Path, configs: Configs) -> Need:
    """The memory that these processes take."""
    return need(repository, configs, gpus=gpu_count())


def mismatches(name: str, configs: Mapping[str, ModelConfig]) -> list[str]:
    """Steps of an ensemble whose input differs from the output of the step before, one message each."""
    given: dict[str, tuple[str, str]] = {}
    found = []
    for step in configs[name].ensemble_scheduling.step:
        if step.model_name not in configs:
            continue
        for tensor in configs[step.model_name].input:
            giver, what = given.get(step.input_map.get(tensor.name, ""), ("", _described(tensor)))
            if what != _described(tensor):
                takes = f"{step.model_name} takes it as {tensor.name}, {_described(tensor)}"
                found.append(f"{name}: {giver} gives {what}, and {takes}")
        for tensor in configs[step.model_name].output:
            given[step.output_map.get(tensor.name, "")] = (f"{step.model_name}'s {tensor.name}", _described(tensor))
    return found


def _described(tensor: ModelInput | ModelOutput) -> str:
    return f"{DataType.Name(tensor.data_type)} {list(tensor.dims)}"
