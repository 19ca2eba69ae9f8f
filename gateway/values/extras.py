"""Checks for an extra of pyproject.toml, and names the command that installs it."""

from importlib.util import find_spec
from pathlib import Path

from gateway.errors import UserError

PROJECT = Path(__file__).resolve().parents[2]


def install(*extras: str, project: Path = PROJECT) -> str:
    """The command that installs extras: of the checkout that this is, or else of the package index."""
    names = ",".join(extras)
    if (project / "pyproject.toml").is_file():
        return f"pip install -c {project}/constraints.txt -e '{project}[{names}]'"
    return f"pip install 'triton-image-gateway[{names}]'"


class ExtraMissing(UserError):
    """A setting needs a package that is not installed."""


def require(setting: str, extra: str, *packages: str) -> None:
    """Raise ExtraMissing unless the packages of an extra that a setting needs are installed."""
    for package in packages:
        try:
            is_there = find_spec(package) is not None
        except ModuleNotFoundError:  # the package that contains it
            is_there = False
        if not is_there:
            raise ExtraMissing(
                f"{setting} is set, but the package {package} is not installed: {install(extra)}, or unset the variable"
            )
