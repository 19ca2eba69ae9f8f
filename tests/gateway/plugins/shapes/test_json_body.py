import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidBody, RequestError, RequestTooLarge, UnknownField
from gateway.ingest.upload import Upload, clean_filename, uncounted
from gateway.plugins.shapes.json_body import read_images
from tests.gateway.ingest.reading import LIMITS, collect, collect_until_error, in_chunks


def b64(data):
    return base64.b64encode(data).decode()


def parts(chunks, limits=LIMITS, hold=uncounted):
    return read_images(chunks, limits, (), hold, urls=False)


def read(body, limits=LIMITS, sizes=(65_536,)):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return collect(parts(in_chunks(body, sizes), limits))


def refusal(body, limits=LIMITS, sizes=(65_536,)):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    items, error = collect_until_error(parts(in_chunks(body, sizes), limits), RequestError)
    assert error is not None, items
    return items, error


images = st.lists(
    st.tuples(st.binary(max_size=100), st.one_of(st.none(), st.text(max_size=30))), min_size=1, max_size=5
)


@given(images, st.booleans(), st.booleans(), st.sampled_from([None, 2]), st.lists(st.integers(1, 200), min_size=1))
def test_every_body_is_parsed_with_any_chunk_sizes(images, ascii_only, filename_first, indent, sizes):
    members = [{"b64": b64(data), "filename": filename} for data, filename in images]
    if filename_first:
        members = [dict(reversed(member.items())) for member in members]
    body = json.dumps({"images": members}, ensure_ascii=ascii_only, indent=indent)
    uploads = read(body.encode(), sizes=sizes)
    assert [upload.data for upload in uploads] == [data for data, _ in images]
    assert [upload.filename for upload in uploads] == [clean_filename(name or "") for _, name in images]


@given(st.binary(max_size=60), st.lists(st.integers(1, 7), min_size=1))
def test_every_variant_of_base64_is_decoded(data, sizes):
    plain = base64.b64encode(data)
    dialects = [
        plain,
        plain.rstrip(b"="),
        base64.urlsafe_b64encode(data),
        base64.encodebytes(data),
        b"\r\n".join(plain[at : at + 3] for at in range(0, len(plain), 3)),
        b"data:image/jpeg;base64," + plain,
    ]
    for dialect in dialects:
        body = json.dumps({"images": [{"b64": dialect.decode()}]}).replace("/", "\\/").replace("+", "\\u002b")
        assert read(body.encode(), sizes=sizes) == [Upload(0, "", data)]


@pytest.mark.parametrize(
    "text",
    ["not base64!", "QUJD=", "QQ==QQ==", "Q", "====", "data:image/jpeg;base64", "data:,QUJD", "é", "\\u00e9"],
)
def test_invalid_base64_is_an_error_of_its_image(text):
    good = {"b64": b64(b"good")}
    uploads = read({"images": [good, {"b64": text, "filename": "bad.jpg"}, good]})
    assert [upload.error and upload.error.code for upload in uploads] == [None, "invalid_image", None]
    assert uploads[1].filename == "bad.jpg"


@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b"{}",
        b'{"images": {}}',
        b'{"images": [{}]}',
        b'{"images": [{"b64": null}]}',
        b'{"images": [{"b64": 1}]}',
        b'{"images": [{"b64": "", "filename": 1}]}',
        b'{"images": [{"b64": ""}]} x',
        b'{"images": [{"b64": "QUJD',
        b'{"images": [{"b64": "", "filename": "\xff"}]}',
        b'{"images": [{"b64": "", "filename": "' + b"x" * 9_000 + b'"}]}',
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("size", [1, 65_536])
def test_invalid_body_is_refused(body, size):
    _, error = refusal(body, sizes=(size,))
    assert isinstance(error, InvalidBody)
    assert error.message.startswith("The JSON body is invalid: ")


@pytest.mark.parametrize("body", [{"files": []}, {"images": [{"url": "x"}]}, {"images": [], "top_k": 1}])
def test_unknown_member_is_refused(body):
    _, error = refusal(body)
    assert isinstance(error, UnknownField)


def test_byte_order_mark_is_ignored():
    """Clients in .NET and PowerShell send one."""
    assert read(b"\xef\xbb\xbf" + b'{"images": [{"b64": "QUJD"}]}') == [Upload(0, "", b"ABC")]


def test_large_or_intricate_body_is_refused():
    _, error = refusal(b'{"images": [{"b64": "' + b"QUJD" * 2**23 + b'"}]}')
    assert isinstance(error, RequestTooLarge)
    _, error = refusal(b"[" + b"{}," * 150_000 + b"{}]")
    assert "more than 100,000 values" in error.message


async def test_held_bytes_are_counted_until_each_image_is_decoded():
    held = []
    body = json.dumps({"images": [{"b64": b64(bytes(3_000))}] * 3}).encode()
    uploads = parts(in_chunks(body, (1_000,)), hold=held.append)
    async for _ in uploads:
        assert held[-1] >= 3_000
    assert (max(held), held[-1]) == (pytest.approx(2 * len(body), rel=0.05), 0)
