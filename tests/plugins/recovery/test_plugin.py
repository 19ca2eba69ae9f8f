"""GATEWAY_HEAL decides whether Tritons are repaired."""

import pytest

from gateway_plugins.recovery.plugin import Recovery, repair
from tests.settings import Settings


@pytest.mark.parametrize(("heal", "repairs"), [(True, repair), (False, None)])
def test_tritons_are_repaired_if_the_setting_says_so(heal, repairs):
    assert Recovery(Settings(_env_file=None, heal=heal)).repair() is repairs
