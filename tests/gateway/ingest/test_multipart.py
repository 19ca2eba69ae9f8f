import asyncio
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.body import read_raw
from gateway.errors import HeadersTooLarge, InvalidMultipart, RequestError
from gateway.ingest.multipart import (
    MAX_PARAMETER_BYTES,
    MAX_PARAMETERS,
    MAX_PART_HEADER_BYTES,
    MAX_PART_HEADERS,
    MAX_READ_AHEAD_BYTES,
    read_multipart,
)
from gateway.ingest.upload import Parameter, Upload, clean_filename
from tests.gateway.ingest.reading import (
    BOUNDARY,
    CONTENT_TYPE,
    LIMITS,
    Part,
    allocates_at_most,
    collect,
    collect_until_error,
    form,
    in_chunks,
    limits,
)

CAT = Part("files", b"cat bytes", "cat.jpg", "image/jpeg")


def read(body, content_type=CONTENT_TYPE, limits=LIMITS, sizes=(65_536,)):
    return collect(read_multipart(in_chunks(body, sizes), content_type, limits))


def refusal(body, content_type=CONTENT_TYPE, limits=LIMITS, sizes=(65_536,)):
    items, error = collect_until_error(read_multipart(in_chunks(body, sizes), content_type, limits), RequestError)
    assert error is not None, items
    return items, error


def messages(*refusals):
    assert {type(error) for _, error in refusals} == {InvalidMultipart}
    return {error.message for _, error in refusals}


def disposition(text):
    return f"Content-Disposition: {text}\r\n\r\n".encode() + b"data"


# A browser sends two backslashes for two, an old curl for one: no reader can distinguish them.
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(
    lambda name: "\\\\" not in name and not name.endswith("\\")
)
# Readers go wrong on bytes that look like the boundary.
contents = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [b"\r\n", b"\r", b"--", b"\r\n--", f"\r\n--{BOUNDARY[:-1]}".encode(), f"--{BOUNDARY}".encode()]
        ),
    ),
    max_size=8,
).map(b"".join)
parts = st.lists(st.builds(Part, names, contents, st.one_of(st.none(), names)), max_size=8)


@given(parts, st.lists(st.integers(1, 300), min_size=1, max_size=5), st.sampled_from([BOUNDARY, "plain"]))
def test_every_form_is_parsed_with_any_chunk_sizes(parts, sizes, boundary):
    body = form(*parts, boundary=boundary)
    delimiter = f"\r\n--{boundary}".encode()
    if any(delimiter in b"\r\n" + part.data for part in parts):
        return
    expected, index = [], 0
    for part in parts:
        if part.filename is None:
            expected.append(Parameter(part.name, part.data.decode(errors="replace")))
        else:
            expected.append(Upload(index, clean_filename(part.filename), part.data))
            index += 1
    content_type = CONTENT_TYPE if boundary is BOUNDARY else f"multipart/form-data; boundary={boundary}"
    assert read(body, content_type, sizes=sizes) == expected


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_are_parsed_or_refused(junk, size):
    for body in (junk, form(CAT, closed=False) + junk, f"--{BOUNDARY}\r\n".encode() + junk):
        collect_until_error(read_multipart(in_chunks(body, (size,)), CONTENT_TYPE, LIMITS), RequestError)


@given(st.data())
def test_truncated_body_is_always_refused(data):
    body = form(CAT, Part("files", b"dog bytes", "dog.jpg"))
    end = len(body) - len("\r\n")
    cut = data.draw(st.integers(0, end - 1))
    assert messages(refusal(body[:cut])) == {"The multipart body ends without its closing boundary."}


async def test_file_is_yielded_once_its_last_byte_arrives():
    first, rest = form(CAT, closed=False) + f"--{BOUNDARY}\r\n".encode(), asyncio.Event()

    async def slow_client():
        yield first
        await rest.wait()
        yield form(CAT)[len(BOUNDARY) + 4 :]

    stream = read_multipart(slow_client(), CONTENT_TYPE, LIMITS)
    first_file = await anext(stream)
    rest.set()
    assert [first_file, *[item async for item in stream]] == [Upload(n, "cat.jpg", b"cat bytes") for n in range(2)]


@pytest.mark.parametrize(
    ("parts", "items"),
    [
        *(([Part(field, b"x", "a.jpg")], [Upload(0, "a.jpg", b"x")]) for field in ("files", "image", "files[]", "")),
        ([disposition('form-data; filename="a.jpg"')], [Upload(0, "a.jpg", b"data")]),
        ([Part("top_k", b"3"), CAT], [Parameter("top_k", "3"), Upload(0, "cat.jpg", b"cat bytes")]),
        # A file input of a browser without a choice, and an empty file.
        (
            [Part("files", b"", ""), Part("files", b"", "empty.jpg"), CAT],
            [Upload(0, "empty.jpg", b""), Upload(1, "cat.jpg", CAT.data)],
        ),
        ([Part("files", b"x", "")], [Upload(0, "", b"x")]),
        ([disposition('form-data; name="a"\r\nContent-Length: 4')], [Parameter("a", "data")]),
        *(
            (
                [disposition(f'form-data; name="f"; filename="a"\r\nContent-Transfer-Encoding: {encoding}')],
                [Upload(0, "a", b"data")],
            )
            for encoding in ("binary", "8bit", "7bit", "Binary")
        ),
        ([], []),
    ],
)
def test_field_is_a_file_or_a_parameter(parts, items):
    assert read(form(*parts)) == items


@pytest.mark.parametrize(
    ("parameters", "filename"),
    [
        ('filename="a b.jpg"', "a b.jpg"),
        ('FileName="a.jpg"', "a.jpg"),
        (r'filename="say \"cat\".jpg"', 'say "cat".jpg'),
        (r'filename="C:\photos\new.jpg"', "new.jpg"),
        ('filename="../../etc/passwd"', "passwd"),
        ('filename="katze-überall-猫.jpg"', "katze-überall-猫.jpg"),
        ("filename*=UTF-8''%e7%8c%ab's.jpg", "猫's.jpg"),
        ("filename=\"a; filename*=UTF-8''b.jpg\"", "a; filename*=UTF-8''b.jpg"),
        ("filename*=iso-8859-1'de'%fcber.jpg", "über.jpg"),
        ("filename=\"fallback.jpg\"; filename*=utf-8''%e7%8c%ab.jpg", "猫.jpg"),
        ('filename="a.jpg";', "a.jpg"),
        ('filename="a 5" x.jpg"', "a 5"),
        ("filename=my photo.jpg", "my"),
        # As aiohttp writes "a b"c.jpg": decoded as a whole or not at all.
        ('filename="a%20b%22c.jpg"', "a%20b%22c.jpg"),
        (f'filename="{"a" * 10_000}"', "a" * 255),
        (b'filename="na\xefve.jpg"', "na\ufffdve.jpg"),
    ],
)
def test_filenames_of_all_clients_are_parsed(parameters, filename):
    given = parameters if isinstance(parameters, bytes) else parameters.encode()
    part = b'Content-Disposition: form-data; name="files"; ' + given + b"\r\n\r\ndata"
    (upload,) = read(form(part), limits=LIMITS)
    assert upload == Upload(0, filename, b"data")


def test_file_past_the_limit_has_an_error_of_its_own():
    files = [Part("files", b"x" * size, name) for size, name in ((10, "a"), (11, "a"), (9, "a"), (11, ""))]
    uploads = read(form(*files), limits=limits(max_file_bytes=10))
    assert [len(upload.data) for upload in uploads] == [10, 0, 9, 0]
    codes = [upload.error and upload.error.code for upload in uploads]
    assert codes == [None, "file_too_large", None, "file_too_large"]
    assert uploads[1].error.details == {"limit": "max_file_bytes", "value": 10}


@pytest.mark.parametrize("size", [1, 7, 65_536])
@pytest.mark.parametrize("header", [b"X-Long: " + b"x" * 20_000, b"X" * 20_000 + b": x", b"X-Many: x\r\n" * 2_000])
def test_part_headers_past_the_limit_are_refused(header, size):
    _, error = refusal(form(header), sizes=(size,))
    if isinstance(error, InvalidMultipart):
        assert "more than one" in error.message
    else:
        assert isinstance(error, HeadersTooLarge)
        assert error.details == {"limit": "max_part_header_bytes", "value": MAX_PART_HEADER_BYTES}


def test_part_has_at_most_32_headers():
    headers = [b"X-%d: x\r\n" % number for number in range(MAX_PART_HEADERS)]
    part = disposition('form-data; name="f"; filename="a"')
    assert len(read(form(b"".join(headers[1:]) + part))) == 1
    assert isinstance(refusal(form(b"".join(headers) + part))[1], HeadersTooLarge)


@pytest.mark.parametrize("chunk", [b"x" * 65_536, b"X: " + b"x" * 995 + b"\r\n"])
def test_endless_headers_are_refused_without_buffering(chunk):
    received = []

    async def endless():
        yield form(CAT, closed=False) + f"--{BOUNDARY}\r\nX: ".encode()
        while True:
            received.append(chunk)
            yield chunk

    items, error = collect_until_error(read_multipart(endless(), CONTENT_TYPE, LIMITS), RequestError)
    assert len(items) == 1
    assert isinstance(error, HeadersTooLarge)
    assert len(b"".join(received[:-1])) <= MAX_PART_HEADER_BYTES


def test_parameter_past_its_limit_is_refused():
    assert len(read(form(Part("note", b"x" * MAX_PARAMETER_BYTES)))) == 1
    message = "The field 'note' has more than 8 KiB; a file's part must have a filename."
    assert messages(refusal(form(Part("/note", b"x" * (MAX_PARAMETER_BYTES + 1))))) == {message}


@pytest.mark.parametrize("part", [Part("a", b""), Part("files", b"", "")])
def test_more_than_100_fields_are_refused(part):
    assert read(form(*[part] * MAX_PARAMETERS)) == [Parameter("a", "")] * (MAX_PARAMETERS * (part.filename is None))
    message = "The form has more than 100 fields that are no files."
    assert messages(refusal(form(*[part] * (MAX_PARAMETERS + 1)))) == {message}


@pytest.mark.parametrize(
    "content_type",
    [
        *("", "text/plain; boundary=x", "multipart/mixed; boundary=x", "multipart/form-data"),
        *(f"multipart/form-data; boundary={given}" for given in ("", '""', '"x', "x" * 71, "é", '"a\r\nb"')),
    ],
)
def test_content_type_without_a_boundary_is_refused(content_type):
    _, error = refusal(form(CAT, boundary="x"), content_type)
    assert isinstance(error, InvalidMultipart)
    assert "Content-Type" in error.message


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (b"Content-Type: image/jpeg\r\n\r\nx", "no Content-Disposition"),
        (b"\r\nx", "no Content-Disposition"),
        (disposition('attachment; filename="a.jpg"'), "no Content-Disposition"),
        (disposition("form-data"), "neither a name nor a filename"),
        (disposition('form-data; name="a'), "neither a name nor a filename"),
        (disposition('form-data; name="a"\r\nContent-Disposition: form-data; name="b"'), "more than one"),
        (disposition('form-data; name="a"\r\nContent-Type: multipart/mixed; boundary=y'), "Nested multipart"),
        (disposition('form-data; name="a"; filename="a"\r\nContent-Transfer-Encoding: base64'), "send the bytes"),
        (disposition('form-data; name="a"\r\nContent-Transfer-Encoding: quoted-printable'), "send the bytes"),
        (b"Content-Disposition form-data\r\n\r\nx", "is malformed"),
        # Folded: RFC 9112 deprecates it, and to join the lines takes quadratic time.
        (b'Content-Disposition: form-data;\r\n name="a"\r\n\r\nx', "is malformed"),
        (disposition('form-data; name="a"\r\nContent-Length: 5'), "is malformed"),
    ],
)
def test_malformed_part_is_refused_with_a_message(part, words):
    _, error = refusal(form(part))
    assert isinstance(error, InvalidMultipart)
    assert words in error.message


def test_bytes_after_the_closing_boundary_are_ignored():
    assert len(read(form(CAT) + b"an epilogue\r\n" * 10_000)) == 1


@pytest.mark.parametrize(("most_bytes", "memory_bytes"), [(2**25, 46 * 2**20), (2**20, 4 * 2**20)])
def test_large_file_is_copied_at_most_twice_and_an_oversized_one_is_not_buffered(most_bytes, memory_bytes):
    """The growing buffer and the bytes made of it; a buffer grows by an eighth."""
    size = 20 * 2**20
    body = form(Part("files", b"x" * size, "large.jpg"))
    with allocates_at_most(memory_bytes):
        (upload,) = read(body, limits=limits(max_file_bytes=most_bytes))
    assert len(upload.data) == (size if size <= most_bytes else 0)


@pytest.mark.parametrize("in_form", [False, True])
async def test_yielded_file_is_held_by_the_caller_alone(in_form):
    size = 8 * 2**20
    form_of_two = form(Part("files", b"x" * size, "large.jpg"), CAT)
    chunks = in_chunks(form_of_two if in_form else b"x" * size)
    tracemalloc.start()
    try:
        if in_form:
            stream = read_multipart(chunks, CONTENT_TYPE, LIMITS, announced_bytes=len(form_of_two))
        else:
            stream = read_raw(chunks, LIMITS)
        upload = await anext(stream)
        assert tracemalloc.get_traced_memory()[0] < 1.1 * size
        del upload
        assert (await anext(stream, None) is not None) == in_form
        assert tracemalloc.get_traced_memory()[0] < 0.1 * size
    finally:
        tracemalloc.stop()


def test_oversized_file_is_not_buffered():
    body = form(Part("files", b"x" * (20 * 2**20), "large.jpg"))
    with allocates_at_most(4 * 2**20):
        (upload,) = read(body, limits=limits(max_file_bytes=2**20))
    assert upload.error.code == "file_too_large"


@pytest.mark.parametrize("near", [b"\r\n--", f"\r\n--{BOUNDARY[:-1]}".encode(), b"\r", b"-", b"\r\n"])
def test_bytes_like_a_boundary_take_linear_time(near):
    def seconds(size):
        data = near * (size // len(near))
        started = time.process_time()
        (upload,) = read(form(Part("files", data, "a")), sizes=(65_536,))
        assert upload.data == data
        return time.process_time() - started

    small, large = min(seconds(200_000) for _ in range(3)), seconds(3_200_000)
    assert large < 16 * 5 * small + 0.05


@pytest.mark.parametrize("unit", [";", '; a="', "; a=b", '; a="\\"', ";" + " " * 99, '"'])
def test_hostile_header_takes_little_time(unit):
    headers = ("form-data" + unit * (MAX_PART_HEADER_BYTES // len(unit)))[: MAX_PART_HEADER_BYTES - 30]
    started = time.process_time()
    refusal(form(disposition(headers)))
    assert time.process_time() - started < 0.1


@pytest.mark.parametrize("first", [9, 2 * MAX_READ_AHEAD_BYTES])
@pytest.mark.parametrize("over", [0, 1])
def test_fields_follow_a_file_within_the_read_ahead(first, over):
    """The Content-Length decides, not how the bytes arrive: a byte more, and the file is yielded at once."""

    def body_with(nbytes):
        files = [Part("files", bytes(size), "a.jpg", "image/jpeg") for size in (first, nbytes)]
        return form(*files, Part("note", b"x"))

    body = body_with(MAX_READ_AHEAD_BYTES + first - len(body_with(0)) + over)
    assert len(body) - first == MAX_READ_AHEAD_BYTES + over
    parts = collect(read_multipart(in_chunks(body, (1_000,)), CONTENT_TYPE, LIMITS, announced_bytes=len(body)))
    kinds = [type(part) for part in parts]
    assert kinds == ([Upload, Upload, Parameter] if over else [Parameter, Upload, Upload])


@pytest.mark.parametrize(("ahead", "most"), [(True, len(b"cat bytesdog bytesx")), (False, len(b"cat bytes"))])
def test_reader_counts_every_byte_it_holds(ahead, most):
    held = []
    body = form(CAT, Part("files", b"dog bytes", "dog.jpg", "image/jpeg"), Part("note", b"x"))
    announced = len(body) if ahead else 0
    parts = collect(read_multipart(in_chunks(body, (1,)), CONTENT_TYPE, LIMITS, held.append, announced))
    assert [type(part) for part in parts] == ([Parameter, Upload, Upload] if ahead else [Upload, Upload, Parameter])
    assert max(held) == most
    assert held[-1] == 0
    assert (held[-2] == len(b"dog bytes")) is ahead
