"""`frames` on POST /predict: an answer for each frame of an animated file."""

import asyncio
import base64
import json

import cv2
import numpy as np
import pytest
from prometheus_client import REGISTRY

from gateway.api.schemas import PredictResponse
from gateway.errors import InferenceFailed
from gateway.inference.backend import Call, InferResult, Row
from gateway.inference.prediction import Prediction
from tests.animations import FORMATS, VIDEOS, animated, apng_that_promises, avi_that_promises, gif_of, video
from tests.gateway.api.stub import PNG, Client, StubBackend, client_of

NDJSON = {"Accept": "application/x-ndjson"}


class Shades(StubBackend):
    """Sees how bright a picture is; answers the darkest last, and fails for those in `fails`."""

    fails: tuple[int, ...] = ()

    async def infer(self, call: Call) -> InferResult:
        levels = [
            round(float(cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR).mean()))
            for image in call.batch.images
        ]
        for _ in range(255 - min(levels)):
            await asyncio.sleep(0)
        if set(levels) & set(self.fails):
            raise InferenceFailed
        rows = tuple(Row(decoded=True, predictions=(Prediction("gray", 0, level / 255),)) for level in levels)
        return InferResult(call.model_name, call.model_version or "1", rows)


@pytest.fixture(scope="module")
def client():
    with client_of(Shades()) as client:
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
def test_each_frame_has_its_time_and_its_predictions_in_order(client, image_format):
    (result,) = ask(client, animated(image_format, range(0, 240, 20)))["results"]
    assert [frame["index"] for frame in result["frames"]] == list(range(12))
    assert [frame["time_s"] for frame in result["frames"]] == pytest.approx([n / 10 for n in range(12)])
    assert levels(result["frames"]) == pytest.approx(range(0, 240, 20), abs=1)
    assert {frame["error"] for frame in result["frames"]} == {None}
    assert (result["status"], result["width"], result["height"]) == ("ok", 64, 48)
    assert result["predictions"] == result["frames"][0]["predictions"]


@pytest.mark.parametrize(
    ("frames", "expected"), [("3", [0, 3, 6]), ("every:0.5s", [0, 5]), ("1", [0]), ("100", list(range(10)))]
)
def test_of_many_frames_those_are_answered_that_are_asked_for(client, frames, expected):
    (result,) = ask(client, animated("GIF", range(10)), frames=frames)["results"]
    assert [frame["index"] for frame in result["frames"]] == expected


def test_in_every_kind_of_body(client):
    data = animated("GIF", range(3))
    form = client.post("/predict", data={"frames": "2"}, files=[("f", ("x.gif", data))])
    raw = client.post("/predict?frames=2", content=data, headers={"Content-Type": "image/gif"})
    in_json = client.post("/predict?frames=2", json={"images": [{"b64": base64.b64encode(data).decode()}]})
    for answer in (form, raw, in_json):
        assert [frame["index"] for frame in answer.json()["results"][0]["frames"]] == [0, 1], answer.text


def test_without_the_parameter_the_first_frame_is_answered_as_ever(client):
    (result,) = ask(client, animated("GIF", [200, 100]), frames=None)["results"]
    assert levels([result]) == [200]
    assert "frames" not in result


def test_a_still_picture_has_one_frame(client):
    (result,) = ask(client, PNG)["results"]
    assert result["frames"] == [{"index": 0, "time_s": 0.0, "predictions": result["predictions"], "error": None}]


def test_files_have_one_result_each_and_frames_count_as_images(client):
    before = images_ok()
    answer = ask(client, PNG, animated("GIF", range(5)), b"no image", animated("GIF", [7]))
    assert [result["index"] for result in answer["results"]] == [0, 1, 2, 3]
    assert [len(result["frames"]) for result in answer["results"]] == [1, 5, 0, 1]
    assert answer["results"][2]["error"]["code"] == "unsupported_format"
    assert answer["summary"] == {"ok": 3, "failed": 1}
    assert images_ok() - before == 7
    assert PredictResponse.model_validate(answer).model_dump(exclude_unset=True) == answer


def test_as_lines_it_is_one_for_each_file_as_well(client):
    parts = [("f", ("a", animated("GIF", range(3)))), ("f", ("b", PNG))]
    answer = client.post("/predict?frames=all", files=parts, headers=NDJSON)
    *lines, last = map(json.loads, answer.text.splitlines())
    assert {line["filename"]: len(line["frames"]) for line in lines} == {"a": 3, "b": 1}
    assert last["summary"] == {"ok": 2, "failed": 0}


def test_one_image_in_flight_at_a_time_is_enough():
    with client_of(Shades(), max_images_in_flight=1, batch_max_images=1) as client:
        answer = ask(client, animated("GIF", range(6)), PNG, animated("WEBP", range(6)))
    assert [len(result["frames"]) for result in answer["results"]] == [6, 1, 6]


def test_the_frames_of_a_request_are_bounded_over_all_its_files():
    with client_of(Shades(), max_frames=5) as client:
        answer = ask(client, animated("GIF", range(3)), animated("GIF", range(3)), animated("GIF", range(2)), PNG)
        one = client.post("/predict?frames=all", files=[("f", ("x", animated("GIF", range(6))))])
        refused = client.post("/predict?frames=6", files=[("f", ("x", PNG))])
    assert [len(result["frames"]) for result in answer["results"]] == [3, 0, 2, 1]
    assert answer["results"][1]["error"]["code"] == "too_many_frames"
    assert (one.status_code, one.json()["results"][0]["error"]["code"]) == (422, "too_many_frames")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_parameter")
    assert (refused.json()["limit"], refused.json()["value"]) == ("max_frames", 5)


def test_where_a_file_can_be_read_no_further_its_last_frame_says_so(client):
    (result,) = ask(client, apng_that_promises(5))["results"]
    assert [frame["index"] for frame in result["frames"]] == [0, 1, 2]
    assert (result["status"], result["frames"][-1]["time_s"]) == ("ok", None)
    assert result["frames"][-1]["error"]["code"] == "undecodable_image"
    assert result["frames"][-1]["predictions"] == []


def test_a_bomb_of_frames_costs_its_neighbours_nothing(client):
    answer = ask(client, gif_of(1_000_000), apng_that_promises(10**9), PNG)
    assert [result["status"] for result in answer["results"]] == ["error", "error", "ok"]
    assert {result["error"]["code"] for result in answer["results"][:2]} == {"too_many_frames"}


def test_a_frame_that_fails_costs_no_other_frame_its_answer():
    backend = Shades()
    backend.fails = (10,)
    with client_of(backend, batch_max_images=1) as client:
        (result,) = ask(client, animated("GIF", [10, 20, 30]))["results"]
        failed = client.post("/predict?frames=all", files=[("f", ("x", animated("GIF", [10])))])
    assert [frame["error"] and frame["error"]["code"] for frame in result["frames"]] == ["inference_failed", None, None]
    assert (result["status"], levels([result])) == ("ok", [20])
    assert (failed.status_code, failed.json()["code"]) == (502, "inference_failed")


def test_the_size_of_an_answer_is_that_of_all_its_frames():
    with client_of(Shades(), max_predictions=5) as client:
        assert len(ask(client, animated("GIF", range(4)))["results"][0]["frames"]) == 4
        refused = client.post("/predict?frames=all", files=[("f", ("x", animated("GIF", range(5))))])
    assert (refused.status_code, refused.json()["code"]) == (422, "answer_too_large")


def test_other_shapes_have_no_place_for_frames(client):
    answer = client.post("/predict?frames=all&format=huggingface", files=[("f", ("x", PNG))])
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


@pytest.mark.parametrize("frames", ["", "0", "some", "every:0s", "x" * 40])
def test_whatever_cannot_be_understood_is_refused(client, frames):
    answer = client.post("/predict", params={"frames": frames}, files=[("f", ("x", PNG))])
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
    assert "'frames'" in answer.json()["detail"]


@pytest.mark.parametrize(("ending", "codec"), VIDEOS)
def test_a_short_video_has_frames_as_well(client, ending, codec):
    (result,) = ask(client, video(ending, codec, tuple(range(20, 220, 10))), frames="every:0.5s")["results"]
    assert [(frame["index"], frame["time_s"]) for frame in result["frames"]] == [(0, 0), (5, 0.5), (10, 1), (15, 1.5)]
    assert levels(result["frames"]) == pytest.approx([20, 70, 120, 170], abs=6)
    assert (result["width"], result["height"]) == (64, 48)


def test_of_a_video_frames_have_to_be_asked_for(client):
    answer = client.post("/predict", files=[("f", ("x.mp4", video("mp4", "mp4v", (1, 2))))])
    assert (answer.status_code, answer.json()["results"][0]["error"]["code"]) == (415, "unsupported_format")
    assert "frames=10" in answer.json()["results"][0]["error"]["message"]


def test_a_video_is_held_to_the_limits_of_images():
    small, large = video("mp4", "mp4v", (1, 2)), video("mp4", "mp4v", (1, 2), (640, 480))
    with client_of(Shades(), max_image_side=500) as client:
        answer = ask(client, large, small, avi_that_promises(10**9), small[:100])
    codes = [result["error"] and result["error"]["code"] for result in answer["results"]]
    assert codes == ["image_too_large", None, "too_many_frames", "undecodable_image"]
    assert (answer["results"][0]["width"], answer["results"][2]["width"]) == (640, 64)


def test_where_the_gateway_may_decode_nothing_frames_are_refused():
    with client_of(Shades(), decode="never") as client:
        answer = ask(client, animated("PNG", range(3)), video("mp4", "mp4v", (1, 2)), PNG)
    assert [result["error"]["code"] for result in answer["results"][:2]] == ["unsupported_format"] * 2
    assert len(answer["results"][2]["frames"]) == 1
