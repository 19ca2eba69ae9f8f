"""Senders that need no API key: programs and the service's own pages, by a name of the service."""

import socket
from itertools import chain, product, repeat

import grpc
import pytest
from pydantic import ValidationError
from tritonclient.grpc import service_pb2

from gateway.api.middleware import READS
from gateway.plugin_loading import installed
from gateway.plugins.keys.key_file import add_key
from tests.doubles.backend import PNG, StubBackend, frame, frame_backend
from tests.gateway.plugins.oip.grpc_api.serving import connected, request, stub
from tests.services import ROUTES, Client, client_of
from tests.settings import Settings

FOREIGN = {"host": "evil.example:8080"}
CROSS_SITE = {"sec-fetch-site": "cross-site"}
WEBSOCKET = "WEBSOCKET"
WAYS_IN = [
    *((route.path.replace("{", "").replace("}", ""), method) for route in ROUTES for method in sorted(route.methods)),
    *((path, WEBSOCKET) for kind in installed() for path in kind(Settings(_env_file=None)).websockets()),
    *product(("/predict", "/nowhere"), ("HEAD", "OPTIONS", "DELETE", "ODD")),
]
"""Every route of the service and its plug-ins with each of its methods, and paths without a route."""


def status(client: Client, path: str, method: str = "GET", **headers: str) -> int:
    """The status of the response to a client that sends no body; 101 for a WebSocket that is accepted."""
    fields = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    if method == WEBSOCKET:
        return client.open(path, fields)
    messages = chain([{"type": "http.request"}], repeat({"type": "http.disconnect"}))
    sent = client.ask(method, path, fields, body=lambda _: next(messages))
    return sent[0]["status"] if sent else 0


@pytest.fixture(scope="module", params=[False, True], ids=["no keys", "keys of admins"])
def open_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A service that needs no key, except for admins."""
    path = tmp_path_factory.mktemp("keys") / "admins"
    add_key(path, "admin")
    settings = {"admin_keys_file": path} if request.param else {}
    with client_of(cors_origins="https://app.example", hosts="images.example,*.lab.example", **settings) as client:
        yield client


def test_ways_in_are_all_there_are():
    assert {method for _, method in WAYS_IN} >= {"GET", "POST", WEBSOCKET}
    assert {path for path, _ in WAYS_IN} >= {"/", "/predict", "/feedback", "/stream", "/v2/models/name/infer"}


@pytest.mark.parametrize(("path", "method"), WAYS_IN)
def test_foreign_host_and_foreign_page_are_refused_everywhere(open_service, path, method):
    assert status(open_service, path, method, **FOREIGN) == 403
    foreign_page = status(open_service, path, method, host="gateway", **CROSS_SITE)
    assert (foreign_page == 403) == (method not in READS)
    assert status(open_service, path, method, host="gateway", origin="https://app.example", **CROSS_SITE) != 403


OWN_NAMES = (
    *("127.0.0.1:8080", "10.1.2.3", "[::1]:8080", "[::ffff:10.0.0.1]", "localhost:8080", "LOCALHOST.", "triton"),
    *("x.localhost:1", "box.local", "a.b.internal", "images.svc.cluster.local", socket.gethostname(), ""),
    *("images.example", "Images.Example.:443", "a.lab.example", "a.b.lab.example"),
)
OTHER_NAMES = (
    *("evil.example", "images.example.evil.com", "127.0.0.1.evil.com", "localhost.evil.com", "[evil.com]"),
    *("lab.example", "local.evil.com", "x.evillocal", "evil.com:1.localhost", "gateway.images"),
    *("gateway.images.svc", f"{'x' * 99}.y"),
)


@pytest.mark.parametrize(("host", "expected"), [*product(OWN_NAMES, (200,)), *product(OTHER_NAMES, (403,))])
def test_only_names_of_the_service_pass(open_service, host, expected):
    assert status(open_service, "/health/live", host=host) == expected


def test_refusal_names_the_setting(open_service):
    answer = open_service.get("/models", headers={"Host": f"{'x' * 9_000}.example"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "GATEWAY_HOSTS" in answer.json()["detail"]
    assert len(answer.content) < 1_000
    page = open_service.post("/predict", content=PNG, headers={"Origin": "https://evil.example"})
    assert (page.status_code, page.json()["code"]) == (403, "forbidden")
    assert "GATEWAY_CORS_ORIGINS" in page.json()["detail"]
    assert "error" in open_service.get("/v2", headers=FOREIGN).json()


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"origin": "http://gateway"}, True),
        ({"origin": "https://gateway"}, True),  # TLS ends at a proxy
        ({"origin": "http://gateway:3000"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://[::1"}, False),
        ({"origin": "HTTPS://APP.example"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://public.example"}, True),  # a proxy has replaced Host
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site", "origin": "http://gateway"}, False),
        ({"sec-fetch-site": "odd"}, False),
        ({"host": "", "origin": "http://"}, False),
    ],
)
def test_page_must_have_the_origin_of_the_service(open_service, headers, passes):
    for path, method in (("/predict", "POST"), ("/stream", WEBSOCKET)):
        assert (status(open_service, path, method, **{"host": "gateway", **headers}) != 403) == passes


def test_every_origin_may_be_allowed_but_not_every_host():
    with client_of(cors_origins="*") as client:
        assert status(client, "/predict", "POST", host="gateway", origin="https://x.example", **CROSS_SITE) != 403
        assert status(client, "/predict", "POST", **FOREIGN) == 403
    with client_of(hosts="*") as client:
        assert status(client, "/health/live", **FOREIGN) == 200


def test_key_is_enough(tmp_path):
    key = add_key(tmp_path / "keys", "one")
    with client_of(StubBackend(), api_keys_file=tmp_path / "keys") as client:
        headers = {"X-API-Key": key, **FOREIGN, **CROSS_SITE, "Content-Type": "image/png"}
        assert client.post("/predict", content=PNG, headers=headers).status_code == 200
        assert client.post("/predict", content=PNG, headers=FOREIGN).status_code == 401


@pytest.mark.parametrize(
    "name", ["https://images.example", "images.example:8080", "a..b", "*x.example", "a/b", "münchen.example"]
)
def test_setting_takes_names_only(name):
    with pytest.raises(ValidationError, match="is not the name of a host"):
        Settings(_env_file=None, hosts=name)


async def test_call_over_grpc_has_no_host_and_is_no_page():
    async with connected(frame_backend()) as channel:
        assert (await stub(channel).ServerMetadata(service_pb2.ServerMetadataRequest())).name
        await stub(channel).ModelInfer(request(frame(0)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(channel).ModelInfer(request(frame(0)), metadata=(("origin", "https://evil.example"),))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
