"""The options --gateway and --triton: one name for each kind of address, whose form is checked."""

from typing import Annotated

import typer

from gateway.errors import UserError

DEFAULT_GATEWAY = "http://127.0.0.1:8080"


class WrongAddress(UserError):
    """The address has the wrong form; the message has the right one."""


def triton_address(context: typer.Context, given: str | None) -> str | None:
    """Validate --triton: host:port without a scheme; raises WrongAddress."""
    if given is None or context.resilient_parsing:
        return given
    address = (given.partition("://")[2] if "://" in given else given).rstrip("/")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise WrongAddress(f"--triton {given}: the address needs the form HOST:PORT, such as 127.0.0.1:8001")
    return address


def gateway_url(given: str) -> str:
    """Validate --gateway: a URL, with http:// if it has no scheme; raises WrongAddress."""
    url = given if "://" in given else f"http://{given}"
    if not url.startswith(("http://", "https://")):
        raise WrongAddress(f"--gateway {given}: the address needs the form http://HOST:PORT or https://HOST:PORT")
    return url


RunningGateway = Annotated[
    str, typer.Option("--gateway", metavar="URL", help="A running service.", callback=gateway_url)
]
Triton = Annotated[
    str | None,
    typer.Option(
        "--triton",
        metavar="HOST:PORT",
        help="gRPC address of a running Triton that serves the repository.",
        callback=triton_address,
    ),
]
