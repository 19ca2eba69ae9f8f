"""`python -m bench.bulk_kill`: many rows through processes that are killed at random; nothing is lost or doubled.

The network answers at once and the images are tiny, so a million rows take minutes. Each process is a shard of
`gateway classify --out FOLDER/`; a killed one is started again with --resume. Prints the memory of each by time.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import httpx
import typer

from gateway_client import Gateway
from gateway_client.bulk.meter import Meter
from gateway_client.bulk.partitions import PartitionedRun
from gateway_client.bulk.run import BulkJob
from gateway_client.bulk.shards import Shard
from gateway_client.wire import NDJSON

LINKS = 1_000
"""Images of a folder: hard links to one file, which ext4 allows 65,000 of."""
PIXEL = bytes.fromhex("89504e470d0a1a0a") + bytes(56)
SAMPLE_SECONDS = 2.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class AnswersAtOnce(httpx.AsyncBaseTransport):
    """A gateway in the client's process: the same class for every image."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer GET /limits, and POST /predict with a line for each file."""
        if request.method == "GET":
            return httpx.Response(200, json={"limits": [{"name": "max_files", "value": 64}]})
        assert isinstance(request.stream, httpx.AsyncByteStream)
        body = b"".join([part async for part in request.stream])
        answer = {
            "error": None,
            "predictions": [{"label": "cat", "class_id": 1, "score": 0.9}],
            "width": 1,
            "height": 1,
        }
        model = {"name": "instant", "version": "1"}
        lines = [json.dumps({"index": index, **answer, "model": model}) for index in range(body.count(b"filename="))]
        return httpx.Response(200, text="\n".join(lines) + "\n", headers={"Content-Type": NDJSON})


@app.command()
def shard(photos: Path, out: str, number: int, count: int, rows_per_file: int) -> None:
    """Run one shard, as `gateway classify --shard NUMBER/COUNT --resume` does."""
    job = BulkJob((str(photos),), shard=Shard(number, count))
    with (
        PartitionedRun(job, out, resume=True, overwrite=False, rows_per_file=rows_per_file) as run,
        Gateway("http://instant", transport=AnswersAtOnce()) as gateway,
    ):
        run.run(gateway, _nothing)
        assert not run.meter.failed, run.meter.codes


def _nothing(_: Meter) -> None:
    pass


@app.command()
def measure(
    images: Annotated[int, typer.Option(help="Images in all.")] = 1_000_000,
    shards: Annotated[int, typer.Option(help="Processes.")] = 2,
    kills: Annotated[int, typer.Option(help="Times that a random process is killed.")] = 20,
    rows_per_file: Annotated[int, typer.Option(help="Rows of each file.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the times of the kills.")] = 7,
) -> None:
    """Classify, kill, resume, and check the rows."""
    chance = random.Random(seed)  # not for secrets
    with tempfile.TemporaryDirectory(prefix="bulk-kill-") as folder:
        photos, out = Path(folder) / "photos", Path(folder) / "out"
        _link(photos, images)
        command = [sys.executable, "-m", "bench.bulk_kill", "shard", str(photos), f"{out}/"]

        def start(number: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen([*command, *map(str, (number, shards, rows_per_file))])

        running = {number: start(number) for number in range(1, shards + 1)}
        began, left, peak = time.monotonic(), kills, 0
        next_kill = began + chance.uniform(3, 10)
        while any(process.poll() is None for process in running.values()):
            time.sleep(SAMPLE_SECONDS)
            alive = [number for number, process in running.items() if process.poll() is None]
            resident = {number: _resident_mib(running[number].pid) for number in alive}
            peak = max(peak, *resident.values(), 0)
            seconds = time.monotonic() - began
            files = len(list(out.iterdir())) if out.exists() else 0
            typer.echo(f"{seconds:6.0f} s  {files:5} files  MiB of each process: {list(resident.values())}")
            if left and alive and time.monotonic() >= next_kill:
                number = chance.choice(alive)
                running[number].send_signal(signal.SIGKILL)
                running[number].wait()
                running[number] = start(number)
                left -= 1
                next_kill = time.monotonic() + chance.uniform(3, 10)
        assert all(process.returncode == 0 for process in running.values())
        rows, distinct = _counted(out)
        typer.echo(
            f"{images:,} images in {time.monotonic() - began:.0f} s, {kills - left} kills: {rows:,} rows, {distinct:,} "
            f"different images; at most {peak} MiB in a process"
        )
        sys.exit(not rows == distinct == images)


def _link(photos: Path, images: int) -> None:
    for first in range(0, images, LINKS):
        folder = photos / f"{first // LINKS:06}"
        folder.mkdir(parents=True)
        (folder / "000.png").write_bytes(PIXEL)
        for number in range(1, min(LINKS, images - first)):
            os.link(folder / "000.png", folder / f"{number:03}.png")


def _resident_mib(pid: int) -> int:
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return 0
    return int(fields.get("VmRSS", "0 kB").split()[0]) // 1024


def _counted(out: Path) -> tuple[int, int]:
    import pyarrow.parquet

    rows, names = 0, set()
    for file in out.glob("*.parquet"):
        paths = pyarrow.parquet.read_table(file, columns=["path"]).column("path").to_pylist()
        rows += len(paths)
        names |= {hashlib.blake2b(path.encode(), digest_size=8).digest() for path in paths}
    return rows, len(names)


if __name__ == "__main__":
    app()
