"""The test files that `make check` chooses for a change."""

import subprocess

import pytest

from tests import affected

SOURCES = {
    "gateway/errors.py": "",
    "gateway/limits/pools.py": "from gateway import errors\nfrom gateway.limits import (\n    lease,\n    pace,\n)",
    "gateway/limits/lease.py": "",
    "gateway/limits/pace.py": "",
    "gateway/app.py": "def create():\n    import os, gateway.limits.pools",
    "gateway_plugins/urls/fetcher.py": "from gateway.errors import Refused",
    "gateway_plugins/page/page.py": "",
    "tests/conftest.py": "import gateway.app",
    "tests/plugins/urls/conftest.py": "from tests import doubles",
    "tests/plugins/urls/test_fetcher.py": "from gateway_plugins.urls.fetcher import fetch",
    "tests/plugins/urls/test_docs.py": "",
    "tests/gateway/limits/test_pace.py": "from gateway.limits.pace import Pace",
    "tests/gateway/api/test_page.py": "from gateway.app import create\nPAGE = 'index.html'",
    "tests/gateway/test_app.py": "import gateway.app",
    "tests/gateway_models/test_add.py": "import torch\nimport gateway.errors",
    "tests/gateway_models/builders.py": "from torch import nn",
    "tests/gateway_models/test_built.py": "import gateway.errors\nfrom tests.gateway_models import builders",
    "tests/e2e/test_limits.py": "import gateway.limits.pools",
    "tests/docs/test_links.py": "",
    "tests/doubles.py": "",
}


def near(*paths: str) -> dict[str, int]:
    return affected.distances(paths, SOURCES)


def test_tests_are_as_far_as_their_imports():
    """A folder's own tests are as near as those that import the module; Triton's and torch's are left out."""
    assert near("gateway/limits/lease.py") == {
        "tests/gateway/limits/test_pace.py": 1,
        "tests/gateway/api/test_page.py": 3,
        "tests/gateway/test_app.py": 3,
    }
    assert near("gateway/errors.py").keys().isdisjoint({"tests/gateway_models/test_add.py", "tests/e2e/test_limits.py"})
    assert "tests/gateway_models/test_built.py" not in near("gateway/errors.py")


def test_plugin_concerns_its_folder():
    both = {"tests/plugins/urls/test_fetcher.py": 1, "tests/plugins/urls/test_docs.py": 1}
    assert near("gateway_plugins/urls/fetcher.py") == both
    assert near("gateway/errors.py").items() >= {"tests/plugins/urls/test_fetcher.py": 2}.items()


def test_file_without_code_concerns_tests_that_name_it_and_its_packages():
    assert near("gateway_plugins/page/index.html") == {"tests/gateway/api/test_page.py": 1}
    assert near("docs/guides/keys.md") == {"tests/docs/test_links.py": 1}
    assert near("gateway_plugins/urls/words.txt")["tests/plugins/urls/test_fetcher.py"] == 1


def test_fixtures_concern_their_folder():
    assert near("tests/doubles.py") == {"tests/plugins/urls/test_fetcher.py": 2, "tests/plugins/urls/test_docs.py": 2}
    assert len(near("tests/conftest.py")) == 6


def test_tests_of_plug_ins_have_less_time():
    of_a_plugin = ["gateway_plugins/urls/fetcher.py", "tests/plugins/urls/test_fetcher.py", "docs/guides/urls.md"]
    assert affected.budget(of_a_plugin) == affected.SECONDS_OF_A_PLUGIN < affected.SECONDS
    assert affected.budget([*of_a_plugin, "gateway/app.py"]) == affected.SECONDS


SECONDS = {"a": 100, "b": 4, "c": 7, "d": 5, "e": 1}


@pytest.mark.parametrize(
    ("near", "files"),
    [
        ({"b": 1, "c": 2, "d": 2, "e": 3}, ["b", "d", "e"]),
        ({"a": 0, "b": 0, "c": 0, "d": 0, "e": 1}, ["b", "d", "e"]),
        ({"a": 0, "b": 1}, ["a"]),
    ],
    ids=["nearest first", "many that have changed, as after a merge", "one that has changed, and takes long"],
)
def test_files_are_chosen_within_the_time(near, files):
    assert affected.chosen(near, SECONDS, 10) == files


def test_changed_files_that_are_left_out_are_named():
    near = {"tests/a.py": 0, "tests/b.py": 0, "tests/c.py": 1}
    assert affected.summary(3, ["tests/a.py"], near) == (
        "changed files: 3; test files: 1, and 2 in `make test`, of which these have changed: tests/b.py"
    )
    assert affected.summary(1, ["tests/a.py", "tests/b.py"], near).endswith("and 1 in `make test`")


def test_change_is_what_a_branch_and_the_working_tree_have(tmp_path, monkeypatch):
    monkeypatch.setattr(affected, "PROJECT", tmp_path)
    monkeypatch.setattr(affected, "GREEN", tmp_path / "green")

    def git(*arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.check_output(["git", *author, *arguments], cwd=tmp_path, text=True).strip()

    def commit(name: str) -> str:
        (tmp_path / name).touch()
        git("add", name)
        git("commit", "-qm", name)
        return git("rev-parse", "HEAD")

    git("init", "-qb", "main")
    commit("first")
    green = commit("second")
    commit("third")
    assert affected.changed() == {"third"}
    git("checkout", "-qb", "branch")
    commit("fourth")
    (tmp_path / "new").touch()
    assert affected.changed() == {"fourth", "new"}
    git("checkout", "-q", "main")
    (tmp_path / "green").write_text(green)
    assert affected.changed() == {"third", "new", "green"}
    (tmp_path / "green").write_text("0" * 40)
    assert affected.changed() == {"new", "green"}
