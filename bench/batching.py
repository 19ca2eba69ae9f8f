"""`python -m bench.batching`: what a queue policy of Triton's dynamic batcher costs.

A model that computes nothing, but takes 5 ms for a batch and 1 ms for each of its requests, is served with a policy
and without one, on one instance and on two, and asked by some clients at a time, in turns. Some 100 s.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from google.protobuf import text_format
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from bench.scale import table
from bench.tally import Tally, percentile
from gateway.triton.contract import CLASSIFIER
from gateway.triton.model_config import ModelConfig, read_model_config
from gateway_local.runtime import DEFAULT_MODEL_REPOSITORY, default_cache_dir, ensure_runtime
from gateway_local.server import EmbeddedTriton

MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.005 + 0.001 * len(requests))
        given = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", each)]) for each in given]
"""
CONFIG = """
backend: "python"
max_batch_size: 64
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
POLICIES = {"none": 0, "policy": 1024}
"""The queue limit for each model name; 0 means no queue policy."""
INSTANCES, CLIENTS = (1, 2), (1, 4, 8, 16, 32)


def main(
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.5)] = 2.0,
    rounds: Annotated[int, typer.Option(help="Every round measures each model once; results are medians.", min=1)] = 3,
) -> None:
    """Print rates and p99 side by side, with the ratios of those with a policy to those without one."""
    with tempfile.TemporaryDirectory() as folder:
        for name in POLICIES:
            for instances in INSTANCES:
                _write(Path(folder), name, instances)
        runtime = ensure_runtime(default_cache_dir(), _say)
        with EmbeddedTriton(runtime, Path(folder), on_log=lambda _: None) as triton:
            triton.wait_ready()
            tallies = asyncio.run(_measure(triton.url, seconds, rounds))
    header = ["instances", "clients", "requests/s", "with a policy", "p99", "with a policy", "ratio of rates", "of p99"]
    print(table(header, list(_rows(tallies))), end="")


Tallies = dict[tuple[str, int, int], list[Tally]]


def _write(folder: Path, name: str, instances: int) -> None:
    """A model with the batching of the shipped classifier, except for the queue policy."""
    config = text_format.Parse(CONFIG, ModelConfig(name=f"{name}{instances}"))
    config.instance_group.add(count=instances)
    config.dynamic_batching.CopyFrom(
        read_model_config(DEFAULT_MODEL_REPOSITORY / CLASSIFIER / "config.pbtxt").dynamic_batching
    )
    if POLICIES[name]:
        config.dynamic_batching.default_queue_policy.max_queue_size = POLICIES[name]
    (folder / config.name / "1").mkdir(parents=True)
    (folder / config.name / "1" / "model.py").write_text(MODEL)
    (folder / config.name / "config.pbtxt").write_text(text_format.MessageToString(config))


async def _measure(url: str, seconds: float, rounds: int) -> Tallies:
    tallies: Tallies = {}
    async with InferenceServerClient(url) as client:
        for number in range(rounds):
            for instances in INSTANCES:
                for clients in CLIENTS:
                    for name in POLICIES:
                        tally = await _load(client, f"{name}{instances}", clients, seconds)
                        tallies.setdefault((name, instances, clients), []).append(tally)
            _say(f"round {number + 1} of {rounds}")
    return tallies


async def _load(client: InferenceServerClient, model: str, clients: int, seconds: float) -> Tally:
    """`clients` that send the next request as soon as they have a response."""
    given = InferInput("INPUT", [1, 1], "INT32").set_data_from_numpy(np.zeros((1, 1), np.int32))
    tally, started = Tally(), time.perf_counter()

    async def ask() -> None:
        while (asked := time.perf_counter()) < started + seconds:
            await client.infer(model, [given])
            tally.latencies_seconds.append(time.perf_counter() - asked)

    await asyncio.gather(*(ask() for _ in range(clients)))
    tally.images, tally.seconds = len(tally.latencies_seconds), time.perf_counter() - started
    return tally


def _rows(tallies: Tallies) -> Iterator[list[str]]:
    for instances in INSTANCES:
        for clients in CLIENTS:
            without, with_policy = (_medians(tallies[name, instances, clients]) for name in POLICIES)
            yield [
                str(instances),
                str(clients),
                f"{without[0]:.0f}",
                f"{with_policy[0]:.0f}",
                f"{1e3 * without[1]:.0f} ms",
                f"{1e3 * with_policy[1]:.0f} ms",
                f"{with_policy[0] / without[0]:.2f}",
                f"{with_policy[1] / without[1]:.1f}",
            ]


def _medians(rounds: list[Tally]) -> tuple[float, float]:
    """Requests a second, and p99 in seconds."""
    rates = [each.rate for each in rounds]
    return statistics.median(rates), statistics.median(percentile(each.latencies_seconds, 99) for each in rounds)


def _say(text: str) -> None:
    print(f"bench | {text}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
