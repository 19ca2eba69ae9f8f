"""Which model answers when a request names none: `gateway up` serves it, and `gateway doctor` checks it."""

from pathlib import Path

from gateway.errors import UserError
from gateway.settings import Settings, variable
from gateway.triton.configs import ModelConfig, breaches, read_model_configs
from gateway.triton.contract import pinned_versions

HOW_TO_CHOOSE = (
    "--model-repository names a folder with one folder for each model; leave it out to serve the default model"
)


class NoDefaultModel(UserError):
    """The default model is not in the repository, or there is no repository; the message names the models found."""


def default_model(repository: Path, settings: Settings) -> str:
    """The model that answers by default; raises NoDefaultModel with the names of the candidates.

    If no variable or option names one, and the repository has only one model, that model is the default. If no
    configuration can be read, Triton reports the errors.
    """
    wanted, explicit = settings.model, "model" in settings.model_fields_set
    if not repository.is_dir():
        raise NoDefaultModel(f"there is no model repository at {repository}: {HOW_TO_CHOOSE}")
    if not any(repository.glob("*/config.pbtxt")):
        raise NoDefaultModel(
            f"there are no models in {repository}: {HOW_TO_CHOOSE}, or add one to it with "
            f"`gateway model add … --model-repository {repository}`"
        )
    configs = read_model_configs(repository)
    if wanted in configs or not configs:
        return wanted
    names = models(configs)
    if explicit:
        raise NoDefaultModel(f"{repository} has no model {wanted!r}; {_there_are(names)}: correct {_how()}")
    if len(names) == 1:
        return names[0]
    if not names:
        raise NoDefaultModel(
            f"{repository} has no model that fits the gateway's contract: add one with `gateway model add`"
        )
    raise NoDefaultModel(f"{repository} has no model {wanted!r}; {_there_are(names)}: choose one with {_how()}")


def models(configs: dict[str, ModelConfig]) -> list[str]:
    """The models that clients can request, without the ensembles that pin one version of another model."""
    serving = [name for name, config in configs.items() if not breaches(config)]
    versions = {ensemble for name in serving for ensemble in pinned_versions(name, serving)}
    return sorted(set(serving) - versions)


def _there_are(names: list[str]) -> str:
    return f"it has {', '.join(names)}" if names else "it has none"


def _how() -> str:
    return f"--model NAME or {variable('model')}"
