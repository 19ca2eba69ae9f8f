"""`python -m deploy.generate`: write every generated file under deploy/."""

from collections.abc import Iterator
from pathlib import Path

from deploy.generate import CHART, DEPLOY, manifests, third_party, values, version


def files() -> Iterator[tuple[Path, str]]:
    """Every generated file with its content. Later files are made from earlier ones, so write each before the next."""
    yield from version.files().items()
    yield CHART / "values.schema.json", values.schema()
    for name, text in manifests.files().items():
        yield DEPLOY / "kubernetes" / name, text
    yield third_party.PATH, third_party.text()


def rewrite(path: Path, content: str) -> None:
    """Write a file unless it has this content: make would install the project again for a newer pyproject.toml."""
    if not path.exists() or path.read_text() != content:
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


if __name__ == "__main__":
    for path, content in files():
        rewrite(path, content)
