"""Damaged files of every form, sent to the real service: each gets a result, good files keep theirs."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from gateway.decoder.damage import DamageDetector
from gateway.errors import ImageError
from gateway.plugin_loading import errors_of, installed
from tests import encoders
from tests.damaged_files import damaged, outcome, refused_by_pillow
from tests.gateway_client.bulk.running import rows_of, run
from tests.photos import photo
from tests.processes import Gateway
from tests.samples import samples

CODES = {error.code for error in errors_of(installed()) if issubclass(error, ImageError)}
SMALL = (67, 45)
AT_ONCE = 900
notice = outcome(DamageDetector())


def outcomes(client: httpx.Client, files: Iterable[bytes]) -> list[str]:
    """The outcome of each file. Good files are sent between them and must be classified."""
    codes: list[str] = []
    waiting = list(files)
    while waiting:
        batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        form = [("f", (f"{index}", data)) for index, data in enumerate(batch)]
        good = ("f", ("good.jpg", photo("cat")))
        for place in range(len(form), -1, -100):
            form.insert(place, good)
        answer = client.post("/predict", params={"top_k": 1}, files=form)
        assert answer.status_code == 200, answer.text
        for result in answer.json()["results"]:
            if result["filename"] == "good.jpg":
                assert result["predictions"][0]["label"] == "Egyptian cat"
            else:
                codes.append("ok" if result["error"] is None else result["error"]["code"])
    return codes


def test_damaged_bytes_never_fail_the_service(real_client: httpx.Client):
    first_of_each = {one.format: one.data for one in reversed(samples(*SMALL))}
    files = [
        data[:place] + wrong + data[place + 1 :]
        for data in first_of_each.values()
        for place in (*range(1, 64, 4), *range(64, len(data), len(data) // 16))  # of the header and behind it
        for wrong in (b"\0", b"\xff")
    ]
    assert set(outcomes(real_client, files)) <= {"ok", *CODES}


def flipped() -> bytes:
    """A JPEG with wrong bits, which Pillow refuses and OpenCV decodes."""
    generator = random.Random(3)
    files = (damaged(photo("cat"), generator) for _ in range(1_000))
    return next(data for data in files if refused_by_pillow(data) and notice(data) == "marked")


@pytest.mark.parametrize("decode", ["auto", "always"])
def test_damaged_jpeg_has_a_warning_and_strict_refuses_it(
    decode: str, real_gateway: Gateway, decoding_gateway: Gateway, tmp_path: Path
):
    """The preprocessor decodes for the one gateway, and the gateway itself for the other."""
    files = [("f", ("sound", photo("cat"))), ("f", ("damaged", flipped()))]
    gateway = {"auto": real_gateway, "always": decoding_gateway}[decode]
    before = gateway.metric("gateway_damaged_images_total")
    with gateway.client() as client:
        sound, marked = client.post("/predict", files=files).json()["results"]
        assert (sound["status"], "warning" in sound) == ("ok", False)
        assert (marked["status"], marked["warning"], len(marked["predictions"])) == ("ok", "damaged", 5)
        sound, refused = client.post("/predict?strict=true", files=files).json()["results"]
        assert sound["status"] == "ok"
        assert (refused["error"]["code"], "warning" in refused) == ("damaged_image", False)
        assert client.post("/predict?strict=true", files=files[1:]).status_code == 422
    assert gateway.metric("gateway_damaged_images_total") == before + 3
    with connect(f"{gateway.url.replace('http', 'ws', 1)}/stream", proxy=None) as stream:
        for _, (name, data) in files:
            stream.send(data)
            assert json.loads(stream.recv(60)).get("warning") == {"sound": None, "damaged": "damaged"}[name]
    for _, (name, data) in files:
        (tmp_path / f"{name}.jpg").write_bytes(data)
    printed = run(tmp_path, "--out", tmp_path / "out.jsonl", "--gateway", gateway.url)
    assert "1 damaged image: some pixels are wrong" in printed
    rows = {row["path"].rpartition("/")[2]: row["warning"] for row in rows_of(tmp_path / "out.jsonl")}
    assert rows == {"damaged.jpg": "damaged", "sound.jpg": None}


def test_largest_allowed_images_are_decoded_and_memory_is_freed(start_gateway, light_triton):
    bomb = encoders.png_bomb(7_000, 7_000)
    with start_gateway(triton_url=light_triton.url) as gateway, gateway.client() as http:
        outcomes(http, [bomb] * 3)  # every decoder has started
        before = gateway.resident_bytes()
        assert set(outcomes(http, [bomb] * 3)) == {"ok"}
        assert gateway.resident_bytes() - before < 50 * 2**20
