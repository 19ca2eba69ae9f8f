"""Checks of the model repository, as Triton reads it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.errors import ContractBroken
from gateway.findings import Finding, fail, ok, warn
from gateway.triton.codecs import Codecs
from gateway.triton.configs import HOLDS_BACK, REMEDY, ModelConfig, has_queue_policy, read_model_config, steps
from gateway.triton.contract import CLASSIFIER
from gateway.values.labels import LabelsError, label_text
from gateway.values.safe_path import SafePath, UnsafePath

CONFIG = "config.pbtxt"
LIMITED = "nothing, if they do not matter; gateway model add writes a model without them"
"""Advice for a model with limitations."""
Configs = Mapping[str, ModelConfig]


def models(repository: Path) -> tuple[Configs, Finding]:
    """The configurations that can be read, by folder, and a finding about them and their labels.

    Triton itself names a file, a version or a step that is missing.
    """
    configs: dict[str, ModelConfig] = {}
    faults = []
    for path in sorted(repository.glob(f"*/{CONFIG}")):
        try:
            configs[path.parent.name] = read_model_config(path)
        except (OSError, ValueError) as exc:
            faults.append(str(exc))
    if not configs and not faults:
        return configs, fail("models", f"{repository} has no */{CONFIG}", "name the folder with --model-repository")
    for name, config in configs.items():
        # `gateway up` exports the default model at its first start.
        if name != CLASSIFIER or any((repository / name).glob("[0-9]*/model.*")):
            try:
                faults += _labels(repository, name, config)
            except UnsafePath as exc:
                faults.append(f"{name}/{CONFIG}: {exc}")
    if faults:
        return configs, fail("models", "\n".join(faults), f"correct {CONFIG}, or add what is missing")
    text = f"{', '.join(configs)} in {repository}"
    if held_back := [name for name, config in configs.items() if has_queue_policy(config)]:
        return configs, warn("models", f"{text}\n{', '.join(held_back)}: {HOLDS_BACK}", f"in {CONFIG}, {REMEDY}")
    return configs, ok("models", text)


def _labels(repository: Path, name: str, config: ModelConfig) -> Iterator[str]:
    """Label files that cannot be read, or have another number of lines than there are classes."""
    for output in config.output:
        if not output.label_filename:
            continue
        path = repository / name / SafePath(output.label_filename)
        classes = output.dims[-1] if output.dims else -1
        try:
            lines = len(label_text(path).split("\n"))
        except LabelsError as exc:
            yield str(exc)
            continue
        if classes > 0 and lines != classes:
            yield f"{path} has {lines} lines, and {output.name} has {classes} classes"


def contract(configs: Configs, model: str, codecs: Codecs) -> Finding:
    """Whether the model that answers by default fits the gateway's contract."""
    try:
        codec = codecs.of(configs[model])
    except ContractBroken as exc:
        return fail("contract", exc.message, f"correct {model}/{CONFIG}")
    last = [model, *steps(configs[model])][-1]
    if lacks := codec.limitations(configs.get(last, ModelConfig(name=last))):
        return warn("contract", "\n".join([f"{model} is served with limitations", *lacks]), LIMITED)
    return ok("contract", f"{model} fits the gateway's contract")
