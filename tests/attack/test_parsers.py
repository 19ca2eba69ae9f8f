"""Bytes that are cheap to send, and may be expensive to parse or to decode, cost the serving process little."""

import itertools
from collections.abc import Iterable

import psutil
import pytest

from bench.http_load import BOUNDARY
from tests.animations import gif_of
from tests.attack.target import CLOSE, MULTIPART, Target, head, repeated
from tests.costly_files import black_png, png_with_texts, progressive_jpeg_of_many_scans
from tests.doubles.backend import PNG
from tests.gateway.api.tensors import INFER
from tests.gateway.decoder.hostile_headers import heic_of_headers
from tests.processes import Gateway

pytestmark = pytest.mark.slow

# Five times the promised limits, since other processes may slow the service down.
LONGEST_PAUSE_SECONDS = 0.25
MOST_CPU_SECONDS = 5.0
MOST_BYTES = 150_000_000
JSON = "application/json"
DELIMITER = f"--{BOUNDARY}\r\n".encode()
END = f"--{BOUNDARY}--\r\n".encode()
FILE = b'Content-Disposition: form-data; name="f"; filename="x"\r\n'


def _json_of_tiny_members(target: Target) -> str:
    members = b",".join(b'"%x":[[],[]]' % number for number in range(5_000))
    return target.post(INFER, b"{" + members + b', "inputs": []}', JSON)


def _many_headers(target: Target) -> str:
    fields = b"".join(b"%x:\r\n" % number for number in range(6_000))
    return target.raw([head("POST /predict")[:-2] + fields + b"Content-Length: 1\r\n\r\nx"])


def _many_parameters(target: Target) -> str:
    query = "&".join(f"{number:x}" for number in range(11_000))
    return target.post(f"/predict?{query}", b"x", "image/jpeg")


def _headers_of_a_part(target: Target) -> str:
    fields = b"".join(b"%x:\r\n" % number for number in range(1_800))
    return _parts(target, DELIMITER + FILE + fields + b"\r\nx\r\n")


def _blanks_of_a_part(target: Target) -> str:
    part = FILE.replace(b": ", b":" + b" " * 15_000) + b"\r\nx\r\n"
    return _parts(target, DELIMITER[:-2] + b" " * 15_000 + b"\r\n" + part)


def _parts(target: Target, part: bytes) -> str:
    """A part with its delimiter, as often as the attack may be large."""
    return target.post("/predict", part * min(900, target.nbytes // len(part)) + END, MULTIPART)


def _in_chunks(begin: bytes, unit: bytes):
    """A chunked body that repeats `unit`, as it is."""
    begin = head("POST /predict", "Content-Type: image/jpeg", CLOSE, "Transfer-Encoding: chunked") + begin
    return lambda target: target.raw(itertools.chain([begin], repeated(unit, target.nbytes)))


def _base64(unit: bytes, nbytes: int) -> Iterable[bytes]:
    """A JSON request with an image whose text repeats `unit`."""
    return itertools.chain([b'{"images": [{"b64": "'], repeated(unit, nbytes), [b'"}]}'])


ATTACKS = {
    "JSON with as many members and elements as its bound allows": _json_of_tiny_members,
    "as many headers as fit": _many_headers,
    "as many query parameters as fit, none known": _many_parameters,
    "requests that do not wait for answers": lambda target: target.raw([head("GET /nowhere") * 10_000]),
    "parts with as many headers as fit": _headers_of_a_part,
    "spaces after a boundary and before a header's value": _blanks_of_a_part,
    "JSON of nothing but spaces": lambda target: target.post("/predict", b" " * target.nbytes, JSON),
    "spaces in the middle of a request of the Open Inference Protocol": lambda target: target.post(
        INFER, b'{"inputs": [' + b"\n" * target.nbytes + b"]}", JSON
    ),
    "base64 of which every character is an escape": lambda target: target.post(
        "/predict", _base64(b"\\u0041", target.nbytes), JSON
    ),
    "text that is not base64": lambda target: target.post("/predict", _base64(b"=A-_ \\n", target.nbytes), JSON),
    "a trailer that does not end": _in_chunks(b"0\r\nA: ", b"x"),
    "trailers without end": _in_chunks(b"0\r\n", b"a:\r\n"),
    "a chunk whose extension does not end": _in_chunks(b"1;a=", b"x"),
    "a thousand files of one byte in one piece": lambda target: target.post_files([b"x"] * 1_000),
    "a thousand small images with a thousand predictions each": lambda target: target.post_files(
        [PNG] * 1_000, "?top_k=1000&timeout=100"
    ),
    "two hundred images and an unknown label": lambda target: target.post_files(
        [PNG] * 200, "?labels=Egyptain%20cat" + "x" * 10_000
    ),
    "headers that are as expensive to read as any may be": lambda target: target.post_files(
        [heic_of_headers(10_000, 1)] * (target.nbytes // len(heic_of_headers(10_000, 1))), name="x.heic"
    ),
    "a progressive JPEG of 6,000 scans": lambda target: target.post_files(
        [progressive_jpeg_of_many_scans(2_000, 6_000)]
    ),
    "a PNG whose texts inflate to 1.6 GB": lambda target: target.post_files([png_with_texts(200)], name="x.png"),
    "a hundred black PNGs of 49 megapixels": lambda target: target.post_files([black_png(7_000)] * 100, name="x.png"),
    "a frame of a GIF of 200,000 frames": lambda target: target.post_files(
        [gif_of(200_000)], "?frames=1", name="x.gif"
    ),
}


def ask(gateway: Gateway) -> dict:
    with gateway.client() as http:
        return http.post("/predict", files={"f": ("c.png", PNG)}, params={"top_k": 1}).json()["results"][0]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_is_cheap_and_affects_no_other_client(gateway: Gateway, attack: str):
    usual = ask(gateway)
    process = psutil.Process(gateway.process.pid)
    began, offset = process.cpu_times(), gateway.log.stat().st_size
    resident_bytes = gateway.resident_bytes()
    answer = ATTACKS[attack](Target(gateway.port))
    assert not answer.startswith("5"), answer
    assert ask(gateway) == usual
    ended = process.cpu_times()
    assert ended.user + ended.system - began.user - began.system < MOST_CPU_SECONDS
    assert gateway.resident_bytes() - resident_bytes < MOST_BYTES
    pauses = [event["cpu_seconds"] for event in gateway.events(offset) if event["event"] == "loop_paused"]
    assert max(pauses, default=0.0) < LONGEST_PAUSE_SECONDS
