"""deploy/kubernetes/: the chart rendered with its default values, for clusters without Helm."""

import re

from deploy.generate.helm import render

NAME = "images"
_HELM_ONLY = re.compile(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", re.MULTILINE)
_HEADER = "# {title}. Generated from deploy/helm/triton-image-gateway by `make docs`: change the chart instead.\n"
_TITLES = {"gateway": "The API", "triton": "Triton with the models of its image, one GPU a pod"}


def files() -> dict[str, str]:
    """A file for each part of the release, without its test."""
    (rendered,) = render([{}], name=NAME, namespace="default")
    if rendered.error:
        raise RuntimeError(rendered.error)
    return {
        f"{part}.yaml": _HEADER.format(title=title)
        + "\n---\n".join(
            _HELM_ONLY.sub("", f"{text}\n").rstrip()
            for name, text in sorted(rendered.files.items())
            if name.startswith(f"{part}/")
        )
        + "\n"
        for part, title in _TITLES.items()
    }
