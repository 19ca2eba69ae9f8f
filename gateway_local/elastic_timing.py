"""Times a network in ONNX Runtime or OpenVINO with several numbers of threads, as a lone image finds it.

    python elastic_timing.py, with JSON on stdin and stdout

The input has `sessions`, the path of a backend's on_onnxruntime.py or on_openvino.py; `model`, the network; `config`
and `parameters` of its configuration; `inputs`, [data type, dims of one image] of each in order; and `threads`. The
answer has the median of each, in seconds; it is empty if the machine is too busy. Before each run there is a pause:
threads sleep when a lone image comes. Imports only modules of the backend, and numpy.
"""

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

TYPES = {"TYPE_FP32": np.float32, "TYPE_UINT8": np.uint8, "TYPE_FP16": np.float16}
PAUSE_SECONDS, MOST_SECONDS = 0.01, 2.0
LEAST_RUNS, MOST_RUNS = 5, 21


def main() -> None:
    """Time the network that stdin names."""
    given = json.load(sys.stdin)
    triton = ModuleType("triton_python_backend_utils")
    triton.TritonModelException = RuntimeError  # type: ignore[attr-defined]
    sys.modules[triton.__name__] = triton
    sessions = Path(given["sessions"])
    sys.path.insert(0, str(sessions.parent))
    make = importlib.import_module(sessions.stem).Session
    args, path = {"model_instance_kind": "CPU"}, Path(given["model"])
    found = {}
    for threads in given["threads"]:
        parameters = {**given["parameters"], "intra_op_thread_count": str(threads), "allow_spinning": "0"}
        found[threads] = make(path, given["config"], parameters, args)
    random = np.random.default_rng(0)
    images = [random.integers(0, 255, (1, *dims)).astype(TYPES[kind]) for kind, dims in given["inputs"]]
    is_alone = importlib.import_module("elastic").Load().is_alone
    json.dump(timed(found, images, is_alone), sys.stdout)


def timed(sessions: dict[int, Any], images: list[Any], is_alone: Callable[[], bool]) -> dict[int, float]:
    """The median time of each session, run in turns while nothing else runs; empty if the machine is too busy."""
    seconds: dict[int, list[float]] = {threads: [] for threads in sessions}
    for session in sessions.values():
        for _ in range(2):
            session.run(session.outputs, dict(zip(session.inputs, images, strict=True)))
    began = time.monotonic()
    while min(map(len, seconds.values())) < MOST_RUNS and time.monotonic() - began < MOST_SECONDS:
        for threads, session in sessions.items():
            time.sleep(PAUSE_SECONDS)
            if is_alone():
                start = time.perf_counter()
                session.run(session.outputs, dict(zip(session.inputs, images, strict=True)))
                seconds[threads].append(time.perf_counter() - start)
    if min(map(len, seconds.values())) < LEAST_RUNS:
        return {}
    return {threads: statistics.median(values) for threads, values in seconds.items()}


if __name__ == "__main__":
    main()
