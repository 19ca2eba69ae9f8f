"""Credentials stay on the origin that they are for."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway_local.redirects import get, origin
from tests.doubles.http import Reply
from tests.doubles.registry import FaultyRegistry, faulty_registry


@pytest.fixture
def servers() -> Iterator[tuple[FaultyRegistry, FaultyRegistry]]:
    """Two servers; each responds 200 to /end."""
    with faulty_registry() as first, faulty_registry() as second:
        for server in (first, second):
            server.answer = lambda asked: Reply(200) if asked.path == "/end" else None
        yield first, second


def ask(url: str) -> int:
    with (
        httpx.Client(trust_env=False) as client,
        get(client, url, headers={"X-Other": "x"}, authorization="Bearer secret", check=lambda url: "") as response,
    ):
        return response.status_code


def sent(server: FaultyRegistry) -> list[str | None]:
    return [asked.headers.get("authorization") for asked in server.requests]


def test_authorization_is_sent_again_to_the_same_origin(servers):
    first, _ = servers
    first.answer = lambda asked: Reply(200) if asked.path == "/end" else Reply(302, headers={"Location": "/end"})
    assert ask(f"http://{first.host}/start") == 200
    assert sent(first) == ["Bearer secret", "Bearer secret"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_authorization_never_leaves_its_origin(servers, status):
    """Another port is another origin; and what has left does not come back."""
    first, second = servers
    first.answer = lambda asked: (
        Reply(200) if asked.path == "/end" else Reply(status, headers={"Location": f"http://{second.host}/there"})
    )
    second.answer = lambda asked: Reply(status, headers={"Location": f"http://{first.host}/end"})
    assert ask(f"http://{first.host}/start") == 200
    assert (sent(first), sent(second)) == (["Bearer secret", None], [None])
    assert second.requests[0].headers["x-other"] == "x"


def test_default_port_is_the_same_origin():
    assert origin(httpx.URL("https://a/x")) == origin(httpx.URL("https://A:443/y"))
    for other in ("http://a/", "https://b/", "https://a:444/"):
        assert origin(httpx.URL("https://a/x")) != origin(httpx.URL(other))


def test_no_other_client_follows_redirects():
    """Each would need the rule of its own. Images of `gateway classify` are fetched without credentials."""
    root = Path(__file__).parent.parent.parent
    modules = [path for package in root.glob("gateway*") for path in package.rglob("*.py")]
    following = {path.relative_to(root).as_posix() for path in modules if "follow_redirects=True" in path.read_text()}
    assert following == {"gateway_client/bulk/remote.py"}
