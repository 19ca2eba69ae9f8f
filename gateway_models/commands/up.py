"""`gateway up`: Triton and the API on this machine, perhaps with a model that is added first."""

from functools import partial
from typing import Annotated

import typer

from gateway.command_line.terminal import Host, Port, Repository, Workers, emit, settings_with
from gateway_local.commands.service import detached, next_steps, running_on
from gateway_local.commands.shown import Verbose, shown
from gateway_local.hosts import LAST_PORT
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.spec_options import takes_spec
from gateway_models.repository.spec import ModelSpec


@partial(takes_spec, optional=True)
def up(
    spec: ModelSpec | None = None,
    *,
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    model: Annotated[
        str | None, typer.Option("--model", help="Default model of requests (GATEWAY_MODEL): SOURCE, or the only one.")
    ] = None,
    triton_port: Annotated[
        int,
        typer.Option(
            help="Triton's gRPC port, for the --triton of `gateway model`; 0 takes a free one.", min=0, max=LAST_PORT
        ),
    ] = 0,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Run in the background: gateway status, reload and stop.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Start Triton and the API in front of it; Ctrl-C stops both.

    With SOURCE, as of `gateway model add`, whose options all apply, that model is added and answers. The same files
    again change nothing; changed ones become the next version, also while the service runs.

        gateway up

        gateway up best.pt --labels labels.txt --like ResNet50_Weights.IMAGENET1K_V2

        gateway up hugging_face_folder --detach

    The first start fetches Triton from its wheel (55 MB), and exports the default model if the repository has none.
    """
    from gateway.server.serve import bound, check_address
    from gateway.server.workers import start_process

    settings = settings_with(host=host, port=port, workers=workers, model=model or (spec and spec.name))
    if spec is not None:
        from gateway_models.commands.add import add_to_serve

        service = running_on(settings.port, model_repository)
        add_to_serve(spec, model_repository, service["triton"] if service else None)
        if service:
            emit(*next_steps(settings, service, f"?model={spec.name}"))
            return
    check_address(settings)
    if detach:
        # The environment has the values of the options.
        words = ["up", f"--model-repository={model_repository}", f"--triton-port={triton_port}", "--verbose"]
        emit(*next_steps(settings, detached(settings.port, words)))
        return
    # The worker imports its packages while the rest of the start is imported and planned.
    listener = bound(settings)
    process = start_process(listener)
    from gateway_local.up import up as run_up

    how = shown(settings, verbose=verbose)
    run_up(settings, model_repository, listener, process, shown=how, triton_port=triton_port)
