"""Pulls from a real registry, and from one that fails on demand. Credentials stay on the origin that they are for."""

import base64
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest

from gateway_local.redirects import MAX_REDIRECTS, get, origin
from gateway_local.runtime.image import registry as registry_module
from gateway_local.runtime.image.errors import ImageError, RegistryUnreachable, WrongDigest
from gateway_local.runtime.image.reference import MAX_LENGTH, ImageReference
from gateway_local.runtime.image.registry import (
    ATTEMPTS,
    INDEX_TYPES,
    LAYER_TYPES,
    MAX_INDEX_DEPTH,
    MAX_LAYERS,
    ContainerImage,
    Descriptor,
    Registry,
    TokenService,
    stored_credentials,
)
from tests.doubles.http import Asked, Reply
from tests.doubles.registry import FaultyRegistry, faulty_registry
from tests.processes import PROJECT, free_port
from tests.triton_images import REPOSITORY, StoredImages, digest, file, layer, needs_registry, push, running_registry

SECRET = base64.b64encode(b"user:password").decode()
CONTENT = layer(file("a", bytes(range(256)) * 64), compression="")


def one_image() -> StoredImages:
    images = StoredImages()
    images.add_image(CONTENT)
    return images


IMAGE = one_image()


@pytest.fixture
def registry() -> Iterator[FaultyRegistry]:
    with faulty_registry(one_image()) as running:
        yield running


def connect(host: str, version: str = ":26.11-py3", **options: object) -> Registry:
    options = {"credentials": {}, "pause": lambda seconds: None, **options}
    return Registry(ImageReference.parse(f"{host}/{REPOSITORY}{version}"), **options)


def pulled(host: str, version: str = ":26.11-py3", **options: object) -> ContainerImage:
    with connect(host, version, **options) as connection:
        return connection.image("amd64")


def refused(host: str, reason: str | None = None, kind: type[ImageError] = ImageError, **options: object) -> None:
    with pytest.raises(kind, match=reason):
        pulled(host, **options)


def challenge(text: str) -> Reply:
    return Reply(401, headers={"WWW-Authenticate": text})


def redirect(url: str) -> Reply:
    return Reply(307, headers={"Location": url})


def given(server: FaultyRegistry, part: str = "") -> list[str | None]:
    """The authorizations of the requests whose paths contain a text."""
    return [asked.headers.get("authorization") for asked in server.asked(part)]


def download(host: str, target: Path, content: bytes = CONTENT, **options: object) -> list[int]:
    """Download a layer; returns what was reported."""
    reported: list[int] = []
    with connect(host, **options) as connection:
        connection.download(Descriptor(LAYER_TYPES[1], digest(content), len(content)), target, reported.append)
    return reported


@needs_registry
@pytest.mark.parametrize("docker", [False, True])
def test_image_of_this_architecture_is_pulled_from_a_registry(tmp_path, docker):
    stored = StoredImages()
    arm, amd = layer(file("arm")), layer(file("amd"))
    by_architecture = {
        "arm64": stored.add_image(arm, tag=None, architecture="arm64", docker=docker),
        "amd64": stored.add_image(amd, tag=None, docker=docker, variables=["TRITON_SERVER_VERSION=2.75.0"]),
    }
    index = stored.add_index(by_architecture, docker=docker)
    with running_registry(tmp_path) as host:
        push(stored, host)
        for version in (":26.11-py3", f"@{index['digest']}"):
            with connect(host, version) as connection:
                found = connection.image("amd64")
                assert found.digest == by_architecture["amd64"]["digest"]
                assert [each.digest for each in found.layers] == [digest(amd)]
                assert found.variable("TRITON_SERVER_VERSION") == "2.75.0"
                connection.download(found.layers[0], tmp_path / "layer", lambda done: None)
        assert (tmp_path / "layer").read_bytes() == amd
        refused(host, "check its name and tag", version=":none")


@needs_registry
def test_layer_continues_where_it_stopped_at_a_registry(tmp_path):
    (tmp_path / "layer.part").write_bytes(CONTENT[:5000])
    with running_registry(tmp_path) as host:
        push(IMAGE, host)
        reported = download(host, tmp_path / "layer")
    assert (tmp_path / "layer").read_bytes() == CONTENT
    assert reported[0] == 5000
    assert sum(reported) == len(CONTENT)


def test_index_may_list_indexes(registry):
    images = registry.images
    entry = images.add_image(CONTENT, tag=None)
    for _ in range(MAX_INDEX_DEPTH - 1):
        entry = images.add_index({"amd64": entry})
    assert pulled(registry.host).layers
    assert all(kind in registry.asked("manifests")[0].headers["accept"] for kind in INDEX_TYPES)
    images.add_index({"amd64": entry})
    refused(registry.host, "lists lists")


def test_image_for_other_machines_is_refused(registry):
    registry.images.add_index({"arm64": registry.images.add_image(CONTENT, tag=None, architecture="arm64")})
    refused(registry.host, "for arm64, and this machine is amd64")
    registry.images.add_image(CONTENT, architecture="arm64")
    refused(registry.host, "this machine is linux on amd64")


@pytest.mark.parametrize(
    "media_type",
    ["application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "application/vnd.example.model", "text/plain"],
)
def test_foreign_layers_are_refused(registry, media_type):
    registry.images.add_image(CONTENT, layer_type=media_type)
    refused(registry.host, f"unsupported type {media_type}")


def test_image_has_one_layer_or_up_to_the_limit(registry):
    registry.images.add_image(*[CONTENT] * MAX_LAYERS)
    assert len(pulled(registry.host).layers) == MAX_LAYERS
    for count in (MAX_LAYERS + 1, 0):
        registry.images.add_image(*[CONTENT] * count)
        refused(registry.host, f"1 to {MAX_LAYERS} layers")


@pytest.mark.parametrize(
    "document",
    [
        b"not JSON",
        b"[]",
        b"[" * 10_000,
        b'{"schemaVersion": 1, "fsLayers": []}',
        b'{"mediaType": "application/vnd.example", "config": {}}',
        b'{"config": {}, "layers": [{}]}',
        b'{"config": {}, "layers": [{"mediaType": "x", "digest": "sha256:..", "size": 1}]}',
        b'{"config": {}, "layers": 5}',
        b'{"manifests": [5, {"platform": {"os": "linux", "architecture": "amd64"}}]}',
        b'{"manifests": {}}',
    ],
)
def test_damaged_manifest_is_refused(registry, document):
    registry.images.manifests["26.11-py3"] = ("application/json", document)
    refused(registry.host)


def test_document_up_to_the_limit_is_read(registry, monkeypatch):
    configurations = [content for content in registry.images.blobs.values() if content != CONTENT]
    size = max(len(content) for content in [*configurations, registry.images.manifests["26.11-py3"][1]])
    monkeypatch.setattr(registry_module, "MAX_DOCUMENT_BYTES", size)
    assert pulled(registry.host)
    monkeypatch.setattr(registry_module, "MAX_DOCUMENT_BYTES", size - 1)
    refused(registry.host, "document of more than")


MANIFEST = digest(IMAGE.manifests["26.11-py3"][1])
CONFIGURATION = next(name for name in IMAGE.blobs if name != digest(CONTENT))


@pytest.mark.parametrize(
    ("version", "path", "headers"),
    [
        (f"@{MANIFEST}", MANIFEST, {}),
        (":26.11-py3", "26.11-py3", {"Docker-Content-Digest": MANIFEST}),
        (":26.11-py3", CONFIGURATION, {}),
    ],
    ids=["manifest of a digest", "manifest of a tag, as the registry names it", "configuration"],
)
def test_document_with_another_digest_is_refused(registry, version, path, headers):
    registry.answer = lambda asked: Reply(200, b"{}", headers) if asked.path.endswith(path) else None
    refused(registry.host, kind=WrongDigest, version=version)


@pytest.mark.parametrize(
    ("content", "reason", "left"),
    [
        (CONTENT[:-1] + b"x", "run the command again", []),
        (CONTENT + b"x", f"more than the {len(CONTENT)} bytes", ["layer.part"]),
    ],
    ids=["other bytes", "longer"],
)
def test_layer_with_another_digest_is_not_kept(registry, tmp_path, content, reason, left):
    registry.images.blobs[digest(CONTENT)] = content
    with pytest.raises(WrongDigest, match=reason):
        download(registry.host, tmp_path / "layer")
    assert [path.name for path in tmp_path.iterdir()] == left


def test_broken_connections_are_continued(registry, tmp_path):
    """Each connection brings 6,000 bytes at most, with a Content-Length for all of them."""

    def cut(asked: Asked) -> Reply:
        start = int(asked.headers.get("range", "bytes=0-")[6:-1])
        span = {"Content-Range": f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"} if start else {}
        return Reply(206 if start else 200, CONTENT[start:], span, cut=6000)

    registry.answer = cut
    reported = download(registry.host, tmp_path / "layer")
    assert (tmp_path / "layer").read_bytes() == CONTENT
    assert sum(reported) == len(CONTENT)
    assert [asked.headers.get("range") for asked in registry.asked("blobs")] == [
        None if start == 0 else f"bytes={start}-" for start in range(0, len(CONTENT), 6000)
    ]


def test_registry_that_stops_sending_counts_as_away(registry, tmp_path):
    rest = Reply(206, CONTENT[9:], {"Content-Range": f"bytes 9-{len(CONTENT) - 1}/{len(CONTENT)}"}, cut=0)
    registry.answer = lambda asked: rest if "range" in asked.headers else Reply(200, CONTENT, cut=9)
    pauses: list[float] = []
    with pytest.raises(RegistryUnreachable, match=rf"after 9 of {len(CONTENT)} bytes.*is kept, run the command again"):
        download(registry.host, tmp_path / "layer", pause=pauses.append)
    assert len(registry.asked("blobs")) == 1 + ATTEMPTS
    assert pauses == sorted(pauses)
    assert len(pauses) == ATTEMPTS - 1
    assert (tmp_path / "layer.part").stat().st_size == 9


def test_registry_that_lost_a_layers_end_counts_as_away(registry, tmp_path):
    """It has nothing after what was downloaded (416), and sends the same start again."""
    registry.images.blobs[digest(CONTENT)] = CONTENT[:5000]
    with pytest.raises(RegistryUnreachable, match=f"of {len(CONTENT)} bytes"):
        download(registry.host, tmp_path / "layer")
    assert len(registry.asked("blobs")) == 1 + ATTEMPTS


@pytest.mark.parametrize(
    ("part", "replies"),
    [
        (b"x" * 100, [Reply(200, CONTENT), None]),
        (b"x" * 100, [Reply(416), None]),
        (CONTENT + b"x", [None]),
        (b"", [Reply(503), Reply(500), None]),
    ],
    ids=["sent again", "no range", "longer than the layer", "errors of the server"],
)
def test_layer_is_complete_in_the_end(registry, tmp_path, part, replies):
    (tmp_path / "layer.part").write_bytes(part)
    registry.answer = lambda asked: replies.pop(0)
    reported = download(registry.host, tmp_path / "layer")
    assert (tmp_path / "layer").read_bytes() == CONTENT
    assert sum(reported) == len(CONTENT)


def test_layer_that_is_there_is_not_asked_for(registry, tmp_path):
    (tmp_path / "layer").write_bytes(CONTENT)
    assert download(registry.host, tmp_path / "layer") == [len(CONTENT)]
    assert not registry.requests


def test_registry_that_is_away_is_named():
    host = f"127.0.0.1:{free_port()}"
    refused(host, f"{host} cannot be reached", RegistryUnreachable)


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "docker login"), (403, "docker login"), (429, "try again later"), (418, "answers 418")]
)
def test_refusal_comes_with_advice(registry, status, advice):
    registry.answer = lambda asked: Reply(status)
    refused(registry.host, advice)


def asking_for_a_token(realm: str, *, bearer: str = "a-token", secret: str | None = None):
    """Replies of a registry that wants a token, and gives one; with `secret`, only for that password."""

    def answer(asked: Asked) -> Reply | None:
        authorization = asked.headers.get("authorization")
        if asked.path.startswith("/token"):
            if secret is not None and authorization != f"Basic {secret}":
                return Reply(401)
            return Reply(200, json.dumps({"token": bearer}).encode())
        if authorization == f"Bearer {bearer}":
            return None
        return challenge(f'Bearer realm="{realm}",service="a registry",scope="repository:{REPOSITORY}:pull"')

    return answer


def test_token_is_fetched_once_and_used_until_it_has_expired(registry, tmp_path):
    registry.answer = asking_for_a_token(f"http://{registry.host}/token?a=b")
    with connect(registry.host) as connection:
        found = connection.image("amd64")
        connection.download(found.layers[0], tmp_path / "layer", lambda done: None)
        (asked,) = registry.asked("/token")
        assert asked.path.startswith("/token?a=b&service=a+registry&scope=repository%3Anvidia%2Ftritonserver%3Apull")
        assert "authorization" not in asked.headers
        registry.answer = asking_for_a_token(f"http://{registry.host}/token", bearer="second")
        connection.download(found.layers[0], tmp_path / "again", lambda done: None)
    assert len(registry.asked("/token")) == 2


def test_password_goes_to_the_realm_on_the_registry(registry):
    registry.answer = asking_for_a_token(f"http://{registry.host}/token", secret=SECRET)
    assert pulled(registry.host, credentials={registry.host: SECRET})
    assert given(registry, "manifests") == [None, "Bearer a-token"]


def test_password_goes_to_no_other_host(registry):
    with faulty_registry() as elsewhere:
        elsewhere.answer = asking_for_a_token("", secret=SECRET)
        registry.answer = asking_for_a_token(f"http://{elsewhere.host}/token")
        advice = f"the password for {registry.host} is not sent to {elsewhere.host}"
        refused(registry.host, advice, credentials={registry.host: SECRET})
        assert given(elsewhere) == [None]
    assert not any("Basic" in each for each in given(registry) if each)


def test_registry_buys_no_token_with_the_password_of_another_one(registry):
    """A challenge may name any realm and scope: the token would be for the other registry, and come to this one."""
    with faulty_registry() as victim:
        victim.answer = asking_for_a_token(f"http://{victim.host}/token", secret=SECRET)
        scope = "repository:secret/app:pull,push"
        registry.answer = lambda asked: challenge(
            f'Bearer realm="http://{victim.host}/token",service="victim",scope="{scope}"'
        )
        refused(registry.host, "gives no token", credentials={victim.host: SECRET})
        assert given(victim) == [None]
        assert not victim.asked("secret")


@pytest.mark.parametrize("extra", ["", "?scope=repository:secret/app:push"])
def test_token_is_for_this_image_alone(registry, extra):
    """Whatever scope a challenge or its realm names."""
    tokens = asking_for_a_token(f"http://{registry.host}/token", secret=SECRET)
    realm, scope = f"http://{registry.host}/token{extra}", "registry:catalog:* repository:secret/app:push"

    def answer(asked: Asked) -> Reply | None:
        reply = tokens(asked)
        return challenge(f'Bearer realm="{realm}",scope="{scope}"') if reply and "manifests" in asked.path else reply

    registry.answer = answer
    pulled(registry.host, credentials={registry.host: SECRET})
    (asked,) = registry.asked("/token")
    assert asked.path == "/token?scope=repository%3Anvidia%2Ftritonserver%3Apull"


def test_token_service_that_is_known_gets_the_password(registry, monkeypatch):
    """As Docker's, with the service and scope that are known for it."""
    with faulty_registry() as tokens:
        tokens.answer = asking_for_a_token("", secret=SECRET)
        known = TokenService(f"http://{tokens.host}/token", "its-service", ("stored.example",))
        monkeypatch.setattr(registry_module, "TOKEN_SERVICES", {registry.host: known})
        registry.answer = asking_for_a_token(f"http://{tokens.host}/other?service=x")
        assert pulled(registry.host, credentials={"stored.example": SECRET})
        (asked,) = tokens.requests
    assert asked.path == "/token?service=its-service&scope=repository%3Anvidia%2Ftritonserver%3Apull"


def test_realm_that_asks_for_a_realm_is_not_followed(registry):
    with faulty_registry() as elsewhere:
        for server in (registry, elsewhere):
            server.answer = lambda asked: challenge(f'Bearer realm="http://{elsewhere.host}/token"')
        refused(registry.host, "gives no token")
        assert len(elsewhere.requests) == 1


def test_basic_authentication_is_for_the_registry_itself(registry):
    basic = challenge('Basic realm="a registry"')
    registry.answer = lambda asked: None if asked.headers.get("authorization") == f"Basic {SECRET}" else basic
    assert pulled(registry.host, credentials={registry.host: SECRET})
    refused(registry.host, "docker login")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 5}', b'{"token": "a\\nb"}'])
def test_answer_without_a_token_is_refused(registry, body):
    realm = challenge(f'Bearer realm="http://{registry.host}/token"')
    registry.answer = lambda asked: Reply(200, body) if asked.path.startswith("/token") else realm
    refused(registry.host)


def test_token_does_not_follow_a_redirect_to_storage(registry, tmp_path):
    """Registries redirect layers to storage with signed addresses; their token is not for it."""
    token = asking_for_a_token(f"http://{registry.host}/token")
    with faulty_registry(registry.images) as storage:
        stored = redirect(f"http://{storage.host}/v2/x/blobs/{digest(CONTENT)}")
        registry.answer = lambda asked: token(asked) or (stored if digest(CONTENT) in asked.path else None)
        with connect(registry.host) as connection:
            connection.download(connection.image("amd64").layers[0], tmp_path / "layer", lambda done: None)
    assert (tmp_path / "layer").read_bytes() == CONTENT
    assert given(storage) == [None]


def test_storage_does_not_choose_who_gets_the_password(registry, tmp_path):
    with faulty_registry() as storage:
        storage.answer = lambda asked: challenge(f'Bearer realm="http://{registry.host}/stolen"')
        registry.answer = lambda asked: redirect(f"http://{storage.host}/layer") if "blobs" in asked.path else None
        with pytest.raises(ImageError, match="401"):
            download(registry.host, tmp_path / "layer", credentials={registry.host: SECRET})
    assert not registry.asked("/stolen")


@pytest.mark.parametrize("more", [0, 1])
def test_redirects_are_followed_up_to_the_limit(registry, tmp_path, more):
    again = redirect(f"/v2/{REPOSITORY}/blobs/{digest(CONTENT)}")
    registry.answer = lambda asked: again if len(registry.requests) <= MAX_REDIRECTS + more else None
    with pytest.raises(ImageError, match=f"more than {MAX_REDIRECTS} times") if more else nullcontext():
        download(registry.host, tmp_path / "layer")
    assert len(registry.requests) == MAX_REDIRECTS + 1
    assert (tmp_path / "layer").exists() is not bool(more)


@pytest.mark.parametrize(
    "target",
    ["http://registry.example/x", "//registry.example/x", "file:///etc/passwd", "ftp://127.0.0.1/x", "http://["],
)
def test_redirect_or_realm_that_is_not_encrypted_is_refused(registry, tmp_path, target):
    registry.answer = lambda asked: redirect(target)
    with pytest.raises(ImageError, match="leads to"):
        download(registry.host, tmp_path / "layer")
    assert len(registry.requests) == 1
    registry.answer = lambda asked: challenge('Bearer realm="http://registry.example/"')
    refused(registry.host, "only https is allowed")


def test_passwords_are_those_that_docker_and_podman_stored(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(
        json.dumps({"auths": {"https://a.example/v1/": {"auth": SECRET}, "b.example:5000": {"auth": SECRET}, "c": {}}})
    )
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"d.example/path": {"auth": SECRET}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    assert stored_credentials() == dict.fromkeys(("a.example", "b.example:5000", "d.example"), SECRET)


@pytest.mark.parametrize("text", ["", "[]", '{"auths": []}', '{"auths": {"a": 5}}', '{"auths": {"a": {"auth": "?"}}}'])
def test_damaged_file_of_passwords_counts_as_none(tmp_path, monkeypatch, text):
    (tmp_path / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "nowhere"))
    assert stored_credentials() == {}


DIGEST = f"sha256:{'0f' * 32}"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("registry.example/nvidia/tritonserver:26.11-py3", ("registry.example", "nvidia/tritonserver", "26.11-py3")),
        ("registry.example/tritonserver", ("registry.example", "tritonserver", "latest")),
        (f"registry.example/tritonserver@{DIGEST}", ("registry.example", "tritonserver", DIGEST)),
        (f"registry.example/tritonserver:26.11-py3@{DIGEST}", ("registry.example", "tritonserver", DIGEST)),
        ("localhost/tritonserver:1", ("localhost", "tritonserver", "1")),
        ("mirror:5000/a/b__c/d-e.f:1", ("mirror:5000", "a/b__c/d-e.f", "1")),
        ("[::1]:5000/tritonserver:1", ("[::1]:5000", "tritonserver", "1")),
    ],
)
def test_reference_has_a_registry_a_repository_and_a_version(text, parts):
    reference = ImageReference.parse(text)
    assert (reference.registry, reference.repository, reference.version) == parts
    assert ImageReference.parse(str(reference)) == reference


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tritonserver:26.11-py3", "does not name its registry"),
        ("nvidia/tritonserver:26.11-py3", "does not name its registry"),
        ("https://registry.example/tritonserver:1", "is a URL"),
        ("registry.example/Triton:1", "'Triton' is not the name of an image"),
        ("registry.example/../tritonserver:1", "is not the name of an image"),
        ("registry.example/tritonserver:", "'' is not a tag"),
        ("registry.example/tritonserver:a b", "'a b' is not a tag"),
        ("registry.example/tritonserver@sha256:12", "is not a digest"),
        ("registry.example/tritonserver@", "'' is not a digest"),
        (f"registry.example/tritonserver@sha512:{'0f' * 64}", "is not a digest"),
        ("", "does not name its registry"),
    ],
)
def test_wrong_reference_is_refused_with_the_reason(text, reason):
    with pytest.raises(ImageError, match=reason):
        ImageReference.parse(text)


def test_reference_up_to_the_longest_is_read():
    start = "registry.example/"
    assert ImageReference.parse(start + "a" * (MAX_LENGTH - len(start)))
    with pytest.raises(ImageError, match=f"at most {MAX_LENGTH} are allowed"):
        ImageReference.parse(start + "a" * (MAX_LENGTH - len(start) + 1))


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


def test_authorization_is_sent_again_to_the_same_origin(servers):
    first, _ = servers
    first.answer = lambda asked: Reply(200) if asked.path == "/end" else Reply(302, headers={"Location": "/end"})
    assert ask(f"http://{first.host}/start") == 200
    assert given(first) == ["Bearer secret", "Bearer secret"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_authorization_never_leaves_its_origin(servers, status):
    """Another port is another origin; and what has left does not come back."""
    first, second = servers
    first.answer = lambda asked: (
        Reply(200) if asked.path == "/end" else Reply(status, headers={"Location": f"http://{second.host}/there"})
    )
    second.answer = lambda asked: Reply(status, headers={"Location": f"http://{first.host}/end"})
    assert ask(f"http://{first.host}/start") == 200
    assert (given(first), given(second)) == (["Bearer secret", None], [None])
    assert second.requests[0].headers["x-other"] == "x"


def test_default_port_is_the_same_origin():
    assert origin(httpx.URL("https://a/x")) == origin(httpx.URL("https://A:443/y"))
    for other in ("http://a/", "https://b/", "https://a:444/"):
        assert origin(httpx.URL("https://a/x")) != origin(httpx.URL(other))


def test_no_other_client_follows_redirects():
    """Each would need the rule of its own. Images of `gateway classify` are fetched without credentials."""
    root = PROJECT
    modules = [path for package in root.glob("gateway*") for path in package.rglob("*.py")]
    following = {path.relative_to(root).as_posix() for path in modules if "follow_redirects=True" in path.read_text()}
    assert following == {"gateway_client/bulk/remote.py"}
