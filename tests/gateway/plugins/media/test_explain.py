"""POST /explain: the heat map of a class, and its limits."""

import base64
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import cv2
import httpx
import numpy as np
import pytest
from prometheus_client import REGISTRY

from gateway.decoder.damage import DamageDetector
from gateway.errors import InferenceFailed
from tests.asking import encode
from tests.damaged_files import damaged, outcome
from tests.doubles.backend import picture, quarters_backend
from tests.keys import key_of
from tests.photos import photo
from tests.processes import wait_for
from tests.services import Client, client_of, stub_service


def post(client: Client, *images: bytes, headers: dict[str, str] | None = None, **parameters: object):
    files = [("files", (f"{number}.png", image)) for number, image in enumerate(images or (picture(),))]
    return client.post("/explain", params=parameters, files=files, headers=headers or {})


def explanation(client: Client, **parameters: object) -> dict:
    answer = post(client, **parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()["explanation"]


def hottest(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Where the centre of the positive values is, as parts of the height and the width."""
    heat = np.maximum(np.array(values), 0)
    rows, columns = np.indices(heat.shape)
    side = len(heat)
    return float((rows * heat).sum() / heat.sum() / side), float((columns * heat).sum() / heat.sum() / side)


@pytest.fixture(scope="module")
def client():
    with client_of(quarters_backend()) as client:
        yield client


@pytest.mark.parametrize(("options", "masks"), [({"masks": 100}, 100), pytest.param({}, 500, marks=pytest.mark.long)])
def test_map_is_hot_where_the_class_is(client, options, masks):
    found = explanation(client, **options)
    assert (found["label"], found["class_id"], found["masks"]) == ("top left", 0, masks)
    assert found["score"] == pytest.approx(1)
    assert (found["width"], found["height"]) == (120, 60)
    assert np.array(found["values"]).shape == (28, 28)
    down, across = hottest(found["values"])
    assert down < 0.4
    assert across < 0.4
    other = explanation(client, label="bottom right", **options)
    assert other["class_id"] == 1
    down, across = hottest(other["values"])
    assert down > 0.5
    assert across > 0.5


def test_overlay_is_a_transparent_png_in_the_proportions_of_the_image(client):
    png = base64.b64decode(explanation(client, masks=200)["overlay"])
    overlay = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)
    assert overlay.shape == (224, 448, 4)
    assert overlay[40, 80, 3] > 80
    assert overlay[-20, -40, 3] < 50


@pytest.mark.parametrize(
    ("answer", "settings", "images", "status", "code", "words", "most"),
    [
        (InferenceFailed(), {}, [picture()], 502, "inference_failed", "", 1),
        (None, {}, [picture(), picture()], 413, "too_many_files", "", 0),
        (None, {}, [b"no picture"], 415, "unsupported_format", "", 0),
        (None, {"decode": "never"}, [picture()], 415, "unsupported_format", "GATEWAY_DECODE=never", 0),
    ],
    ids=["failing model", "second image", "no image", "nothing is decoded"],
)
def test_request_that_cannot_be_explained_costs_at_most_one_image(answer, settings, images, status, code, words, most):
    backend = quarters_backend(answer)
    with client_of(backend, **settings) as client:
        refused = post(client, *images)
    assert (refused.status_code, refused.json()["code"], len(backend.images)) == (status, code, most)
    assert words in refused.json()["detail"]


@pytest.mark.parametrize(
    ("parameters", "status", "words"),
    [
        ({"label": "top lift"}, 422, "has no label 'top lift'"),
        ({"label": "twin"}, 422, "send 'class_id' instead"),
        ({"class_id": 4}, 422, "the classes 0 to 3"),
        ({"class_id": 1, "label": "twin"}, 422, "not both"),
        ({"method": "occlusion"}, 422, "not a parameter of this request"),
        ({"masks": 0}, 422, "'masks'"),
        ({"top_k": 5}, 422, "not a parameter of this request"),
        ({"model": "none"}, 404, "no such model"),
    ],
    ids=str,
)
def test_wrong_parameters_are_explained(client, parameters, status, words):
    answer = post(client, **parameters)
    assert answer.status_code == status
    assert words in answer.json()["detail"]


def test_number_of_masks_is_limited(monkeypatch):
    monkeypatch.setattr("gateway.plugins.media.explain_route.MAX_MASKS", 25)
    with client_of(quarters_backend()) as client:
        assert explanation(client, masks=25)["masks"] == 25
        answer = post(client, masks=26)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
        assert (answer.json()["limit"], answer.json()["value"]) == ("max_masks", 25)


def test_bytes_of_masked_copies_are_limited(monkeypatch):
    """An image of 60 × 120 pixels has 21,600 bytes: itself and 47 copies are just within 1 MiB."""
    most = 2**20 // 21_600 - 1
    monkeypatch.setattr("gateway.plugins.media.explain_route.MAX_MASKED_BYTES", 2**20)
    with client_of(quarters_backend()) as client:
        assert explanation(client, masks=most)["masks"] == most
        answer = post(client, masks=most + 1)
    assert (answer.status_code, answer.json()["code"]) == (422, "too_costly")
    assert answer.json()["limit"] == "max_masked_bytes"


def test_masking_is_charged_to_the_account_of_the_request(monkeypatch):
    """Each copy adds a little to the account; without that, a thousand of them exceed it."""
    monkeypatch.setattr("gateway.limits.account.SECONDS_PER_IMAGE", 0.0)
    with client_of(quarters_backend(), request_cpu_seconds=0.1) as client:
        answer = post(client, picture(384, 768), masks=1_000)
    assert (answer.status_code, answer.json()["code"]) == (422, "too_costly")
    assert answer.json()["limit"] == "request_cpu_seconds"


@pytest.mark.parametrize("size", [(40, 40), (1, 1), (1, 300), (300, 2), (5, 7)], ids=str)
def test_even_tiny_and_narrow_images_have_maps_and_transparent_overlays(client, size):
    """Differences of nothing but rounding errors are not drawn."""
    answer = post(client, encode(np.full((*size, 3), 90, np.uint8), ".png"), masks=30)
    assert answer.status_code == 200, answer.text
    found = answer.json()["explanation"]
    assert np.isfinite(found["values"]).all()
    overlay = cv2.imdecode(np.frombuffer(base64.b64decode(found["overlay"]), np.uint8), cv2.IMREAD_UNCHANGED)
    assert overlay[..., 3].max() < 5


def test_damaged_jpeg_has_a_warning_or_is_refused(client):
    generator, of = random.Random(7), outcome(DamageDetector())
    sound = photo("cat")
    broken = next(data for data in (damaged(sound, generator) for _ in range(100)) if of(data) == "marked")
    assert "warning" not in post(client, sound, masks=5).json()["explanation"]
    assert post(client, broken, masks=5).json()["explanation"]["warning"] == "damaged"
    refused = post(client, broken, masks=5, strict="true")
    assert (refused.status_code, refused.json()["code"]) == (422, "damaged_image")


def test_deadline_holds_for_the_whole_explanation():
    with client_of(quarters_backend(seconds=0.05)) as client:
        answer = post(client, masks=2_000, timeout=0.3)
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")


def test_copies_take_a_quarter_of_the_images_in_flight():
    backend = quarters_backend(seconds=0.1)
    with client_of(backend, max_images_in_flight=8) as client:
        explanation(client, masks=30)
    assert backend.most_in_flight == 2


def test_explanation_ends_with_its_client(monkeypatch):
    backend = quarters_backend(seconds=0.02)
    headers = {"Content-Type": "image/png"}
    parameters = {"masks": 10_000, "timeout": 300}
    before = REGISTRY.get_sample_value("gateway_images_in_flight")
    monkeypatch.setattr("gateway.plugins.media.explain_route.MAX_MASKS", 10_000)
    with stub_service(backend) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/explain", params=parameters, content=picture(), headers=headers, timeout=1)
        assert backend.images
        wait_for(lambda: REGISTRY.get_sample_value("gateway_images_in_flight") <= before)
        assert len(backend.images) < 10_000


def test_explanation_that_waits_for_its_rate_delays_no_other(tmp_path):
    """The slow key's has to wait for most of its copies, with one decoder for both."""
    path = tmp_path / "keys"
    slow = key_of(path, "slow", rate="4/s")
    other = key_of(path, "other", rate="1000/s")
    order = []

    backend = quarters_backend()
    with stub_service(backend, api_keys_file=path, cores=1) as url, ThreadPoolExecutor(2) as pool:

        def explain(key: dict[str, str], name: str) -> dict:
            headers = {**key, "Content-Type": "image/png"}
            answer = httpx.post(f"{url}/explain", params={"masks": 20}, content=picture(), headers=headers, timeout=60)
            order.append(name)
            return answer.raise_for_status().json()

        alone = explain(other, "alone")
        before = len(backend.images)
        first = pool.submit(explain, slow, "slow")
        wait_for(lambda: len(backend.images) > before)
        second = pool.submit(explain, other, "other")
        answers = [first.result(), second.result()]
    assert order == ["alone", "other", "slow"]
    assert answers == [alone, alone]
