"""Attacks on parsers, by costly images and by URL cost the serving process little."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from tests.animations import gif_of
from tests.attack import parsers, urls
from tests.attack.target import Case, Target, cases
from tests.costly_files import (
    black_png,
    png_with_texts,
    progressive_jpeg,
    progressive_jpeg_of_many_scans,
)
from tests.doubles.backend import PNG
from tests.gateway.decoder.hostile_headers import heic_of_headers
from tests.processes import Gateway

pytestmark = pytest.mark.slow

SETTINGS = urls.SETTINGS
NBYTES = 4_000_000
# Five times the promised limits, since other processes may slow the service down.
LONGEST_PAUSE_SECONDS = 0.25
MOST_CPU_SECONDS = 5.0
MOST_BYTES = 150_000_000


def damaged_images(target: Target) -> str:
    whole = progressive_jpeg(400, 300)
    noises = (bytes((number * place) % 256 for place in range(2_000)) for number in range(50))
    return target.post_files([whole[:1_000] + noise + whole[3_000:] for noise in noises])


HEADERS = Case(
    "heic-of-headers",
    "Headers that are as expensive to read as any may be, as many as fit",
    lambda target: target.post_files([heic_of_headers(10_000, 1)], name="x.heic"),
    folded=True,
)
IMAGES = cases(
    (
        "jpeg-of-many-scans",
        "A progressive JPEG of 98 kB, 2000 × 2000 pixels and 6,000 scans",
        lambda target: target.post_files([progressive_jpeg_of_many_scans(2_000, 6_000)]),
    ),
    (
        "png-with-texts",
        "A PNG of 8 × 8 pixels with 200 texts that inflate to 1.6 GB",
        lambda target: target.post_files([png_with_texts(200)], name="x.png"),
    ),
    (
        "black-pngs",
        "A hundred black PNGs of 7000 × 7000 pixels, one bit each",
        lambda target: target.post_files([black_png(7_000)] * 100, name="x.png"),
    ),
    (
        "long-gif",
        "One frame of a GIF of one pixel and 200,000 frames",
        lambda target: target.post_files([gif_of(200_000)], "?frames=1", name="x.gif"),
    ),
    ("damaged-images", "Fifty images with valid headers and endings, and noise between", damaged_images),
)
"""Their decoding is bounded by the account of their request; see tests/gateway/decoder for each format."""


def ask(gateway: Gateway) -> dict:
    with gateway.client() as http:
        answer: httpx.Response = http.post("/predict", files={"f": ("c.png", PNG)}, params={"top_k": 1})
    return answer.json()["results"][0]


@contextmanager
def cheap(gateway: Gateway) -> Iterator[None]:
    """Assert that what the block sends costs the gateway little, and no other client its answer."""
    usual = ask(gateway)
    process = psutil.Process(gateway.process.pid)
    began, offset = process.cpu_times(), gateway.log.stat().st_size
    resident_bytes = gateway.resident_bytes()
    yield
    assert ask(gateway) == usual
    ended = process.cpu_times()
    assert ended.user + ended.system - began.user - began.system < MOST_CPU_SECONDS
    assert gateway.resident_bytes() - resident_bytes < MOST_BYTES
    pauses = [event["cpu_seconds"] for event in gateway.events(offset) if event["event"] == "loop_paused"]
    assert max(pauses, default=0.0) < LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize("attack", [*parsers.CASES, HEADERS, *IMAGES], ids=lambda attack: attack.name)
def test_attack_is_cheap_and_affects_no_other_client(gateway: Gateway, attack: Case):
    with cheap(gateway):
        answer = attack.send(Target("127.0.0.1", gateway.port, NBYTES, folded=attack.folded))
        assert "50" not in answer.split(), answer
        assert not answer.startswith("5"), answer


@pytest.mark.parametrize("attack", urls.CASES, ids=lambda attack: attack.name)
def test_attack_by_url_is_cheap_and_reaches_nothing(gateway: Gateway, attack: Case):
    with cheap(gateway):
        answer = attack.send(Target("127.0.0.1", gateway.port))
        assert answer.startswith("422 "), answer
