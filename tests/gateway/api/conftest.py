"""A client of the application with default settings, for modules that define no other."""

from collections.abc import Iterator

import pytest

from tests.services import Client, client_of


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with client_of() as client:
        yield client
