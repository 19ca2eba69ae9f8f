"""What is done before the first request, so that it does not block the event loop then."""

import pytest
from pydantic import TypeAdapter

from gateway.app import create_app, prepare
from tests.doubles.backend import StubBackend
from tests.services import client_of_app
from tests.settings import Settings


@pytest.mark.parametrize("prepared", [False, True])
def test_first_request_builds_no_routes(monkeypatch, prepared):
    """Without `prepare`, FastAPI builds them, with a TypeAdapter for each parameter."""
    app = create_app(Settings(_env_file=None), StubBackend())
    if prepared:
        prepare(app)
    made, create = [], TypeAdapter.__init__

    def created(self, *arguments, **options):
        made.append(self)
        create(self, *arguments, **options)

    with client_of_app(app) as client:
        monkeypatch.setattr(TypeAdapter, "__init__", created)
        assert client.get("/models").status_code == 200
    assert (made == []) == prepared
