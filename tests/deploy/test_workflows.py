"""The workflows of .github: their schemas, and that no registry is named."""

import re

import pytest

from tests.deploy.conftest import faults_of
from tests.processes import PROJECT

WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
HOST = re.compile(r"\b(?:ghcr\.io|docker\.io|quay\.io|registry\.[\w.-]+|[\w-]+\.pkg\.dev)\b")

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="not a checkout")


def test_workflows_and_updates_follow_their_schemas():
    assert faults_of("github-workflows", *WORKFLOWS) == ""
    assert faults_of("dependabot", PROJECT / ".github" / "dependabot.yml") == ""


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_registry_is_named(path):
    assert HOST.findall(path.read_text()) == []
