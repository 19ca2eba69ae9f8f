"""Fixtures of the tests of this package."""

from collections.abc import Iterator

import pytest

from tests.services import stub_service


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway that takes every image for a cat."""
    with stub_service() as url:
        yield url
