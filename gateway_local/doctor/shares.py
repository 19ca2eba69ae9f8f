"""Checks whether the versions that a split or a shadow names exist."""

from collections.abc import Callable, Iterator, Mapping

from gateway.findings import Finding, fail, ok, warn
from gateway.settings import Settings, variable
from gateway_plugins.rollouts.settings import RolloutSettings

Shares = Mapping[str, Mapping[str, int]]


def shares(settings: Settings, has: Callable[[str, str], bool]) -> Iterator[Finding]:
    """A finding for each of the two that is set; `has` returns whether a model, by name, has a version."""
    rollouts = RolloutSettings.of(settings)
    if rollouts.model_split:
        yield _finding("split", "model_split", rollouts.model_split, has) or ok(
            "split", _text(rollouts.model_split, "")
        )
    if rollouts.model_shadow:
        yield _finding("shadow", "model_shadow", rollouts.model_shadow, has) or ok(
            "shadow", f"receives {_text(rollouts.model_shadow, ' %')}"
        )


def _finding(check: str, field: str, given: Shares, has: Callable[[str, str], bool]) -> Finding | None:
    missing = [
        f"{name} has no version {version}" for name in given for version in given[name] if not has(name, version)
    ]
    if not missing:
        return None
    advice = f"add it with gateway model add … --version, or correct {variable(field)}"
    if field == "model_shadow":
        return warn(check, f"{', '.join(missing)}, so it receives nothing", advice)
    return fail(check, f"{', '.join(missing)}, so its share of the requests is answered with 503", advice)


def _text(given: Shares, unit: str) -> str:
    return "; ".join(
        f"{name}: " + ", ".join(f"{share}{unit} version {version}" for version, share in versions.items())
        for name, versions in given.items()
    )
