"""The project's version in files that cannot read it.

Only `gateway/__init__.py` has it. pyproject.toml reads it there when a wheel is built; the client and the resize
kernel are separate distributions, which are built from their folders alone, and Helm reads the chart.
"""

import re
from functools import partial
from pathlib import Path

from deploy.generate import CHART, DEPLOY
from gateway import __version__

PROJECT = DEPLOY.parent
_PYTHON = r"[\w.]+"
_SEMANTIC = r"[\w.-]+"
_PRE_RELEASE = re.compile(r"(?<=\d)(a|b|rc)(\d+)$")


def semantic(version: str) -> str:
    """A version of Python (PEP 440) as Helm wants it (Semantic Versioning 2.0.0): 1.2.0rc3 is 1.2.0-rc.3."""
    return _PRE_RELEASE.sub(r"-\1.\2", version)


def files(version: str = __version__) -> dict[Path, str]:
    """The files that name the version, with their content."""
    chart = CHART / "Chart.yaml"
    images = rf"(-t REGISTRY/\w+:){_PYTHON}"
    wheel = rf"(/triton_image_gateway_client-){_PYTHON}(?=-py3-none-any\.whl)"
    texts: dict[Path, str] = {}
    for path, place, wanted in (
        (PROJECT / "gateway_client" / "__init__.py", rf'^(__version__ = "){_PYTHON}', version),
        (PROJECT / "native" / "pyproject.toml", rf'^(version = "){_PYTHON}', version),
        (chart, rf"^(version: ){_SEMANTIC}", semantic(version)),
        (chart, rf'^(appVersion: "){_PYTHON}', version),
        (CHART / "README.md", images, version),
        (PROJECT / "docs" / "guides" / "kubernetes.md", images, version),
        (PROJECT / "docs" / "examples" / "classify-job.yaml", rf"(image: triton-image-gateway/\w+:){_PYTHON}", version),
        (DEPLOY / "kserve" / "runtime.yaml", rf"(image: triton-image-gateway/\w+:){_PYTHON}", version),
        (PROJECT / "gateway_client" / "README.md", wheel, version),
        (PROJECT / "docs" / "tutorials" / "first-service.md", wheel, version),
    ):
        text = texts.get(path) or path.read_text()
        if not re.search(place, text, re.MULTILINE):
            raise ValueError(f"{path} has no place for the version")
        texts[path] = re.sub(place, partial(_after, wanted), text, flags=re.MULTILINE)
    return texts


def _after(version: str, match: re.Match[str]) -> str:
    return match[1] + version
