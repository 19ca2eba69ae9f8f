"""TLS between the gateway and Triton: the files of the settings, checked, as gRPC's credentials."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from gateway.errors import UserError
from gateway.settings import Settings, variable
from gateway.triton.addresses import is_address

TARGET_NAME = "grpc.ssl_target_name_override"


class TlsError(UserError):
    """A certificate or key for the connection to Triton cannot be used; the message names its variable."""


@dataclass(frozen=True, slots=True)
class Tls:
    """What a channel needs: gRPC's credentials, and the name in Triton's certificate if it is not the address."""

    credentials: grpc.ChannelCredentials
    server_name: str = ""

    def options(self) -> list[tuple[str, str]]:
        """The channel's options."""
        return [(TARGET_NAME, self.server_name)] if self.server_name else []


def read_tls(settings: Settings, ca_file: Path) -> Tls:
    """Read and check the files of the settings; raises TlsError."""
    ca = _read("triton_ca_file", ca_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=ca_file)
    except ssl.SSLError as exc:
        raise _wrong("triton_ca_file", ca_file, "has no certificate in PEM form") from exc
    certificate = key = None
    if settings.triton_certificate_file is not None and settings.triton_key_file is not None:
        certificate = _read("triton_certificate_file", settings.triton_certificate_file)
        key = _read("triton_key_file", settings.triton_key_file)
        try:
            # A password would be asked for on the terminal.
            context.load_cert_chain(settings.triton_certificate_file, settings.triton_key_file, password="")
        except (ssl.SSLError, ValueError) as exc:
            path = settings.triton_key_file
            text = f"is no unencrypted PEM key that fits {variable('triton_certificate_file')}"
            raise _wrong("triton_key_file", path, text) from exc
    return Tls(grpc.ssl_channel_credentials(ca, key, certificate), _server_name(settings))


def _server_name(settings: Settings) -> str:
    """The name to expect: the gateway connects to addresses, but a certificate usually has the name that has them."""
    if settings.triton_server_name is not None:
        return settings.triton_server_name
    host = settings.triton_url[0].rpartition(":")[0].strip("[]")
    return "" if is_address(host) else host


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise _wrong(field, path, f"cannot be read: {exc.strerror}") from exc


def _wrong(field: str, path: Path, text: str) -> TlsError:
    return TlsError(f"{variable(field)}: {path} {text}")
