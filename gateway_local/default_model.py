"""Which model answers when a request names none: `gateway up` serves it, and `gateway doctor` checks it."""

from pathlib import Path

from gateway.errors import UserError
from gateway.settings import Settings, variable
from gateway.triton.codecs import breaches
from gateway.triton.configs import ModelConfig, read_model_configs
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
    if not any(repository.glob("*/config.pbtxt")):
        raise NoDefaultModel(f"there are no models in {repository}: {HOW_TO_CHOOSE}, or run `gateway model add`")
    configs = read_model_configs(repository)
    if settings.model in configs or not configs:
        return settings.model
    names = models(configs)
    if len(names) == 1 and "model" not in settings.model_fields_set:
        return names[0]
    raise NoDefaultModel(
        f"{repository} has no model {settings.model!r}; it has {', '.join(names) or 'none that fits the contract'}: "
        f"choose one with --model NAME or {variable('model')}, or run `gateway model add`"
    )


def models(configs: dict[str, ModelConfig]) -> list[str]:
    """The models that clients can request, without the ensembles that pin one version of another model."""
    serving = [name for name, config in configs.items() if not breaches(config)]
    versions = {ensemble for name in serving for ensemble in pinned_versions(name, serving)}
    return sorted(set(serving) - versions)
