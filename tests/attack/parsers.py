"""Bytes that are cheap to send and may be expensive to parse: HTTP, forms, JSON, parameters, and answers."""

import itertools
from collections.abc import Iterable

from bench.http_load import BOUNDARY
from tests.attack.target import MULTIPART, Target, cases, repeated

JSON = "application/json"
INFER = "/v2/models/ensemble_model/infer"
DELIMITER = f"--{BOUNDARY}\r\n".encode()
END = f"\r\n--{BOUNDARY}--\r\n".encode()


def _json_of_tiny_members(target: Target) -> str:
    members = b",".join(b'"%x":[[],[]]' % number for number in range(5_000))
    return target.post(INFER, b"{" + members + b', "inputs": []}', JSON)


def _many_headers(target: Target) -> str:
    fields = b"".join(b"%x:\r\n" % number for number in range(6_000))
    return target.raw([target.head("POST /predict")[:-2] + fields + b"Content-Length: 1\r\n\r\nx"])


def _many_parameters(target: Target) -> str:
    query = "&".join(f"{number:x}" for number in range(11_000))
    return target.post(f"/predict?{query}", b"x", "image/jpeg")


def _pipelined_requests(target: Target) -> str:
    request = target.head("GET /nowhere")
    return target.raw(repeated(request, min(target.nbytes, 400_000), 400_000))


def _headers_of_a_part(target: Target) -> str:
    fields = b"".join(b"%x:\r\n" % number for number in range(1_800))
    part = b'Content-Disposition: form-data; name="f"; filename="x"\r\n' + fields + b"\r\nx\r\n"
    return target.post("/predict", _parts(part, target.nbytes), MULTIPART)


def _folded_headers_of_a_part(target: Target) -> str:
    part = b'Content-Disposition: form-data; name="f"; filename="x"\r\nX: a' + b"\r\n a" * 3_900 + b"\r\n\r\nx\r\n"
    return target.post("/predict", _parts(part, target.nbytes), MULTIPART)


def _blanks_of_a_part(target: Target) -> str:
    part = b'Content-Disposition:%bform-data; name="f"; filename="x"\r\n\r\nx' % (b" " * 15_000)
    delimiter = DELIMITER[:-2] + b" " * 15_000 + b"\r\n"
    count = min(900, target.nbytes // len(delimiter + part))
    return target.post("/predict", (delimiter + part + b"\r\n") * count + END, MULTIPART)


def _boundaries_that_are_none(target: Target) -> str:
    head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n'
    body = itertools.chain([head], repeated(b"\r\n--bx", target.nbytes), [b"\r\n--b--\r\n"])
    return target.post("/predict", body, "multipart/form-data; boundary=b")


def _labels_of_commas(target: Target) -> str:
    field = b'Content-Disposition: form-data; name="labels"\r\n\r\nclass 1' + b"," * 2_000 + b"\r\n"
    image = b'Content-Disposition: form-data; name="f"; filename="x"\r\n\r\n' + SMALL_BMP + b"\r\n"
    return target.post("/predict", (DELIMITER + field) * 99 + (DELIMITER + image) * 300 + END[2:], MULTIPART)


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


def _in_chunks(target: Target, begin: bytes, unit: bytes) -> str:
    """A chunked body that repeats `unit`, as it is."""
    head = target.head("POST /predict", "Content-Type: image/jpeg", "Connection: close", "Transfer-Encoding: chunked")
    return target.raw(itertools.chain([head + begin], repeated(unit, target.nbytes)))


def _base64(unit: bytes, nbytes: int) -> Iterable[bytes]:
    """A JSON request with an image whose text repeats `unit`."""
    return itertools.chain([b'{"images": [{"b64": "'], repeated(unit, nbytes), [b'"}]}'])


# fmt: off
CASES = cases(
    ("json-of-tiny-members", "JSON with as many members and elements as its bound allows", _json_of_tiny_members),
    ("many-headers", "As many headers as fit", _many_headers),
    ("many-parameters", "As many query parameters as fit, none known", _many_parameters),
    ("pipelined-requests", "Requests that do not wait for answers", _pipelined_requests),
    ("headers-of-a-part", "Parts with as many headers as fit", _headers_of_a_part),
    ("folded-headers-of-a-part", "Parts with a header on thousands of lines, which take quadratic time to join",
     _folded_headers_of_a_part),
    ("blanks-of-a-part", "Spaces after a boundary and before a header's value", _blanks_of_a_part),
    ("boundaries-that-are-none", "A file full of what looks like its one-letter boundary", _boundaries_that_are_none),
    ("labels-of-commas", "Three hundred images and 200,000 labels, all but one of them empty", _labels_of_commas),
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
    ("trailer-without-end", "A trailer that does not end, behind a body in chunks",
     lambda target: _in_chunks(target, b"0\r\nA: ", b"x")),
    ("trailers-without-end", "Trailers without end",
     lambda target: _in_chunks(target, b"0\r\n", b"a:\r\n")),
    ("chunk-extension-without-end", "A chunk whose extension does not end",
     lambda target: _in_chunks(target, b"1;a=", b"x")),
    ("tiny-chunks", "A body in chunks of one byte",
     lambda target: _in_chunks(target, b"", b"1\r\nx\r\n")),
    ("charset-of-a-name-that-is-slow", "File names in punycode, which Python decodes in quadratic time",
     lambda target: _named(target, "filename*=punycode''" + "a" * 10_000 + "-" + "9" * 4_000)),
    ("parameters-of-a-part", "Parts whose header has thousands of parameters",
     lambda target: _named(target, 'filename="x"' + ";a=b" * 4_000)),
    ("tiny-parts", "A thousand files of one byte in one piece",
     lambda target: target.post_files([b"x"] * 1_000)),
    ("large-answer", "A thousand small images with a thousand predictions each",
     lambda target: target.post_files([SMALL_BMP] * 1_000, "?top_k=1000&timeout=100")),
    ("label-that-is-unknown",
     "Two hundred images and an unknown label, which is answered with suggestions",
     lambda target: target.post_files([SMALL_BMP] * 200, "?labels=Egyptain%20cat" + "x" * 10_000)),
)
# fmt: on
