"""constraints.txt pins every dependency of pyproject.toml, for each supported Python."""

from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
EXTRAS = [
    *("", "local", "onnx", "keras", "tensorflow", "sklearn", "parquet", "s3", "gcs", "ray", "otel", "bench", "dev"),
    "docs",
]


@pytest.fixture(scope="module")
def constraints(root) -> list[Requirement]:
    lines = (root / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins(constraints: list[Requirement], python: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for constraint in constraints:
        if constraint.marker is None or constraint.marker.evaluate({"python_version": python}):
            (specifier,) = constraint.specifier
            assert specifier.operator == "=="
            assert canonicalize_name(constraint.name) not in given, f"{constraint.name} is pinned twice"
            given[canonicalize_name(constraint.name)] = specifier.version
    return given


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_has_one_version_within_its_range(constraints, python):
    given = pins(constraints, python)
    for requirement in map(Requirement, requires("triton-image-gateway") or []):
        environments = [{"python_version": python, "extra": extra} for extra in EXTRAS]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            assert given[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_cuda_packages_are_left_to_torch(constraints):
    names = {canonicalize_name(constraint.name) for constraint in constraints}
    assert not [name for name in names if name.startswith(("nvidia-", "cuda-"))]
    assert "torch" in names
