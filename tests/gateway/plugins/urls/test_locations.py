"""URLs of images, and the prefixes that contain them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.plugins.urls.locations import Location, read_location, read_prefix


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("HTTPS://A.Example:8443/X.jpg", Location("https", "a.example", 8443, "/X.jpg")),
        ("http://a.example?x=1#y", Location("http", "a.example", 80, "/", "?x=1")),
        ("https://a.example/x%20y?z=%2f#here", Location("https", "a.example", 443, "/x%20y", "?z=%2f")),
        ("https://[2001:DB8::1]:443/", Location("https", "2001:db8::1", 443, "/")),
        ("https://bücher.example/ü", Location("https", "xn--bcher-kva.example", 443, "/%C3%BC")),
        # Other programs could read them as another host or folder: here all use what this one reads.
        ("http:\\\\a.example\\@b.example", Location("http", "a.example", 80, "/@b.example")),
        ("https://a%2eexample/x/../y/%2e%2E/z", Location("https", "a.example", 443, "/z")),
        ("http://0x7f.1/x\r\nHost: b", Location("http", "127.0.0.1", 80, "/xHost:%20b")),
    ],
)
def test_url_is_read(url, location):
    assert read_location(url) == location


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "is no valid URL"),
        ("//a.example/x", "is no valid URL"),
        ("https://a.example:65536/", "is no valid URL"),
        ("https://[fe80::1%25eth0]/", "is no valid URL"),
        ("file:///etc/passwd", "has another scheme"),
        ("https://user@a.example/", "has a user or a password"),
        ("https://:word@a.example/", "has a user or a password"),
        ("https://a.example/x/%252e%252e/y", "has the path segment"),
        ("https://a.example/x/..%2fy", "has the path segment"),
        ("https://a.example/x/..;a=b/y", "has the path segment"),
        ("https://a.example/x/..%20/y", "has the path segment"),
        ("https://a.example/x/%2e%2e%20;a/y", "has the path segment"),
        ("https://a.example/x/..%00/y", "escape of a control"),
        ("https://a.example/x/%c0%ae%C0%AE/y", "escape of a control"),
        ("https://a.example/x/%u002e%u002e/y", "a % that is no escape"),
    ],
)
def test_url_that_is_ambiguous_or_invalid_is_refused(url, reason):
    with pytest.raises(ValueError, match=reason):
        read_location(url)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://a.example/x/Gr%C3%B6%C3%9Fe.jpg?y/z", "Größe.jpg"),
        ("https://a.example", ""),
    ],
)
def test_name_is_the_last_segment(url, name):
    assert read_location(url).name == name


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    for url in (text, f"https://{text}", f"https://a.example/{text}"):
        try:
            location = read_location(url)
        except ValueError:
            continue
        assert str(location).isascii()
        assert read_location(str(location)) == location


@pytest.mark.parametrize(
    ("prefix", "inside", "outside"),
    [
        ("https://a.example", ["https://a.example/x", "https://A.example:443/"], ["http://a.example/x"]),
        ("https://a.example/", [], ["https://a.example:8443/x", "https://b.a.example/x", "https://xa.example/x"]),
        ("https://a.example/x", ["https://a.example/x/y"], ["https://a.example/xy", "https://a.example/y/x/"]),
        ("https://a.example/x/", ["https://a.example/x/", "https://a.example/x/?y"], ["https://a.example/x"]),
        (
            "https://*.a.example",
            ["https://b.a.example/", "https://c.b.a.example/"],
            ["https://a.example/", "https://xa.example/", "https://a.example.evil.example/"],
        ),
        ("https://*", ["https://a.example/", "https://[::1]/"], ["http://a.example/", "https://a.example:444/"]),
        ("http://10.0.0.1:9000", ["http://10.0.0.1:9000/x", "http://167772161:9000/x"], ["http://10.0.0.1/x"]),
    ],
)
def test_prefix_contains_what_is_below_it(prefix, inside, outside):
    found = read_prefix(prefix)
    assert [url for url in inside if not found.contains(read_location(url))] == []
    assert [url for url in outside if found.contains(read_location(url))] == []


@pytest.mark.parametrize(
    "prefix",
    ["", "a.example", "https://a.*.example", "https://**", "s3://bucket/", "https://a.example/?x", "ftp://a.b"],
)
def test_invalid_prefix_is_refused(prefix):
    with pytest.raises(ValueError):
        read_prefix(prefix)
