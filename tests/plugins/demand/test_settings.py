"""The settings of models on demand."""

import pytest
from pydantic import ValidationError

from tests.settings import Settings


def test_models_on_demand_need_a_budget():
    with pytest.raises(ValidationError, match="GATEWAY_MODELS_LOADED=demand needs GATEWAY_MODELS_MEMORY_BYTES"):
        Settings(_env_file=None, models_loaded="demand")
    assert Settings(_env_file=None, models_loaded="demand", models_memory_bytes="1").models_memory_bytes == 1


def test_models_on_demand_are_not_all_loaded():
    fields = {"models_loaded": "demand", "models_memory_bytes": "16GiB"}
    with pytest.raises(ValidationError, match="name the models that always stay loaded"):
        Settings(_env_file=None, load_models="*", **fields)
    assert Settings(_env_file=None, load_models="flowers,birds", **fields).load_models == ("flowers", "birds")
