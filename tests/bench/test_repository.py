import pytest

from bench.remote import Remote
from bench.repository import set_field
from gateway.triton.model_config import read_model_config
from gateway_local.runtime import DEFAULT_MODEL_REPOSITORY


@pytest.fixture
def config():
    return read_model_config(DEFAULT_MODEL_REPOSITORY / "classifier" / "config.pbtxt")


def test_config_setting_is_changed_by_its_path(config):
    set_field(config, ["instance_group", "count"], "7")
    set_field(config, ["dynamic_batching", "preferred_batch_size"], "3,9")
    set_field(config, ["dynamic_batching", "default_queue_policy"], "")
    set_field(config, ["parameters", "INTRA_OP_THREAD_COUNT", "string_value"], "2")
    assert config.instance_group[0].count == 7
    assert list(config.dynamic_batching.preferred_batch_size) == [3, 9]
    assert not config.dynamic_batching.HasField("default_queue_policy")
    assert config.parameters["INTRA_OP_THREAD_COUNT"].string_value == "2"


@pytest.mark.parametrize("path", [["no_such_field"], ["instance_group", "no_such_field"], ["dynamic_batching"]])
def test_unknown_config_setting_is_an_error(config, path):
    with pytest.raises((AttributeError, ValueError)):
        set_field(config, path, "1")


class Divider:
    def divide(self, dividend: float, divisor: float) -> float:
        return dividend / divisor


def test_object_in_another_process_returns_results_and_exceptions():
    with Remote(Divider) as divider:
        assert divider.call("divide", 6, 3) == 2
        with pytest.raises(ZeroDivisionError):
            divider.call("divide", 1, 0)
        assert divider.call("divide", 8, 2) == 4
