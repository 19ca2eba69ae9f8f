"""Each route of the API is described in docs/reference/."""

from gateway.app import create_app
from tests.doubles.backend import StubBackend
from tests.processes import PROJECT
from tests.settings import Settings


def test_reference_names_every_route(tmp_path):
    """Routes that are not in the OpenAPI document belong to the web page."""
    keys = tmp_path / "keys"
    keys.write_text(f"admin:{'0' * 64}\n")
    paths = create_app(Settings(_env_file=None, admin_keys_file=keys), StubBackend()).openapi()["paths"]
    pages = "\n".join(page.read_text() for page in (PROJECT / "docs" / "reference").rglob("*.md"))
    missing = {path for path in paths if path not in pages}
    assert "/models/{name}/load" in paths
    assert not missing, f"describe {missing} in docs/reference/http-api.md, or in another page there"
