"""docs/guides/bulk.md: its commands run and print the documented output."""

import json
import re
import subprocess
import sys

import pytest

from gateway_cli.classify import Exit
from gateway_client.bulk.archives import ARCHIVE_SUFFIXES
from gateway_client.bulk.rows import COLUMNS
from gateway_client.bulk.tables import COLUMNS as PATH_COLUMNS
from tests.processes import PROJECT, environment
from tests.services import stub_service

TEXT = (PROJECT / "docs" / "guides" / "bulk.md").read_text()
EXAMPLES = re.findall(r"^```\n\$ (.+)\n((?:.+\n)+)```$", TEXT, re.MULTILINE)


@pytest.mark.slow
def test_commands_print_the_documented_output(tmp_path):
    assert len(EXAMPLES) == TEXT.count("```\n$ ") == 3
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    with stub_service() as url:
        for command, documented in EXAMPLES:
            command = command.replace("http://127.0.0.1:8080", url).replace(
                "gateway classify", f"{sys.executable} -m gateway_cli classify"
            )
            run = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env={**environment(), "PYTHONPATH": str(PROJECT)},
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            )
            if documented.startswith("{"):
                expected, row = json.loads(documented), json.loads(run.stdout)
                assert list(expected) == list(row) == list(COLUMNS)
                assert all(value in ("…", row[name]) for name, value in expected.items())
            else:
                assert re.fullmatch(re.escape(documented).replace("…", r"[\d.,]+"), run.stderr), run.stderr


def test_suffixes_columns_and_exit_codes_are_documented():
    assert all(f"`{name}`" in TEXT for name in (*COLUMNS, *PATH_COLUMNS))
    assert all(f"`{ending}`" in TEXT for ending in ARCHIVE_SUFFIXES - {".tbz2", ".txz"})
    assert all(f"| {int(code)} | " in TEXT for code in Exit)
