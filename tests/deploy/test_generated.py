"""The generated files under deploy/ are up to date."""

import pytest

from deploy.generate.__main__ import files
from deploy.generate.manifests import files as manifests
from deploy.generate.values import described
from tests.processes import PROJECT


@pytest.fixture(scope="module")
def generated():
    return dict(files())


def test_every_generated_file_is_up_to_date(generated):
    stale = [str(path.relative_to(PROJECT)) for path, text in generated.items() if path.read_text() != text]
    assert not stale, "run: make docs"


def test_no_outdated_generated_file_remains(generated):
    assert set((PROJECT / "deploy" / "kubernetes").iterdir()) <= set(generated)


def test_manifests_name_no_helm():
    for text in manifests().values():
        assert "helm.sh" not in text
        assert "managed-by" not in text


def test_every_value_is_documented():
    rows = [*described()]
    assert len(rows) > 100
    assert [path for path, _, meaning in rows if not meaning.endswith(".") and "http" not in meaning] == []
