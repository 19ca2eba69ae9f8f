"""Errors of requests: their status, their code, and the message with the remedy."""

from typing import Any

import pytest

from gateway.ingest.multipart import MAX_READ_AHEAD_BYTES
from tests.doubles.backend import PNG
from tests.services import client_of

FILE = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'
TOP_K = b'--b\r\nContent-Disposition: form-data; name="top_k"\r\n\r\nx\r\n'


Request = tuple[str, str, dict[str, Any]]


def post(path: str = "/predict", **options: Any) -> Request:
    return "POST", path, options or {"files": {"f": b"x"}}


def fields(**files: tuple[str | None, str | bytes]) -> Request:
    return post(files=files)


def body(content: bytes, **headers: str) -> Request:
    return post(content=content, headers={name.replace("_", "-"): value for name, value in headers.items()})


def form(content: bytes) -> Request:
    return body(content, content_type="multipart/form-data; boundary=b")


REFUSALS: dict[tuple[int, str | None], dict[str, Request]] = {
    (404, "not_found"): {
        "There is nothing at /predict/; see /docs.": post("/predict/"),
        "GATEWAY_ADMIN_KEYS_FILE": post("/models/cats/unload"),
    },
    (405, "method_not_allowed"): {
        "GET is not allowed on /predict: send POST; see /docs.": ("GET", "/predict", {}),
        "PUT is not allowed on /predict: send POST; see /docs.": ("PUT", "/predict", {}),
    },
    (400, "unknown_field"): {
        "'topk' has no file name and is not a parameter; did you mean 'top_k'? Parameters are top_k,": fields(
            topk=(None, "cat.jpg")
        ),
        "a file has one, such as curl -F files=@cat.jpg. Parameters are top_k,": fields(files=(None, "cat.jpg")),
        "did you mean 'top_k'?": fields(files=("cat.png", PNG), topk=(None, "2")),  # not late, but unknown
        "'top_k' goes in the query, such as ?top_k=…; the body has \"images\" alone.": post(
            json={"top_k": 2, "images": []}
        ),
    },
    (422, "invalid_parameter"): {
        "'topk' is not a parameter of this request; did you mean 'top_k'?": post("/predict?topk=3"),
        "'zzz' is not a parameter of this request.": post("/predict?zzz=3"),
        "'top_k': must be a whole number": form(TOP_K + FILE + b"x\r\n--b--\r\n"),
    },
    (415, "unsupported_media_type"): {
        "as curl -d does: write curl -F files=@cat.jpg.": body(PNG, content_type="application/x-www-form-urlencoded"),
        "requests.post(url, files={'files': file}).": body(b""),
        "The Content-Type is not supported": body(b"x", content_type="text/csv"),
        "The Content-Encoding is not supported": body(b"x", content_type="image/png", content_encoding="gzip"),
    },
    (400, "invalid_multipart"): {"ends without its closing boundary": form(FILE + b"x")},
    (400, "no_files"): {"The request has no files": form(b"--b--\r\n")},
}
"""By status and code: words of the error, and a request that has it."""
ROWS = [(*error, words, request) for error, requests in REFUSALS.items() for words, request in requests.items()]


@pytest.mark.parametrize(("status", "code", "words", "request_"), ROWS, ids=[f"{row[0]} {row[2]}" for row in ROWS])
def test_error_says_what_is_wrong_and_what_to_do(client, status, code, words, request_):
    method, path, options = request_
    answer = client.request(method, path, **options)
    assert (answer.status_code, answer.json().get("code")) == (status, code)
    assert words in "\n".join(str(answer.json().get(member)) for member in ("title", "detail", "error"))


def test_field_after_the_files(client):
    """It is a parameter like any other while no file is being classified."""
    files = [("files", ("cat.png", PNG)), ("files", ("dog.png", PNG)), ("model", (None, "flowers"))]
    assert client.post("/predict", files=files).json()["model"]["name"] == "flowers"


def test_field_after_files_that_are_being_classified():
    """A separate client: the calls that are left in flight end with it."""
    files = [("files", ("cat.png", PNG)), ("files", ("dog.png", PNG + bytes(MAX_READ_AHEAD_BYTES)))]
    with client_of() as client:
        late = client.post("/predict", files=[*files, ("top_k", (None, "2"))])
    assert (late.status_code, late.json()["code"]) == (422, "invalid_parameter")
    assert "send it before the first file, or in the query, such as ?top_k=…." in late.json()["detail"]
