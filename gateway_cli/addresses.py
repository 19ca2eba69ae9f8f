"""The options --gateway and --triton: one name for each kind of address, which is checked by asking the address."""

from enum import Enum
from typing import Annotated, Any

import typer

from gateway.errors import UserError

ASK_SECONDS = 2.0
"""Longest wait for each answer to "what are you"."""
DEFAULT_GATEWAY = "http://127.0.0.1:8080"


class ServerKind(Enum):
    """What answers at an address."""

    GATEWAY = "the gateway's HTTP port"
    GATEWAY_GRPC = "the gateway's gRPC port"
    TRITON = "Triton's gRPC port"
    TRITON_HTTP = "Triton's HTTP port"
    UNKNOWN = "nothing that is known"


class WrongAddress(UserError):
    """The address has the wrong form, or something of another kind answers there; the message has the right option."""


def kind_of(address: str) -> ServerKind:
    """Ask host:port, or a URL, what it is; UNKNOWN if nothing answers in time, or something else does."""
    url = address if "://" in address else f"http://{address}"
    found = _ask_http(url)
    return found if found is not ServerKind.UNKNOWN else _ask_grpc(url.partition("://")[2].rstrip("/"))


def _ask_http(url: str) -> ServerKind:
    import httpx

    try:
        with httpx.Client(timeout=ASK_SECONDS, trust_env=False) as client:
            # The two paths that need no API key.
            if _member(client.get(f"{url.rstrip('/')}/health/live"), "status") == "live":
                return ServerKind.GATEWAY
            if _member(client.get(f"{url.rstrip('/')}/v2"), "name") == "triton":
                return ServerKind.TRITON_HTTP
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        pass
    return ServerKind.UNKNOWN


def _member(response: Any, name: str) -> object:  # noqa: ANN401  # httpx is imported late
    document = response.json()
    return document.get(name) if isinstance(document, dict) else None


def _ask_grpc(target: str) -> ServerKind:
    from gateway_models.blocking_triton import server_name

    match server_name(target, ASK_SECONDS):
        case "triton":
            return ServerKind.TRITON
        case None:
            return ServerKind.UNKNOWN
        case _:
            return ServerKind.GATEWAY_GRPC


def triton_address(context: typer.Context, given: str | None) -> str | None:
    """Validate --triton: host:port without a scheme; raises WrongAddress if something else than Triton answers there.

    Where nothing answers, the command itself says so.
    """
    if given is None or context.resilient_parsing:
        return given
    address = given.partition("://")[2] if "://" in given else given
    address = address.rstrip("/")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise WrongAddress(f"--triton {given}: the address needs the form HOST:PORT, such as 127.0.0.1:8001")
    if (advice := advice_for_triton(address)) is not None:
        raise WrongAddress(advice)
    return address


def advice_for_triton(address: str) -> str | None:
    """What to write instead of `--triton address`, or None if Triton's gRPC port or nothing known answers there."""
    kind = kind_of(address)
    if kind in {ServerKind.TRITON, ServerKind.UNKNOWN}:
        return None
    advice = "give the gRPC port of Triton, HOST:PORT (of `gateway up`: the one that its --triton-port chooses)"
    if kind is ServerKind.TRITON_HTTP:
        advice = "give its gRPC port, which is 8001 unless it was chosen"
    return f"--triton {address}: this is {kind.value}; {advice}"


def gateway_url(context: typer.Context, given: str | None) -> str | None:
    """Validate --gateway: a URL, with http:// if it has no scheme; raises WrongAddress if something else answers there.

    Where nothing answers, the command itself says so, or waits for the service.
    """
    if given is None or context.resilient_parsing:
        return given
    url = given if "://" in given else f"http://{given}"
    if not url.startswith(("http://", "https://")):
        raise WrongAddress(f"--gateway {given}: the address needs the form http://HOST:PORT or https://HOST:PORT")
    kind = kind_of(url)
    if kind in {ServerKind.GATEWAY, ServerKind.UNKNOWN}:
        return url
    advice = f"give the gateway's HTTP address, such as {DEFAULT_GATEWAY}"
    raise WrongAddress(f"--gateway {given}: this is {kind.value}; {advice}")


RunningGateway = Annotated[
    str, typer.Option("--gateway", metavar="URL", help="A running service.", callback=gateway_url)
]
Triton = Annotated[
    str | None,
    typer.Option(
        "--triton",
        metavar="HOST:PORT",
        help="gRPC address of a running Triton that serves the repository.",
        show_default=False,
        callback=triton_address,
    ),
]
