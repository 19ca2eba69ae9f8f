import asyncio
import base64
import json
import time
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidBody, RequestError, UnknownField
from gateway.ingest.upload import Upload, clean_filename
from gateway_plugins.shapes.json_body import read_json
from gateway_plugins.shared.json_source import JsonSource
from tests.gateway.ingest.reading import LIMITS, allocates_at_most, collect, collect_until_error, in_chunks, limits


def b64(data):
    return base64.b64encode(data).decode()


def read(body, limits=LIMITS, sizes=(65_536,)):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return collect(read_json(in_chunks(body, sizes), limits, ()))


def refusal(body, limits=LIMITS, sizes=(65_536,)):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    items, error = collect_until_error(read_json(in_chunks(body, sizes), limits, ()), RequestError)
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


@given(st.binary(max_size=200), st.integers(1, 20))
def test_any_bytes_are_parsed_or_refused(junk, size):
    for body in (junk, b'{"images": [{"b64": "' + junk, b'{"images": [{"filename": "' + junk):
        collect_until_error(read_json(in_chunks(body, (size,)), LIMITS, ()), RequestError)


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
        b"\xef\xbb\xbf",
        b'{"images": {}}',
        b'{"images": [}',
        b'{"images": [{}]}',
        b'{"images": [{"b64": null}]}',
        b'{"images": [{"b64": 1}]}',
        b'{"images": [{"b64": "", "filename": 1}]}',
        b'{"images": [{"b64": "", "filename": nil}]}',
        b'{"images": [{"b64": "", "b64": ""}]}',
        b'{"images": [{"b64": ""} {"b64": ""}]}',
        b'{"images": [{"b64": "" "filename": ""}]}',
        b'{"images": [{"b64": ""}]',
        b'{"images": [{"b64": ""}]} x',
        b'{"images" [{"b64": ""}]}',
        b'{"images": [{"b64": "QUJD',
        b'{"images": [{"b64": "QUJD\\u12',
        b'{"images": [{"b64": "\\u12gg"}]}',
        b'{"images": [{"b64": "", "filename": "\\x"}]}',
        b'{"images": [{"b64": "", "filename": "\xff"}]}',
        b'{"images": [{"b64": "", "filename": "' + b"x" * 9_000 + b'"}]}',
        b'{"' + b"x" * 9_000 + b'": []}',
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("size", [1, 65_536])
def test_invalid_body_is_refused(body, size):
    _, error = refusal(body, sizes=(size,))
    assert isinstance(error, InvalidBody)
    assert error.message.startswith("The JSON body is invalid: ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it is empty"),
        (b" {\n} ", 'it has no images; send {"images": [{"b64": "…"}]}'),
        (b"[]", 'it must be an object, such as {"images": [{"b64": "…"}]}'),
        (b'{"images": ["QUJD"]}', 'each image must be an object, such as {"b64": "…"}'),
        (b'{"images": [{"b64": ""}, {}]}', "image 1 has no b64"),
        (b'{"images": [{"filename": "a"}]}', "image 0 has no b64"),
    ],
)
@pytest.mark.parametrize("size", [1, 65_536])
def test_message_names_what_is_missing(body, words, size):
    _, error = refusal(body, sizes=(size,))
    assert isinstance(error, InvalidBody)
    assert error.message == f"The JSON body is invalid: {words}."


@pytest.mark.parametrize("body", [{"files": []}, {"images": [{"url": "x"}]}, {"images": [], "top_k": 1}])
def test_unknown_member_is_refused(body):
    _, error = refusal(body)
    assert isinstance(error, UnknownField)


def test_images_before_an_error_are_yielded():
    uploads, error = refusal(b'{"images": [{"b64": "QUJD"}, oops')
    assert uploads == [Upload(0, "", b"ABC")]
    assert isinstance(error, InvalidBody)


def test_endless_string_is_not_buffered():
    async def endless():
        yield b'{"images": [{"b64": "'
        for _ in range(400):
            yield b"QUJD" * 16_384

    with allocates_at_most(4 * 2**20):
        _, error = collect_until_error(read_json(endless(), limits(max_file_bytes=2**20), ()), RequestError)
    assert isinstance(error, InvalidBody)


def test_large_image_is_copied_at_most_twice():
    size = 20 * 2**20
    body = json.dumps({"images": [{"b64": b64(b"x" * size)}]}).encode()
    with allocates_at_most(2.3 * size):
        (upload,) = read(body)
    assert len(upload.data) == size


def test_escapes_take_linear_time():
    def seconds(count):
        started = time.process_time()
        (upload,) = read(b'{"images": [{"b64": "' + b"\\u0041" * count + b'"}]}')
        assert len(upload.data) == count // 4 * 3
        return time.process_time() - started

    small, large = min(seconds(40_000) for _ in range(3)), seconds(400_000)
    assert large < 10 * 5 * small + 0.05


async def test_white_space_is_not_buffered():
    async def blanks():
        for _ in range(200):
            yield b" " * 65_536

    with allocates_at_most(1_000_000):
        source = JsonSource(blanks(), LIMITS)
        assert await source.symbol() == b""


async def test_other_tasks_run_between_images():
    body = json.dumps({"images": [{"b64": ""}] * 1_000}).encode()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with mock.patch("gateway.time_slices.TIME_SLICE_SECONDS", 0.0):
        other = asyncio.create_task(count())
        uploads = [upload async for upload in read_json(in_chunks(body, (len(body),)), LIMITS, ())]
        other.cancel()
    assert len(uploads) == 1_000
    assert turns >= 1_000
