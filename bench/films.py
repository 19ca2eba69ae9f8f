"""How steady the labels of streams are: `python -m bench.films URL`, for a running service with an ImageNet model.

Three films are made of photographs, with cuts at known frames: noise, changing light, and blends from one photograph
to the next. For the label of each frame and of each kind of smoothing, the table has the changes of the label (the
cuts are the true ones), the mean delay in frames from a cut to the label of the new photograph, and the frames with
another label than their photograph.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from statistics import mean
from typing import Any

import cv2
import httpx
import numpy as np
from numpy.typing import NDArray
from websockets.sync.client import connect

from tests.photos import pixels

Picture = NDArray[Any]
SCENES = ("cat", "coffee", "motorcycle", "camera")
SCENE_FRAMES, BLEND_FRAMES = 40, 10
SIZE = (320, 240)
SMOOTHINGS = ("exponential", "majority", "hysteresis", "hold")


def noisy(scenes: list[Picture], generator: np.random.Generator) -> Iterator[Picture]:
    """Noise of the sensor, and a hand that trembles."""
    for number, picture in _each(scenes):
        sigma = 20 if number % 2 else 45
        moved = np.roll(picture, generator.integers(-6, 7, 2), (0, 1))
        yield np.clip(moved + generator.normal(0, sigma, picture.shape), 0, 255)


def lit(scenes: list[Picture], generator: np.random.Generator) -> Iterator[Picture]:
    """Light that changes from almost dark to too bright, with some noise."""
    for number, picture in _each(scenes):
        light = 0.8 + 0.55 * np.sin(number / 2.5) + generator.normal(0, 0.2)
        yield np.clip(picture * max(light, 0.05) + generator.normal(0, 12, picture.shape), 0, 255)


def blended(scenes: list[Picture], generator: np.random.Generator) -> Iterator[Picture]:
    """Blends of BLEND_FRAMES around each cut, with some noise."""
    for number, picture in _each(scenes):
        scene, place = divmod(number, SCENE_FRAMES)
        share = (place - SCENE_FRAMES) / BLEND_FRAMES + 0.5
        if share > 0 and scene + 1 < len(scenes):
            picture = picture * (1 - share) + scenes[scene + 1] * share
        elif scene and (share := 0.5 - place / BLEND_FRAMES) > 0:
            picture = picture * (1 - share) + scenes[scene - 1] * share
        yield np.clip(picture + generator.normal(0, 22, picture.shape), 0, 255)


FILMS: dict[str, Callable[[list[Picture], np.random.Generator], Iterator[Picture]]] = {
    "noise": noisy,
    "changing light": lit,
    "blends": blended,
}


def _each(scenes: list[Picture]) -> Iterator[tuple[int, Picture]]:
    yield from enumerate(scene for scene in scenes for _ in range(SCENE_FRAMES))


def jpeg(picture: Picture) -> bytes:
    """A frame as it is sent."""
    return cv2.imencode(".jpg", picture.astype(np.uint8))[1].tobytes()


def label(answer: dict[str, Any]) -> str:
    """The first label of an answer, "" if there is none."""
    return answer["predictions"][0]["label"] if answer["predictions"] else ""


def labels_of(url: str, frames: list[bytes], smoothing: str) -> tuple[list[str], list[str]]:
    """The labels of the frames and of the sequence."""
    address = f"{url.replace('http', 'ws', 1).rstrip('/')}/stream?top_k=1&drop=never&smoothing={smoothing}"
    with connect(address, proxy=None, compression=None, open_timeout=60) as stream:
        answers = []
        for frame in frames:
            stream.send(frame)
            answers.append(json.loads(stream.recv(60)))
    return [label(each) for each in answers], [label(each["sequence"]) for each in answers]


def figures(seen: list[str], truth: list[str]) -> tuple[int, float, int]:
    """Changes of the label, mean delay from a cut to the true label in frames, and frames with another label."""
    changes = sum(before != after for before, after in itertools.pairwise(seen))
    delays = []
    for cut in range(SCENE_FRAMES, len(truth), SCENE_FRAMES):
        scene = seen[cut : cut + SCENE_FRAMES]
        delays.append(scene.index(truth[cut]) if truth[cut] in scene else SCENE_FRAMES)
    return changes, mean(delays), sum(one != other for one, other in zip(seen, truth, strict=True))


def main() -> None:
    """Print a row for each film and kind of label."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="a running service, such as http://127.0.0.1:8080")
    url = parser.parse_args().url
    scenes = [np.asarray(pixels(name).resize(SIZE)).astype(float)[..., ::-1] for name in SCENES]
    truth = []
    for scene in scenes:
        answer = httpx.post(f"{url.rstrip('/')}/predict?top_k=1", files={"file": jpeg(scene)}).raise_for_status()
        truth += [label(answer.json()["results"][0])] * SCENE_FRAMES
    print(f"true changes: {len(SCENES) - 1}, {', '.join(truth[::SCENE_FRAMES])}\n")
    print("| film | label of | changes | delay in frames | wrong frames |\n|---|---|---|---|---|")
    for film, make in FILMS.items():
        frames = [jpeg(picture) for picture in make(scenes, np.random.default_rng(0))]
        rows = {}
        for smoothing in SMOOTHINGS:
            rows["the frame"], rows[smoothing] = labels_of(url, frames, smoothing)
        for name, seen in rows.items():
            changes, delay, wrong = figures(seen, truth)
            print(f"| {film} | {name} | {changes} | {delay:.1f} | {wrong} of {len(truth)} |")


if __name__ == "__main__":
    main()
