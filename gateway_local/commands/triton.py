"""`gateway triton …`: the Triton server of a PyPI wheel."""

from typing import Annotated

import typer

from gateway.command_line.terminal import Repository, emit, print_status
from gateway.environment import load_settings
from gateway_local.commands.shown import shown
from gateway_local.hosts import LAST_PORT
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, default_cache_dir

app = typer.Typer(help="The Triton server of a PyPI wheel.", no_args_is_help=True)


@app.command("fetch", hidden=True)
def triton_fetch() -> None:
    """Fetch Triton into the cache, so that a later start needs no network."""
    from gateway_local.runtime.wheel import ensure_runtime

    runtime = ensure_runtime(default_cache_dir(), print_status)
    emit(runtime.tritonserver)


@app.command("run")
def triton_run(
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    host: Annotated[str, typer.Option(help="Address that Triton listens on; it has no access control.")] = "127.0.0.1",
    grpc_port: Annotated[
        int, typer.Option(help="Port for gRPC, which the gateway speaks.", min=0, max=LAST_PORT)
    ] = 8001,
    http_port: Annotated[int, typer.Option(help="Port for HTTP.", min=0, max=LAST_PORT)] = 8000,
    metrics_port: Annotated[int, typer.Option(help="Port for Triton's own metrics.", min=0, max=LAST_PORT)] = 8002,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="More arguments of tritonserver, after --."),
    ] = None,
) -> None:
    """Run Triton alone, in the foreground; point `gateway serve` at it with GATEWAY_TRITON_URL.

    It is started again if it dies or hangs.
    """
    from gateway_local.up import run_triton

    settings, ports = load_settings(), (grpc_port, http_port, metrics_port)
    how = shown(settings, verbose=True)
    run_triton(settings, model_repository, host=host, ports=ports, shown=how, arguments=arguments or ())
