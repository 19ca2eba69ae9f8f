"""The guide to keys says what the code does."""

import re

from gateway.plugins.keys.key_file import read_keys
from tests.processes import PROJECT

GUIDE = (PROJECT / "docs" / "guides" / "keys.md").read_text()


def test_lines_of_the_key_file_can_be_read(tmp_path):
    lines = re.findall(r"^\w+:[0-9a-f]{64}.*$", GUIDE, re.MULTILINE)
    (tmp_path / "keys").write_text("\n".join(lines))
    assert list(read_keys(tmp_path / "keys").quotas) == ["nightly"]


def test_command_of_the_guide_makes_the_quota_of_the_file():
    assert f" {re.search(r'gateway key add nightly (.+)', GUIDE)[1]}\n```" in GUIDE
