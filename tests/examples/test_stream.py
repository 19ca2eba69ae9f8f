"""The example of a stream in JavaScript, in Node."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.keys import add_key
from tests.doubles.backend import frame, frame_backend
from tests.processes import PROJECT, environment
from tests.services import stream_service

EXAMPLE = PROJECT / "examples" / "stream.mjs"


def node(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Node with WebSockets, which are an option before Node 22."""
    program = shutil.which("node") or pytest.skip("node is not installed")
    command = [program, "--experimental-websocket", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def frames(tmp_path: Path) -> list[str]:
    """A bright image, no image and a dark one, below a folder with a space in its name."""
    contents = {"bright.png": frame(250), "notes.txt": b"text", "dark #1.png": frame(0)}
    folder = tmp_path / "my frames"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [str(folder / name) for name in contents]


def test_node_gets_an_answer_for_each_frame(frames: list[str]):
    with stream_service(frame_backend()) as (address, _):
        run = node(str(EXAMPLE), f"http://{address}", *frames)
    assert run.returncode == 0, run.stderr
    bright, notes, dark = run.stdout.splitlines()
    assert bright.startswith(f"{frames[0]} bright 98.")
    assert notes.startswith(f"{frames[1]} The file is not a JPEG")
    assert dark.startswith(f"{frames[2]} dark 100.0 %")
    assert "so far:" in dark


def test_key_is_sent_and_a_missing_one_is_an_error(frames: list[str], tmp_path: Path):
    keys = tmp_path / "keys"
    key = add_key(keys, "node")
    code = """
      const [example, address, key] = process.argv.slice(1);
      const { classifyFrames } = await import(example);
      const { readFile } = await import("node:fs/promises");
      const frames = [await readFile(process.argv[4])];
      for await (const { predictions } of classifyFrames(address, frames, { key })) console.log(predictions[0].label);
    """
    script = ("--input-type=module", "--eval", code, EXAMPLE.as_uri())
    with stream_service(frame_backend(), api_keys_file=keys) as (address, _):
        known = node(*script, f"http://{address}/", key, frames[0])
        unknown = node(*script, f"http://{address}/", "", frames[0])
    assert (known.returncode, known.stdout) == (0, "bright\n"), known.stderr
    assert unknown.returncode != 0
    assert "a GET of the address says why" in unknown.stderr
