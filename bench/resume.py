"""`python -m bench.resume`: `gateway classify` is killed while classifying, resumes, and has one row for each image."""

import collections
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

IN_A_FOLDER = 1_000
SIDE = 24
POLL_SECONDS = 0.05


def write(folder: Path, images: int) -> None:
    """Small images, each distinct."""
    pixels = np.full((SIDE, SIDE, 3), 128, np.uint8)
    for number in range(images):
        pixels.reshape(-1)[:4] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
        path = folder / f"{number // IN_A_FOLDER:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cv2.imencode(".png", pixels)[1].tobytes())


def rows(path: Path) -> int:
    """The number of complete lines of a file, 0 if it does not exist yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(command: list[str], journal: Path, enough: int) -> float:
    """Seconds until the journal had `enough` rows and the run was killed."""
    started = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while rows(journal) < enough:
            if process.poll() is not None:
                raise SystemExit(f"it ended by itself with {process.returncode}")
            time.sleep(POLL_SECONDS)
        process.kill()
    return time.perf_counter() - started


@app.command()
def main(
    url: Annotated[str, typer.Option(help="A running service.")] = "http://127.0.0.1:8080",
    images: Annotated[int, typer.Option(help="Number of images.", min=100)] = 20_000,
    kills: Annotated[int, typer.Option(help="Number of kills, evenly spread.", min=1)] = 3,
) -> None:
    """Kill, resume, and count the rows; exits with 1 if an image has no row, or two."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch, "photos"), Path(scratch, "out.jsonl")
        write(folder, images)
        command = [sys.executable, "-m", "gateway_cli", "classify", str(folder), "--out", str(out), "--url", url]
        journal = out.with_name(f"{out.name}.part")
        for kill in range(kills):
            enough = images * (kill + 1) // (kills + 1)
            seconds = killed([*command, *(["--resume"] if kill else [])], journal, enough)
            print(f"killed after {seconds:.1f} s with {rows(journal):,} rows")
        started = time.perf_counter()
        subprocess.run([*command, "--resume"], stderr=subprocess.DEVNULL, check=True)
        print(f"went on and ended after {time.perf_counter() - started:.1f} s")
        with out.open() as lines:
            counts = collections.Counter(json.loads(line)["path"] for line in lines)
    twice = sum(count > 1 for count in counts.values())
    print(f"{images:,} pictures: {len(counts):,} with a row, {twice:,} of them with more than one")
    if len(counts) != images or twice:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
