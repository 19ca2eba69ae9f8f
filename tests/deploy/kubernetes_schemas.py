"""Objects of the chart, and the schemas of Kubernetes and of its custom resources. Nothing is downloaded."""

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from referencing import Registry, Resource

from deploy.generate.helm import Rendered

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

CRDS = Path(__file__).parent / "crds"
VERSIONS = ("1.29.0", "1.37.0")
"""The oldest version that Chart.yaml allows, and the newest with a published schema."""
FOREIGN = {"Certificate", "Route"}
"""Kinds that the sets bring with `extraObjects` and whose schemas are not here."""


@cache
def validator(version: str, api_version: str, kind: str) -> "Validator":
    """A validator for objects of one kind. It is strict: an unknown field is an error, as for kubectl."""
    from jsonschema import Draft7Validator, Draft202012Validator  # a second of grammars

    crd = CRDS / f"{kind.lower()}.yaml"
    if crd.exists():
        return Draft7Validator(yaml.safe_load(crd.read_text()))
    package = find_spec("kubernetes_validate")
    assert package is not None
    folder = Path(str(package.origin)).parent / "kubernetes-json-schema" / f"v{version}-local-strict"
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = json.loads((folder / f"{kind.lower()}-{group}.json").read_text())
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(folder))


@cache
def _definitions(folder: Path) -> Registry[Any]:
    return Resource.from_contents(json.loads((folder / "_definitions.json").read_text())) @ Registry()


def faults(document: dict[str, Any], version: str) -> list[str]:
    """The errors of an object for a version of Kubernetes, one line each."""
    return [
        f"{document['kind']}/{document['metadata']['name']} {error.json_path}: {error.message}"
        for error in validator(version, document["apiVersion"], document["kind"]).iter_errors(document)
    ]


def find(release: Rendered, kind: str, ends: str) -> dict[str, Any]:
    """The object of a kind whose name ends in this way, hooks of Helm aside."""
    (found,) = [
        each
        for each in release.documents
        if each["kind"] == kind and each["metadata"]["name"].endswith(ends) and "hook" not in str(each["metadata"])
    ]
    return found


def template(release: Rendered, part: str) -> dict[str, Any]:
    """The pod template of a Deployment."""
    return find(release, "Deployment", f"-{part}")["spec"]["template"]


def pod(release: Rendered, part: str) -> dict[str, Any]:
    return template(release, part)["spec"]


def container(release: Rendered, part: str) -> dict[str, Any]:
    return next(each for each in pod(release, part)["containers"] if each["name"] == part)


def at(document: Any, path: str) -> Any:
    """The value at a path of names and numbers, such as `spec ports 0 port`; a name finds an entry of a list too.

    None where there is nothing.
    """
    for step in path.split():
        if isinstance(document, list):
            named = {str(number): each for number, each in enumerate(document)}
            document = named | {each["name"]: each for each in document if isinstance(each, dict) and "name" in each}
        document = document.get(step) if isinstance(document, dict) else None
    return document
