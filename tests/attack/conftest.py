"""The gateway that a module attacks."""

from collections.abc import Iterator

import pytest

from tests.doubles.program import PROGRAM
from tests.processes import Gateway, running_gateway


@pytest.fixture(scope="module")
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway in front of a model of 21,000 classes that answers at once, with the SETTINGS of the module."""
    settings = getattr(request.module, "SETTINGS", {})
    with running_gateway(tmp_path_factory.mktemp("attack") / "log", program=PROGRAM, **settings) as running:
        yield running
