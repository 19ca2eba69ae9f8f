"""Limits of uploads: a request at the limit succeeds; one past it, the error names the limit and its value."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from gateway_plugins.keys.limits_route import FIXED
from tests.samples import encode
from tests.services import Client, client_of
from tests.settings import Settings

SMALL = {
    "max_files": 3,
    "max_file_bytes": 36_000,
    "max_request_bytes": 100_000,
    "max_image_pixels": 10_000,
    "max_image_side": 200,
    "max_part_header_bytes": 512,
    "max_timeout_seconds": 60,
    "max_top_k": 10,
}
Form = Callable[..., dict[str, Any]]
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.fixture(scope="module")
def http() -> Iterator[Client]:
    with client_of(**SMALL) as client:
        yield client


def image(width: int, height: int, image_format: str = "PNG") -> bytes:
    return encode(Image.new("RGB", (width, height), "teal"), image_format)


SMALL_IMAGE = image(50, 50)


def padded(nbytes: int) -> bytes:
    """A JPEG of an exact size, filled up by what is ignored behind it."""
    return image(50, 50, "JPEG").ljust(nbytes, b"\0")


def error_of(answer: httpx.Response, index: int = 0) -> str | None:
    error = answer.json()["results"][index]["error"]
    return error["code"] if error else None


def is_problem(answer: httpx.Response, status: int, code: str, limit: str) -> bool:
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, body["code"], body["limit"], body["value"]) == (status, code, limit, SMALL[limit])
    return True


def test_limits_are_published_with_their_errors(http: Client):
    limits = {limit["name"]: limit for limit in http.get("/limits").json()["limits"]}
    settings, fixed = Settings.all_limits(), {**FIXED, **Settings.all_fixed_limits()}
    assert set(limits) == {*settings, *fixed}
    for name in settings:
        assert limits[name]["value"] == SMALL.get(name, Settings.model_fields[name].default)
        assert limits[name]["setting"] == f"GATEWAY_{name.upper()}"
    for name, (value, _, error) in fixed.items():
        assert (limits[name]["value"], limits[name]["code"], limits[name]["setting"]) == (value, error.code, None)


def multipart(*images: bytes) -> dict[str, Any]:
    return {"files": [("f", (f"{n}", image)) for n, image in enumerate(images)]}


def json_body(*images: bytes) -> dict[str, Any]:
    return {"json": {"images": [{"b64": b64encode(image).decode()} for image in images]}}


both_forms = pytest.mark.parametrize("form", [multipart, json_body])


@both_forms
def test_max_files(http: Client, form: Form):
    assert is_problem(http.post("/predict", **form(*[SMALL_IMAGE] * 4)), 413, "too_many_files", "max_files")
    assert http.post("/predict", **form(*[SMALL_IMAGE] * 3)).json()["summary"] == {"ok": 3, "failed": 0}


@both_forms
def test_too_large_file_leaves_the_other_results(http: Client, form: Form):
    answer = http.post("/predict", **form(padded(36_000), padded(36_001), SMALL_IMAGE))
    assert [error_of(answer, n) for n in range(3)] == [None, "file_too_large", None]


def test_max_file_bytes_of_a_raw_body(http: Client):
    headers = {"Content-Type": "image/jpeg"}
    assert http.post("/predict", content=padded(36_000), headers=headers).status_code == 200
    answer = http.post("/predict", content=padded(36_001), headers=headers)
    assert is_problem(answer, 413, "file_too_large", "max_file_bytes")


def json_of(total: int) -> bytes:
    """A JSON body of an exact length, of three images."""
    body = json.dumps(json_body(padded(24_000), padded(24_000), padded(24_000))["json"]).encode()
    return body + b" " * (total - len(body))


def multipart_of(total: int) -> bytes:
    """A multipart body of an exact length, of three files."""
    head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'
    sizes = [33_000, 33_000]
    overhead = 3 * (len(head) + 2) + len(b"--b--\r\n")
    sizes.append(total - overhead - sum(sizes))
    return b"".join(head + padded(size) + b"\r\n" for size in sizes) + b"--b--\r\n"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("body_of", [multipart_of, json_of])
def test_max_request_bytes(http: Client, body_of: Callable[[int], bytes], chunked: bool):
    headers = FORM if body_of is multipart_of else {"Content-Type": "application/json"}

    async def pieces(body: bytes):
        yield body[:5_000]
        yield body[5_000:]

    def send(total: int) -> httpx.Response:
        body = body_of(total)
        assert len(body) == total
        content = pieces(body) if chunked else body
        return http.post("/predict", content=content, headers=headers)

    assert send(100_000).json()["summary"] == {"ok": 3, "failed": 0}
    assert is_problem(send(100_001), 413, "request_too_large", "max_request_bytes")


def test_max_image_pixels_and_side(http: Client):
    shapes = {(100, 100): None, (101, 100): "image_too_large", (200, 50): None, (201, 49): "image_too_large"}
    for (width, height), code in shapes.items():
        answer = http.post("/predict", files={"f": ("x.png", image(width, height))})
        assert error_of(answer) == code, (width, height)
        assert answer.status_code == (422 if code else 200)


def test_max_part_header_bytes(http: Client):
    def send(nbytes: int) -> httpx.Response:
        head = b'Content-Disposition: form-data; name="f"; filename="x.png"\r\n'
        # Every byte between the line of the boundary and the empty line counts.
        head += b"X-Filler: " + b"x" * (nbytes - len(head) - len(b"X-Filler: \r\n")) + b"\r\n"
        body = b"--b\r\n" + head + b"\r\n" + SMALL_IMAGE + b"\r\n--b--\r\n"
        return http.post("/predict", content=body, headers=FORM)

    assert send(512).status_code == 200
    assert is_problem(send(513), 431, "headers_too_large", "max_part_header_bytes")


@pytest.mark.parametrize(("name", "limit"), [("top_k", "max_top_k"), ("timeout", "max_timeout_seconds")])
def test_limits_of_parameters(http: Client, name: str, limit: str):
    def send(value: int) -> httpx.Response:
        return http.post("/predict", params={name: value}, files={"f": ("x", b"no image")})

    assert send(SMALL[limit]).status_code == 415
    assert is_problem(send(SMALL[limit] + 1), 422, "invalid_parameter", limit)
