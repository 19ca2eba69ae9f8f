import shutil
from pathlib import Path

import pytest
import typer

from bench.remote import Remote
from bench.repository import main, set_field
from bench.services import write_counts
from gateway.triton.contract import CLASSIFIER, PREPROCESSOR
from gateway.triton.model_config import read_model_config
from gateway_local.memory_plan import machine_plan
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, SHIPPED_MODELS
from tests.settings import Settings


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


def test_existing_folder_is_not_overwritten(tmp_path, capsys):
    with pytest.raises(typer.Exit):
        main("mobilenet-v3-small", tmp_path)
    assert f"File exists: '{tmp_path}'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_counts_are_written_for_other_checkouts(tmp_path):
    """An older checkout would start one process of each step."""
    ignored = shutil.ignore_patterns("model.*", "configs", "__pycache__")
    models = Path(shutil.copytree(SHIPPED_MODELS, tmp_path / "models", ignore=ignored))
    write_counts(models)
    chosen = machine_plan(Settings(), models)
    groups = [
        read_model_config(models / step / "config.pbtxt").instance_group[0] for step in (PREPROCESSOR, CLASSIFIER)
    ]
    assert groups[0].count == chosen.preprocessors
    assert chosen.gpus or groups[1].count == chosen.networks
