"""`frames` on POST /predict: an answer for each frame of a file, which needs a permit like an image."""

import asyncio
import io
import weakref
from types import SimpleNamespace

import pytest
from PIL import Image
from prometheus_client import REGISTRY

from gateway.api.schemas import PredictResponse
from gateway.errors import InferenceFailed
from gateway.inference.backend import Call
from gateway.inference.result import Prediction, Result, Row
from gateway.plugins.media.animation import FileFrames, read_frames
from gateway.plugins.media.in_decoder.animations import count_gif_frames
from tests.animations import FORMATS, animated, apng_that_promises, gif_of
from tests.doubles.backend import PNG, StubBackend, brightness
from tests.keys import key_of
from tests.services import Client, client_of

NDJSON = {"Accept": "application/x-ndjson"}


async def shades(call: Call) -> list[Row]:
    """How bright each image is, from 0 to 1; the darkest is answered last."""
    levels = [brightness(image) for image in call.images]
    for _ in range(255 - round(255 * min(levels))):
        await asyncio.sleep(0)
    return [Row(predictions=(Prediction("gray", 0, round(255 * level) / 255),)) for level in levels]


@pytest.fixture(scope="module")
def client():
    with client_of(StubBackend(shades)) as client:
        yield client


def ask(client: Client, *files: bytes, frames: str | None = "all", **headers: str) -> dict:
    parts = [("f", (f"{number}", data)) for number, data in enumerate(files)]
    answer = client.post("/predict", params={"frames": frames} if frames else {}, files=parts, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def levels(frames: list[dict]) -> list[int]:
    return [round(frame["predictions"][0]["score"] * 255) for frame in frames]


def images_ok() -> float:
    return (
        REGISTRY.get_sample_value("gateway_images_total", {"outcome": "ok", "model": "ensemble_model", "version": "1"})
        or 0.0
    )


@pytest.mark.parametrize("image_format", FORMATS)
def test_each_frame_has_its_time_and_predictions(client, image_format):
    durations = [50 + 10 * number for number in range(12)]
    (result,) = ask(client, animated(image_format, range(0, 240, 20), duration=durations))["results"]
    assert [frame["index"] for frame in result["frames"]] == list(range(12))
    times = [sum(durations[:number]) / 1e3 for number in range(12)]
    assert [frame["time_s"] for frame in result["frames"]] == pytest.approx(times)
    assert levels(result["frames"]) == pytest.approx(range(0, 240, 20), abs=1)
    assert {frame["error"] for frame in result["frames"]} == {None}
    assert (result["status"], result["width"], result["height"]) == ("ok", 64, 48)
    assert result["predictions"] == result["frames"][0]["predictions"]


def test_without_the_parameter_the_first_frame_is_answered(client):
    (result,) = ask(client, animated("GIF", [200, 100]), frames=None)["results"]
    assert levels([result]) == [200]
    assert "frames" not in result


def test_each_file_has_one_result_and_frames_count_as_images(client):
    before = images_ok()
    answer = ask(client, PNG, animated("GIF", range(5)), b"no image", animated("GIF", [7]))
    assert [result["index"] for result in answer["results"]] == [0, 1, 2, 3]
    assert [len(result["frames"]) for result in answer["results"]] == [1, 5, 0, 1]
    still = answer["results"][0]
    assert still["frames"] == [{"index": 0, "time_s": 0.0, "predictions": still["predictions"], "error": None}]
    assert answer["results"][2]["error"]["code"] == "unsupported_format"
    assert answer["summary"] == {"ok": 3, "failed": 1}
    assert images_ok() - before == 7
    assert PredictResponse.model_validate(answer).model_dump(exclude_unset=True) == answer


class Frame:
    """The image of a frame, which may hold its pixels."""


def test_image_is_kept_of_the_first_answered_frame_alone():
    """Its permit is released, so the others' pixels would be memory that nothing bounds."""
    reported = []
    frames = FileFrames(SimpleNamespace(report=lambda *each: reported.append(each)))
    images = [Frame() for _ in range(4)]
    kept = [weakref.ref(image) for image in images]
    for index in (2, 0, 3, 1):
        error = InferenceFailed() if index == 0 else None
        frames.begin(index, 0.0)(images[index], Result(0, f"{index}", row=Row(error=error)))
    del images
    assert [each() is not None for each in kept] == [False, True, False, False]
    frames.end()
    ((image, result),) = reported
    assert (image, result.filename) == (kept[1](), "1")
    assert [frame.index for frame in result.frames] == list(range(4))


def test_frames_need_one_permit_at_a_time():
    with client_of(StubBackend(shades), max_images_in_flight=1) as client:
        answer = ask(client, animated("GIF", range(6)), PNG, animated("WEBP", range(6)))
    assert [len(result["frames"]) for result in answer["results"]] == [6, 1, 6]


def test_frame_limit_applies_to_the_whole_request(monkeypatch):
    monkeypatch.setattr("gateway.plugins.media.plugin.MAX_FRAMES", 5)
    with client_of(StubBackend(shades)) as client:
        answer = ask(client, animated("GIF", range(3)), animated("GIF", range(3)), animated("GIF", range(2)), PNG)
        one = client.post("/predict?frames=all", files=[("f", ("x", animated("GIF", range(6))))])
        refused = client.post("/predict?frames=6", files=[("f", ("x", PNG))])
    assert [len(result["frames"]) for result in answer["results"]] == [3, 0, 2, 1]
    assert answer["results"][1]["error"]["code"] == "too_many_frames"
    error = one.json()["results"][0]["error"]
    assert (one.status_code, error["code"]) == (422, "too_many_frames")
    assert error["message"].startswith("The file has 6 frames, and 5 more are allowed")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_parameter")
    assert (refused.json()["limit"], refused.json()["value"]) == ("max_frames", 5)


@pytest.mark.parametrize("frames", ["all", "3"])
def test_each_frame_is_charged_once_to_the_key(tmp_path, frames):
    """Six images at once suffice for two animations of three frames, and the last one needs no seventh."""
    key = key_of(tmp_path / "keys", rate="6/h")
    with client_of(StubBackend(shades), api_keys_file=tmp_path / "keys") as client:
        answer = ask(client, *[animated("GIF", range(3))] * 2, frames=frames, **key)
        seventh = client.post("/predict", files={"f": PNG}, headers=key)
    errors = [frame["error"] for result in answer["results"] for frame in result["frames"]]
    assert (errors, seventh.status_code) == ([None] * 6, 429)


def test_truncated_file_ends_with_an_error_frame(client):
    (result,) = ask(client, apng_that_promises(5))["results"]
    assert [frame["index"] for frame in result["frames"]] == [0, 1, 2]
    assert (result["status"], result["frames"][-1]["time_s"]) == ("ok", None)
    error = result["frames"][-1]["error"]
    assert (error["code"], "Frame 2 of 5" in error["message"]) == ("undecodable_image", True)
    assert result["frames"][-1]["predictions"] == []


def test_failed_frame_does_not_affect_other_frames():
    async def answer(call: Call) -> list[Row]:
        if any(round(255 * brightness(image)) == 10 for image in call.images):
            raise InferenceFailed
        return await shades(call)

    with client_of(StubBackend(answer), max_images_in_flight=1) as client:
        (result,) = ask(client, animated("GIF", [10, 20, 30]))["results"]
        failed = client.post("/predict?frames=all", files=[("f", ("x", animated("GIF", [10])))])
    assert [frame["error"] and frame["error"]["code"] for frame in result["frames"]] == ["inference_failed", None, None]
    assert (result["status"], levels([result])) == ("ok", [20])
    assert (failed.status_code, failed.json()["code"]) == (502, "inference_failed")


def test_answer_size_counts_all_frames(monkeypatch):
    monkeypatch.setattr("gateway.api.answers.MAX_PREDICTIONS", 5)
    with client_of(StubBackend(shades)) as client:
        assert len(ask(client, animated("GIF", range(4)))["results"][0]["frames"]) == 4
        refused = client.post("/predict?frames=all", files=[("f", ("x", animated("GIF", range(5))))])
    assert (refused.status_code, refused.json()["code"]) == (422, "answer_too_large")


def test_other_shapes_refuse_frames(client):
    answer = client.post("/predict?frames=all&format=huggingface", files=[("f", ("x", PNG))])
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


@pytest.mark.parametrize("frames", ["", "0", "-1", "1.5", "ALL", "all,3", "9" * 40, "every:5s"])
def test_invalid_frames_parameter_is_refused(client, frames):
    answer = client.post("/predict", params={"frames": frames}, files=[("f", ("x", PNG))])
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
    assert answer.json()["detail"].startswith("'frames': ")


def test_frames_are_refused_if_decoding_is_disabled():
    with client_of(StubBackend(shades), decode="never") as client:
        answer = ask(client, animated("PNG", range(3)), PNG)
    assert answer["results"][0]["error"]["code"] == "unsupported_format"
    assert len(answer["results"][1]["frames"]) == 1


@pytest.mark.parametrize("total", [1, 2, 7, 100, 999])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 999])
def test_a_count_selects_evenly_spread_frames(total, count):
    wanted = read_frames(str(count), 1_000)
    number = min(count, total)
    chosen = [index for index in range(total) if wanted.takes(index, total)]
    assert chosen == [place * total // number for place in range(number)]
    assert wanted.number_of(total) == number


@pytest.mark.parametrize("data", [animated("GIF", range(5)), animated("GIF", [3]), gif_of(300), gif_of(1)])
def test_gif_frame_count_equals_that_of_pillow(data):
    number = getattr(Image.open(io.BytesIO(data)), "n_frames", 1)
    assert count_gif_frames(data, 1_000) == number
    assert count_gif_frames(data, 10) == min(number, 11), "it counts no further than one past the limit"


@pytest.mark.parametrize(("answered", "frames"), [(1, [(0, None), (1, "deadline_exceeded")]), (0, [])])
def test_frames_answered_before_the_deadline_are_kept(answered, frames):
    """A file without an answered frame has the error."""
    left = 10

    async def answer(call: Call) -> list[Row]:
        nonlocal left
        left -= 1
        if left < 0:
            await asyncio.sleep(60)
        return await shades(call)

    with client_of(StubBackend(answer), max_images_in_flight=1) as client:
        ask(client, animated("GIF", [10, 20]))  # which starts the decoder
        left = answered
        found = client.post("/predict?frames=all&timeout=2", files=[("f", ("x", animated("GIF", [10, 20])))])
    (result,) = found.json()["results"] if answered else [found.json()]
    codes = [(frame["index"], frame["error"] and frame["error"]["code"]) for frame in result.get("frames", [])]
    assert (codes, found.status_code) == (frames, 200 if answered else 504)
