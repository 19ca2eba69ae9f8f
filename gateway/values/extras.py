"""The one way in which messages say how to install an extra of pyproject.toml."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def install(*extras: str, project: Path = PROJECT) -> str:
    """The command that installs extras: of the checkout that this is, or else of the package index."""
    names = ",".join(extras)
    if (project / "pyproject.toml").is_file():
        return f"pip install -c {project}/constraints.txt -e '{project}[{names}]'"
    return f"pip install 'triton-image-gateway[{names}]'"
