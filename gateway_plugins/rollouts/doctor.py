"""The check of the versions that splits and shadows name."""

from collections.abc import Callable, Iterator

from gateway.findings import Finding, fail, ok, warn
from gateway.settings import Settings, variable
from gateway_plugins.rollouts.settings import RolloutSettings


def shares(settings: Settings, has_version: Callable[[str, str], bool]) -> Iterator[Finding]:
    """A finding for a split and a shadow that are set."""
    rollouts = RolloutSettings.of(settings)
    for field in ("model_split", "model_shadow"):
        if not (given := getattr(rollouts, field)):
            continue
        lacking = [
            f"{name} has no version {version}"
            for name in given
            for version in given[name]
            if not has_version(name, version)
        ]
        advice = f"add it with gateway model add … --version, or correct {variable(field)}"
        if not lacking:
            yield ok(field.removeprefix("model_"), f"every version of {variable(field)} exists")
        elif field == "model_shadow":
            yield warn("shadow", f"{', '.join(lacking)}, so it receives nothing", advice)
        else:
            yield fail("split", f"{', '.join(lacking)}, so its share of the requests is answered with 503", advice)
