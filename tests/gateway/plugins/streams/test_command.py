"""`gateway stream`: a video as rows and on the terminal."""

import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from gateway_local.commands.capture import VideoUnreadable, frames
from tests.commands import gateway, refusal
from tests.doubles.backend import frame_backend
from tests.processes import python
from tests.services import stream_service

FPS, SIDE = 10, 32
BRIGHT_FROM, FRAMES = 10, 30


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    """A second of darkness, then two of light."""
    path = tmp_path_factory.mktemp("video") / "drawn.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), FPS, (SIDE, SIDE))
    assert writer.isOpened()
    for number in range(FRAMES):
        writer.write(np.full((SIDE, SIDE, 3), 255 if number >= BRIGHT_FROM else 0, np.uint8))
    writer.release()
    return path


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with stream_service(frame_backend()) as (address, _):
        yield f"http://{address}"


def run(service: str, *arguments: object) -> None:
    gateway("stream", *arguments, "--gateway", service)


def test_every_frame_of_a_file_has_a_row_with_its_time(service, video, tmp_path):
    run(service, video, "--smoothing", "none", "--out", tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["frame"] for row in rows] == list(range(FRAMES))
    assert [row["seconds"] for row in rows] == pytest.approx([number / FPS for number in range(FRAMES)])
    assert [row["label"] for row in rows] == ["dark"] * BRIGHT_FROM + ["bright"] * (FRAMES - BRIGHT_FROM)


def test_fps_option_reduces_the_frame_rate(service, video, tmp_path):
    run(service, video, "--fps", "2", "--out", tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["seconds"] for row in rows] == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])


def test_label_changes_of_standard_input_are_printed(service, video):
    with video.open("rb") as file:
        result = python("-m", "gateway", "stream", "-", "--smoothing", "none", "--gateway", service, stdin=file)
    told = [line.split()[:2] for line in result.stdout.splitlines()]
    assert told == [["0:00:00.0", "dark"], ["0:00:01.0", "bright"]]


def test_unreadable_sources_and_unreachable_services_are_reported(service, video, tmp_path):
    """A missing video is reported before the connection."""
    (tmp_path / "no.avi").write_bytes(b"no video")
    nowhere = "http://127.0.0.1:1"
    assert "cannot be read as a video" in refusal("stream", tmp_path / "no.avi", "--gateway", service)
    assert refusal("stream", "nosuch.mp4", "--gateway", nowhere).startswith("'nosuch.mp4' does not exist")
    assert "cannot be reached" in refusal("stream", video, "--gateway", nowhere)
    assert "refuses the stream" in refusal("stream", video, "--gateway", service, "--model", "nothing")
    for name in ("missing.avi", "\udce9.avi"):  # OpenCV crashes on the second
        with pytest.raises(VideoUnreadable):
            list(frames(f"{tmp_path}/{name}"))
