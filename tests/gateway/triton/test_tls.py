"""TLS between the gateway and a real Triton, with a server's certificate only and with certificates on both sides."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import TritonUnreachable
from gateway.inference.backend import Call
from gateway.timing import Deadline
from gateway.triton.opening import TlsError, connector, server_name
from gateway_local.runtime.base import TritonRuntime
from tests.certificates import Authority, Pair
from tests.gateway.triton.fleet import MODEL
from tests.gateway.triton.small_repository import write_repository
from tests.settings import Settings
from tests.tritons import running_triton

NAME = "images-triton"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Pair:
    return authority.issue("images-gateway")


@pytest.fixture(scope="module", params=["server's certificate", "both certificates"])
def address(
    request, runtime: TritonRuntime, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[tuple[str, bool]]:
    """A Triton's address, and whether it wants a certificate of its clients."""
    server, mutual = authority.issue(NAME), request.param == "both certificates"
    arguments = [
        "--grpc-use-ssl=true",
        f"--grpc-use-ssl-mutual={str(mutual).lower()}",
        f"--grpc-server-cert={server.certificate}",
        f"--grpc-server-key={server.key}",
        f"--grpc-root-cert={authority.certificate}",
    ]
    repository = write_repository(tmp_path_factory.mktemp("tls") / "models")
    with running_triton(runtime, repository, extra_arguments=arguments) as triton:
        yield triton.url, mutual


def settings(**values: Any) -> Settings:
    return Settings(_env_file=None, **values)


def with_certificate(pair: Pair) -> dict[str, Path]:
    return {"triton_certificate_file": pair.certificate, "triton_key_file": pair.key}


async def infer(address: str, given: Settings) -> int:
    """The number of results of an inference."""
    endpoint = connector(given)(address)
    try:
        call = Call((b"image",), MODEL, "", None, Deadline.after(10), "test")
        return len(await endpoint.infer(call, class_count=1))
    finally:
        await endpoint.close()


async def test_image_is_classified_over_tls(address, authority, client):
    """A Triton that requires client certificates refuses a client without one."""
    url, mutual = address
    files: dict[str, Any] = {"triton_ca_file": authority.certificate, "triton_server_name": NAME}
    if mutual:
        with pytest.raises(TritonUnreachable):
            await infer(url, settings(**files))
        files |= with_certificate(client)
    assert await infer(url, settings(**files)) == 1


@pytest.mark.parametrize(
    ("trusted", "name", "cause"),
    [("", "", ""), ("other", NAME, "CERTIFICATE_VERIFY_FAILED"), ("ca", "other", "")],
    ids=["no TLS", "other authority", "other name"],
)
async def test_connection_that_does_not_fit_is_refused(address, authority, tmp_path, client, trusted, name, cause):
    ca = Authority(tmp_path / "other") if trusted == "other" else authority
    files = {"triton_ca_file": ca.certificate, "triton_server_name": name, **with_certificate(client)}
    with pytest.raises(TritonUnreachable) as refused:
        await infer(address[0], settings(**(files if trusted else {})))
    assert cause in str(refused.value.__cause__)


def test_name_is_that_of_the_url_unless_it_is_set(authority):
    """The gateway connects to addresses that a name has; the certificate has the name."""

    def name(url: str, **values: Any) -> str:
        return server_name(settings(triton_ca_file=authority.certificate, triton_url=url, **values))

    assert name("images-triton:8001") == "images-triton"
    assert name("10.0.0.7:8001") == "", "the address itself is in the certificate"
    assert name("images-triton:8001", triton_server_name="triton.example") == "triton.example"


@pytest.mark.parametrize("field", ["triton_ca_file", "triton_certificate_file", "triton_key_file"])
def test_unusable_file_is_named(authority, client, tmp_path, field):
    files = {"triton_ca_file": authority.certificate, **with_certificate(client)}
    for path in (tmp_path / "absent", tmp_path / "empty"):
        if path.name == "empty":
            path.write_text("")
        with pytest.raises(TlsError) as refused:
            connector(settings(**files | {field: path}))
        assert "GATEWAY_TRITON_" in str(refused.value)


def test_key_of_another_certificate_is_refused(authority, client):
    other = authority.issue("other")
    files = with_certificate(client) | {"triton_key_file": other.key}
    with pytest.raises(TlsError, match="GATEWAY_TRITON_KEY_FILE"):
        connector(settings(triton_ca_file=authority.certificate, **files))


@pytest.mark.parametrize("field", ["triton_certificate_file", "triton_key_file", "triton_server_name"])
def test_half_of_the_settings_is_refused(field):
    with pytest.raises(ValueError, match="set both or neither"):
        settings(**{field: "a"})
