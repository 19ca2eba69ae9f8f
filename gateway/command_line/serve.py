"""`gateway serve` and `gateway plugins`."""

from typing import Annotated

import typer

from gateway.command_line.terminal import Host, Port, Workers, emit, settings_with


def serve(
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    triton: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Triton's gRPC address (GATEWAY_TRITON_URL)."),
    ] = None,
) -> None:
    """Run the API in front of a Triton that runs elsewhere."""
    from gateway.server.serve import serve as run_serve

    run_serve(settings_with(host=host, port=port, workers=workers, triton_url=triton))


def plugins() -> None:
    """List the installed plug-ins: name, version, on or off (GATEWAY_PLUGINS_OFF), hooks and settings."""
    from gateway.plugin_loading import listings

    for each in listings():
        emit(f"{each.name} {each.version} {each.state}")
        for title, names in (("hooks", each.hooks), ("settings", each.settings)):
            if names:
                emit(f"  {title}: {', '.join(names)}")
