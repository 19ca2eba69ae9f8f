"""`python -m deploy.generate`: write every generated file under deploy/."""

from pathlib import Path

from deploy.generate import CHART, DEPLOY, dashboards, manifests, values


def files() -> dict[Path, str]:
    """Every generated file with its content."""
    readme = CHART / "README.md"
    return {
        CHART / "values.schema.json": values.schema(),
        readme: values.with_table(readme.read_text()),
        **{CHART / "files" / "dashboards" / name: text for name, text in dashboards.files().items()},
        **{DEPLOY / "kubernetes" / name: text for name, text in manifests.files().items()},
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
