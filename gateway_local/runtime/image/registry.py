"""Read an image from a registry: the pull of the OCI distribution specification, with the registries' token protocol.

Manifests and layers are checked against their digests. A password goes to the registry's own origin, or to the token
service that is known to be its own (TOKEN_SERVICES), and buys a token to pull this image and nothing else. A token goes
to the registry alone. Plain HTTP is spoken with this machine only.
"""

import base64
import binascii
import contextlib
import hashlib
import ipaddress
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

import httpx

from gateway_local import redirects
from gateway_local.runtime.image.errors import ImageError, RegistryUnreachable, WrongDigest
from gateway_local.runtime.image.reference import DIGEST, ImageReference

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
LAYER_TYPES = (
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
)
"""Without the types that registries do not distribute: the manifest gives such a layer's address, on any host."""

MAX_DOCUMENT_BYTES = 8 * 2**20
"""The largest manifest or configuration; the specification asks registries for manifests of 4 MiB."""
MAX_LAYERS = 512
MAX_INDEX_DEPTH = 3
ATTEMPTS = 5
"""Attempts in a row that bring nothing more of a layer, before the registry counts as away."""
PAUSE_SECONDS = 1.0
"""Before the second attempt; the pause grows by as much with each."""
TIMEOUT_SECONDS = 60.0
"""The time limit for connecting, and for each read."""

_PARAMETER = re.compile(r'([A-Za-z_]+)="([^"]*)"')
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")
_NOT_CONTINUED = {httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE, httpx.codes.PARTIAL_CONTENT}

Advance: TypeAlias = Callable[[int], None]
"""Takes bytes that have arrived; negative ones have to be sent again."""
Credentials: TypeAlias = Mapping[str, str]
"""The `user:password` for each host, in base64, as Docker keeps them."""


@dataclass(frozen=True, slots=True)
class TokenService:
    """A registry's token service on another host; `stored_for` are the names that its password is stored under."""

    url: str
    service: str
    stored_for: tuple[str, ...]


_DOCKER = TokenService(
    "https://auth.docker.io/token", "registry.docker.io", ("index.docker.io", "docker.io", "registry-1.docker.io")
)
TOKEN_SERVICES: Mapping[str, TokenService] = {
    **dict.fromkeys(_DOCKER.stored_for, _DOCKER),
    "registry.gitlab.com": TokenService("https://gitlab.com/jwt/auth", "container_registry", ("registry.gitlab.com",)),
}
"""By registry."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A document or layer of a registry: its type, digest and size."""

    media_type: str
    digest: str
    size: int

    @classmethod
    def read(cls, value: object) -> Self:
        """Read a descriptor of a manifest; raises ImageError."""
        match value:
            case {"mediaType": str(media_type), "digest": str(digest), "size": int(size)} if size >= 0:
                if not DIGEST.fullmatch(digest):
                    raise ImageError(f"the image's manifest has the digest {digest!r}, and only sha256 is supported")
                return cls(media_type, digest, size)
        raise ImageError("the image's manifest is damaged: a descriptor needs mediaType, digest and size")


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image for one architecture: the digest of its manifest, its configuration and its layers, the lowest first."""

    digest: str
    configuration: Mapping[str, Any]
    layers: tuple[Descriptor, ...]

    def variable(self, name: str) -> str:
        """A variable of the containers' environment; "" if the image does not set it."""
        settings = self.configuration.get("config")
        lines = settings.get("Env") if isinstance(settings, dict) else None
        for line in lines if isinstance(lines, list) else []:
            key, _, value = str(line).partition("=")
            if key == name:
                return value
        return ""


class Registry:
    """A connection to the registry of one image; a context manager."""

    def __init__(
        self,
        reference: ImageReference,
        *,
        credentials: Credentials | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reference = reference
        self._on_loopback = _is_loopback(urlsplit(f"//{reference.registry}").hostname or "")
        scheme = "http" if self._on_loopback else "https"
        self._url = f"{scheme}://{reference.registry}/v2/{reference.repository}"
        self._credentials = stored_credentials() if credentials is None else credentials
        self._authorization: str | None = None
        self._pause = pause
        # Layers are hashed as they come, so nothing may be decoded on the way.
        headers = {"Accept-Encoding": "identity"}
        self._client = httpx.Client(timeout=TIMEOUT_SECONDS, headers=headers, trust_env=not self._on_loopback)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    def image(self, architecture: str) -> ContainerImage:
        """The image for Linux on `architecture`, in Go's words: amd64 or arm64. Raises ImageError."""
        try:
            return self._image(architecture)
        except httpx.TransportError as exc:
            reason = str(exc) or type(exc).__name__
            raise RegistryUnreachable(f"{self._reference.registry} cannot be reached: {reason}") from exc

    def _image(self, architecture: str) -> ContainerImage:
        version, digest = self._reference.version, self._reference.digest
        for _ in range(MAX_INDEX_DEPTH):
            body, digest = self._manifest(version, digest)
            document = _json(body)
            kind = document.get("mediaType") or (INDEX_TYPES[0] if "manifests" in document else MANIFEST_TYPES[0])
            if kind in INDEX_TYPES:
                version = digest = _for_architecture(document, architecture, self._reference)
            elif kind in MANIFEST_TYPES and "config" in document:
                return self._read(digest, document, architecture)
            else:
                raise ImageError(f"{self._reference} is no image of OCI or Docker's version 2, but {kind}")
        raise ImageError(f"{self._reference} lists lists of images, more than {MAX_INDEX_DEPTH} deep")

    def _manifest(self, version: str, digest: str | None) -> tuple[bytes, str]:
        accept = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
        with self._get(f"{self._url}/manifests/{version}", {"Accept": accept}) as response:
            if response.status_code != httpx.codes.OK:
                raise self._refused(response)
            body = _limited(response)
            expected = digest or response.headers.get("docker-content-digest")
        found = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if expected and expected != found:
            raise WrongDigest(f"{self._reference}: the registry sent a manifest with the digest {found} for {expected}")
        return body, found

    def _read(self, digest: str, document: Mapping[str, Any], architecture: str) -> ContainerImage:
        listed = document.get("layers")
        if not isinstance(listed, list) or not 0 < len(listed) <= MAX_LAYERS:
            raise ImageError(f"{self._reference} must have 1 to {MAX_LAYERS} layers")
        layers = tuple(map(Descriptor.read, listed))
        for layer in layers:
            if layer.media_type not in LAYER_TYPES:
                raise ImageError(f"{self._reference} has a layer of the unsupported type {layer.media_type}")
        configuration = _json(self._document(Descriptor.read(document["config"])))
        system, found = configuration.get("os"), configuration.get("architecture")
        if (system, found) != ("linux", architecture):
            raise ImageError(f"{self._reference} is for {system} on {found}; this machine is linux on {architecture}")
        return ContainerImage(digest, configuration, layers)

    def _document(self, descriptor: Descriptor) -> bytes:
        with self._get(f"{self._url}/blobs/{descriptor.digest}") as response:
            if response.status_code != httpx.codes.OK:
                raise self._refused(response)
            body = _limited(response)
        if hashlib.sha256(body).hexdigest() != descriptor.digest.partition(":")[2]:
            raise WrongDigest(f"{self._reference}: the registry sent other bytes for {descriptor.digest}")
        return body

    def download(self, layer: Descriptor, target: Path, advance: Advance) -> None:
        """Download a layer to `target`, which is whole and verified once it exists.

        What has arrived when the connection breaks, or this process ends, stays in `target` with the suffix `.part`,
        and the next attempt continues there. Raises WrongDigest, RegistryUnreachable, ImageError or OSError.
        """
        if target.is_file():
            advance(layer.size)
            return
        part = target.with_name(f"{target.name}.part")
        if _size(part) > layer.size:
            part.unlink()
        most, reported, fruitless, reason = _size(part), 0, 0, ""
        while True:
            before = _size(part)
            advance(before - reported)
            reported = before
            if before == layer.size and part.exists():
                break
            try:
                for written in self._append(layer, part, before):
                    advance(written - reported)
                    reported = written
            except httpx.TransportError as exc:
                reason = str(exc) or type(exc).__name__
            # More than there has ever been: a registry that lost a layer's end sends its start again and again.
            fruitless = 0 if _size(part) > most else fruitless + 1
            most = max(most, _size(part))
            if fruitless == ATTEMPTS:
                raise RegistryUnreachable(
                    f"{self._reference.registry} stopped sending {layer.digest} after {_size(part)} of {layer.size} "
                    f"bytes{f': {reason}' if reason else ''}; what has arrived is kept, run the command again"
                )
            if fruitless:
                self._pause(PAUSE_SECONDS * fruitless)
        with part.open("rb") as file:
            found = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        if found != layer.digest:
            part.unlink()
            raise WrongDigest(
                f"the registry sent a layer with the digest {found} for {layer.digest}: run the command again; if that "
                "does not help, the registry or a proxy before it is broken"
            )
        part.rename(target)

    def _append(self, layer: Descriptor, part: Path, have: int) -> Iterator[int]:
        """Continue a layer's file from `have`; yields how much of it there is."""
        headers = {"Range": f"bytes={have}-"} if have else {}
        with self._get(f"{self._url}/blobs/{layer.digest}", headers) as response, part.open("ab") as file:
            start = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
            if response.status_code == httpx.codes.PARTIAL_CONTENT and start and int(start[1]) == have:
                written = have
            elif response.status_code == httpx.codes.OK:
                written = 0  # this server does not continue
            elif have and response.status_code in _NOT_CONTINUED:
                file.truncate(0)
                return
            elif response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                return  # tried again
            else:
                raise self._refused(response)
            file.truncate(written)
            # As the bytes come: with a block size, httpx keeps back up to a block, and loses it with the connection.
            for block in response.iter_raw():
                if written + len(block) > layer.size:
                    file.truncate(0)
                    raise WrongDigest(f"the registry sent more than the {layer.size} bytes of {layer.digest}")
                file.write(block)
                written += len(block)
                yield written

    @contextmanager
    def _get(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx.Response]:
        """GET with this registry's token, fetched when the registry asks for one; raises httpx.TransportError."""
        with self._follow(url, headers or {}, self._authorization) as response:
            if response.status_code != httpx.codes.UNAUTHORIZED:
                yield response
                return
            challenges = response.headers.get_list("www-authenticate")
            answered = response.url.host, response.url.port
        asked = httpx.URL(url)
        # A storage that a redirect led to must not choose who gets a password.
        self._authorization = self._authorize(challenges) if answered == (asked.host, asked.port) else None
        with self._follow(url, headers or {}, self._authorization) as response:
            yield response

    @contextmanager
    def _follow(self, url: str, headers: Mapping[str, str], authorization: str | None) -> Iterator[httpx.Response]:
        """GET through redirects; `authorization` goes to the first origin only."""
        with contextlib.ExitStack() as stack:
            try:
                request = redirects.get(
                    self._client, url, headers=headers, authorization=authorization, check=self._refusal
                )
                response = stack.enter_context(request)
            except redirects.RedirectRefused as exc:
                raise ImageError(f"{self._reference.registry} {exc}") from exc
            yield response

    def _refusal(self, url: httpx.URL) -> str:
        """Why a URL is not asked: it must be encrypted, or the registry and the URL are on this machine."""
        plain = url.scheme == "http" and self._on_loopback and _is_loopback(url.host)
        return "" if plain else redirects.https_only(url)

    def _authorize(self, challenges: list[str]) -> str | None:
        """The Authorization that a 401 asks for."""
        for challenge in challenges:
            scheme, _, rest = challenge.strip().partition(" ")
            parameters = {name.lower(): value for name, value in _PARAMETER.findall(rest)}
            if scheme.lower() == "bearer" and "realm" in parameters:
                return f"Bearer {self._token(parameters)}"
            if scheme.lower() == "basic" and (secret := self._credentials.get(self._reference.registry)):
                return f"Basic {secret}"
        return None

    def _token(self, parameters: Mapping[str, str]) -> str:
        """A token for this image alone: the challenge chooses neither what it is for nor who gets a password."""
        realm, registry = parameters["realm"], self._reference.registry
        scope = {"scope": f"repository:{self._reference.repository}:pull"}
        service = {"service": parameters["service"]} if "service" in parameters else {}
        try:
            url = httpx.URL(realm).copy_merge_params({**service, **scope})
        except httpx.InvalidURL as exc:
            raise ImageError(f"{registry} leads to {realm!r}, which is no URL: {exc}") from exc
        known = TOKEN_SERVICES.get(registry)
        if redirects.origin(url) == redirects.origin(httpx.URL(self._url)):
            secret = self._credentials.get(registry)
        elif known and redirects.origin(url) == redirects.origin(httpx.URL(known.url)):
            secret = next((self._credentials[name] for name in known.stored_for if name in self._credentials), None)
            url = httpx.URL(known.url).copy_merge_params({"service": known.service, **scope})
        else:
            secret = None
        with self._follow(str(url), {}, f"Basic {secret}" if secret else None) as response:
            if response.status_code != httpx.codes.OK:
                host, unsent = url.netloc.decode("ascii"), ""
                if not secret and registry in self._credentials:
                    unsent = f"; the password for {registry} is not sent to {host}, which is not known to be its own"
                raise ImageError(f"{host} gives no token for {self._reference} ({_status(response)}){unsent}")
            document = _json(_limited(response))
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ImageError(f"{url.host} sent no token")
        return token

    def _refused(self, response: httpx.Response) -> ImageError:
        registry, status = self._reference.registry, _status(response)
        match response.status_code:
            case httpx.codes.NOT_FOUND:
                return ImageError(f"{registry} has no {self._reference}: check its name and tag ({status})")
            case httpx.codes.UNAUTHORIZED | httpx.codes.FORBIDDEN:
                return ImageError(
                    f"{registry} refuses {self._reference} ({status}): `docker login` or `podman login` stores a "
                    "password for it; credential helpers are not asked"
                )
            case httpx.codes.TOO_MANY_REQUESTS:
                return ImageError(f"{registry} allows no more requests for now ({status}): try again later")
        return ImageError(f"{registry} answers {status} for {self._reference}")


def stored_credentials() -> dict[str, str]:
    """What `docker login` and `podman login` stored, by host; credential helpers are not asked."""
    docker = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    podman = os.environ.get("REGISTRY_AUTH_FILE") or (
        Path(os.environ.get("XDG_RUNTIME_DIR", "/run")) / "containers" / "auth.json"
    )
    found: dict[str, str] = {}
    for path in (Path(podman), docker):
        try:
            entries = json.loads(path.read_bytes())["auths"]
            for name, entry in entries.items():
                secret = entry.get("auth", "")
                base64.b64decode(secret, validate=True)
                if secret:
                    found[(urlsplit(name) if "://" in name else urlsplit(f"//{name}")).netloc] = secret
        except (OSError, ValueError, LookupError, AttributeError, TypeError, binascii.Error):
            continue
    return found


def _for_architecture(document: Mapping[str, Any], architecture: str, reference: ImageReference) -> str:
    """The digest of the index's manifest for Linux on `architecture`."""
    entries = document.get("manifests")
    found = []
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case {"platform": {"os": "linux", "architecture": str(name)}}:
                found.append(name)
                if name == architecture:
                    return Descriptor.read(entry).digest
    architectures = ", ".join(sorted(set(found))) or "no architecture"
    raise ImageError(f"{reference} is for {architectures}, and this machine is {architecture}")


def _limited(response: httpx.Response) -> bytes:
    """The body of a document; raises ImageError if it is too large."""
    body = bytearray()
    for block in response.iter_raw():
        body += block
        if len(body) > MAX_DOCUMENT_BYTES:
            raise ImageError(f"{response.url.host} sent a document of more than {MAX_DOCUMENT_BYTES // 2**20} MiB")
    return bytes(body)


def _json(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise ImageError(f"the registry sent a document that is not JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise ImageError("the registry sent a document that is not a JSON object")
    return document


def _status(response: httpx.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
