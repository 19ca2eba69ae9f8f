"""The versions that a split or a shadow names: whether there are such."""

from collections.abc import Callable, Iterator, Mapping

from gateway.settings import Settings, variable
from gateway_local.doctor.finding import Finding, fail, ok, warn

Shares = Mapping[str, Mapping[str, int]]


def shares(settings: Settings, has: Callable[[str, str], bool]) -> Iterator[Finding]:
    """A finding for each that is set; `has` tells whether a model, by name, has a version."""
    if settings.model_split:
        yield _finding("split", "model_split", settings.model_split, has) or ok(
            "split", _told(settings.model_split, "")
        )
    if settings.model_shadow:
        yield _finding("shadow", "model_shadow", settings.model_shadow, has) or ok(
            "shadow", f"looks on at {_told(settings.model_shadow, ' %')}"
        )


def _finding(check: str, field: str, given: Shares, has: Callable[[str, str], bool]) -> Finding | None:
    lacking = [
        f"{name} has no version {version}" for name in given for version in given[name] if not has(name, version)
    ]
    if not lacking:
        return None
    advice = f"add it with gateway model add … --version, or correct {variable(field)}"
    if field == "model_shadow":
        return warn(check, f"{', '.join(lacking)}, so it looks on at nothing", advice)
    return fail(check, f"{', '.join(lacking)}, so its share of the requests is answered with 503", advice)


def _told(given: Shares, unit: str) -> str:
    return "; ".join(
        f"{name}: " + ", ".join(f"{share}{unit} version {version}" for version, share in versions.items())
        for name, versions in given.items()
    )
