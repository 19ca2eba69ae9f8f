"""Renders the chart with the Helm library of the wheel helm-python-sdk, in a separate process.

The library contains Go's runtime, with threads and signal handlers, which a process that forks should not have. One
process renders many sets of values, since a set takes milliseconds and a start a third of a second.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from deploy.generate import CHART

Values = dict[str, Any]
_SCRIPT = """
import json, sys
import helm_python as helm
chart, name, namespace, sets = json.load(sys.stdin)
answers = []
with helm.Chart.load(chart) as loaded:
    for values in sets:
        try:
            files = loaded.render(values, name=name, namespace=namespace)
        except helm.HelmError as error:
            answers.append({"error": str(error)})
        else:
            answers.append({"files": files, "lint": helm.lint(chart, values, strict=True, namespace=namespace)})
json.dump(answers, sys.stdout)
"""


@dataclass(frozen=True)
class Rendered:
    """The result for one set of values: the text of each template, or Helm's error, and the findings of `helm lint`."""

    files: dict[str, str]
    error: str = ""
    findings: tuple[str, ...] = ()

    @cached_property
    def documents(self) -> list[dict[str, Any]]:
        """Every object of the release, including the ones for `helm test`."""
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if libyaml is installed
        texts = (text for name, text in self.files.items() if name.endswith(".yaml"))
        return [document for text in texts for document in yaml.load_all(text, loader) if document]


def render(sets: Sequence[Values], *, name: str = "images", namespace: str = "vision") -> list[Rendered]:
    """The chart with each of the sets of values, as `helm template NAME --namespace NAMESPACE` renders it."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps([str(CHART), name, namespace, list(sets)]),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Helm's library failed: {done.stderr}")
    return [_rendered(answer) for answer in json.loads(done.stdout)]


def _rendered(answer: dict[str, Any]) -> Rendered:
    if "error" in answer:
        return Rendered({}, answer["error"])
    lint = answer["lint"]
    # 1 is information, such as a missing icon.
    findings = [message["error"] for message in lint["messages"] if message["severity"] > 1]
    files = {path.partition("/templates/")[2]: text.strip() for path, text in answer["files"].items() if text.strip()}
    return Rendered(files, findings=(*findings, *lint["errors"]))
