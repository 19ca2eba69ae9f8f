"""Whether the models of a repository fit into memory."""

import pytest

from gateway.settings import GIB, MIB, MemoryCheck
from gateway.triton.model_config import read_model_configs
from gateway_local.memory_fit import Fit, MemoryShort, check, fit, table
from gateway_machine.memory import MACHINE, Memory
from gateway_plugins.demand.footprint import NEAR, need
from tests.plugins.demand.test_footprint import ONNX, model


def free(nbytes: int) -> Memory:
    return Memory(64 * GIB, nbytes, MACHINE)


def test_fit_at_its_limits(tmp_path):
    model(tmp_path, "m", ONNX)
    wanted = need(tmp_path, read_model_configs(tmp_path))
    assert fit(wanted, free(wanted.least_bytes - 1), beside_bytes=0) is Fit.SHORT
    assert fit(wanted, free(wanted.least_bytes), beside_bytes=0) is Fit.NEAR
    enough = int((wanted.usual_bytes + MIB) / NEAR) + 1
    assert fit(wanted, free(enough), beside_bytes=MIB) is Fit.ENOUGH
    assert fit(wanted, free(enough - 2), beside_bytes=MIB) is Fit.NEAR


def test_models_that_cannot_be_loaded_are_refused_with_a_way_out(tmp_path):
    """Unless the free memory is not known."""
    model(tmp_path, "m", f"{ONNX} instance_group [ {{ kind: KIND_CPU count: 2 }} ]")
    wanted = need(tmp_path, read_model_configs(tmp_path))
    assert "2 ×" in table(wanted)[0]
    words = r"(?s)1 MiB are free.*the models take.*ONNX Runtime, estimated.*--instances 1.*MEMORY_CHECK=warn"
    with pytest.raises(MemoryShort, match=words):
        check(wanted, free(MIB), beside_bytes=0, how=MemoryCheck.REFUSE)
    assert check(wanted, None, beside_bytes=0, how=MemoryCheck.REFUSE) is None
