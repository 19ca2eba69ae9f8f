"""Several threads for a lone image while nothing else runs."""

import json
import os
from typing import Any

import numpy as np
import pytest

from gateway_local.cpu_network import backend_module

elastic = backend_module("onnxruntime", "elastic")
BUSY, IDLE = "0.50 0.40 0.30 3/500 42\n", "0.50 0.40 0.30 1/500 42\n"


@pytest.mark.parametrize(
    ("texts", "alone", "slept"), [((IDLE,), True, 0), ((BUSY, BUSY, IDLE), True, 2), ((BUSY,), False, 3)]
)
def test_load_is_looked_at_until_nothing_else_runs(tmp_path, texts, alone, slept):
    path, pauses = tmp_path / "loadavg", []
    path.write_text(texts[0])

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        path.write_text(texts[min(len(pauses), len(texts) - 1)])

    assert elastic.Load(path, sleep).is_alone() is alone
    assert pauses == [elastic.PAUSE_SECONDS] * slept


class Session:
    """Records the sizes of its batches."""

    described, inputs, outputs = "a library", ["x"], ["y"]

    def __init__(self, parameters: dict[str, str]) -> None:
        self.parameters, self.sizes = parameters, []

    def run(self, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        self.sizes.append(len(feed["x"]))
        return [self]


def test_only_a_lone_image_on_an_idle_machine_has_several_threads():
    usual, lone, alone = Session({}), Session({}), [True]
    session = elastic.Elastic(usual, lone, 2, lambda: alone[0])
    for size in (1, 4, 32):
        session.run(["y"], {"x": np.zeros((size, 3))})
    alone[0] = False
    session.run(["y"], {"x": np.zeros((1, 3))})
    assert (lone.sizes, usual.sizes) == ([1], [4, 32, 1])
    assert "2 threads" in session.described


def test_session_for_batches_gets_the_lone_image_with_which_it_returns_memory():
    usual, lone = Session({}), Session({})
    usual.may_shrink = lambda: usual.sizes[-1:] == [8]
    session = elastic.Elastic(usual, lone, 2, lambda: True)
    for size in (8, 1, 1):
        session.run(["y"], {"x": np.zeros((size, 3))})
    assert (usual.sizes, lone.sizes) == ([8, 1], [1])


@pytest.mark.parametrize(
    ("record", "parameters", "kind", "threads"),
    [
        ({"threads": 2}, {}, "CPU", [None, "2"]),
        ({"threads": 2}, {"intra_op_thread_count": "1"}, "CPU", ["1", "2"]),
        ({"threads": 2}, {"intra_op_thread_count": "3"}, "CPU", ["3"]),
        ({"threads": 2}, {}, "GPU", [None]),
        ({"threads": 1}, {}, "CPU", [None]),
        ({"threads": 9}, {}, "CPU", [None, "2"]),
        ({"threads": "many"}, {}, "CPU", [None]),
        ([], {}, "CPU", [None]),
        (None, {}, "CPU", [None]),
    ],
)
def test_record_and_configuration_decide(tmp_path, monkeypatch, record, parameters, kind, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    if record is not None:
        (tmp_path / elastic.RECORD).write_text(json.dumps(record))
    made = []

    def make(given: dict[str, str]) -> Session:
        made.append(Session(given))
        return made[-1]

    elastic.opened(make, tmp_path / "model.onnx", parameters, {"model_instance_kind": kind})
    assert [each.parameters.get("intra_op_thread_count") for each in made] == threads
    assert [each.parameters.get("allow_spinning") for each in made[1:]] == ["0"] * (len(made) - 1)
