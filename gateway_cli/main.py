"""The `gateway` command."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer

import gateway.plain_structlog  # noqa: F401
from gateway import __version__
from gateway.environment import load_settings
from gateway.errors import UserError
from gateway.hooks import Plugin, PluginFailed
from gateway.log_stream import LogStream, lost_as_text
from gateway.plugin_loading import commands_of, environment_of, hooks, installed, listings
from gateway.settings import LogFormat, Settings
from gateway_cli.classify import classify
from gateway_cli.model import model_app
from gateway_cli.model.spec_options import takes_spec
from gateway_cli.predictions import predictions_app
from gateway_cli.service import detached, next_steps, reload, running_on, status, stop
from gateway_cli.stream import stream
from gateway_cli.terminal import Repository, emit, print_status
from gateway_client.bulk import BulkError
from gateway_client.visible import visible
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, default_cache_dir
from gateway_local.runtime.wheel import ensure_runtime
from gateway_models.repository.spec import ModelSpec

if TYPE_CHECKING:
    from gateway.findings import Finding
    from gateway_local.table import Shown

app = typer.Typer(
    name="gateway",
    help="Classify images over HTTP: a FastAPI gateway in front of a Triton ensemble.\n\n"
    "Start with `gateway up`, or `gateway up best.pt --labels labels.txt` for a model of yours.\n\n"
    "Every setting is a GATEWAY_ variable; options take precedence over variables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
triton_app = typer.Typer(help="The Triton server of a PyPI wheel.", no_args_is_help=True)
app.add_typer(model_app, name="model")
app.add_typer(triton_app, name="triton")
app.add_typer(predictions_app, name="predictions")
_plugins: Sequence[type[Plugin]] = ()
with suppress(PluginFailed):  # reported by every command that reads the settings
    _plugins = installed()
for _plugin in _plugins:
    try:
        for _commands in commands_of((_plugin,)):
            app.add_typer(_commands.app)
    except PluginFailed as _exc:
        typer.secho(f"warning: {visible(str(_exc))}", err=True, fg="yellow")

LAST_PORT = 65_535

Host = Annotated[str | None, typer.Option(help="Address that the API listens on (GATEWAY_HOST).", show_default=False)]
Port = Annotated[int | None, typer.Option(help="Port that the API listens on (GATEWAY_PORT).", show_default=False)]
Workers = Annotated[int | None, typer.Option(help="API processes (GATEWAY_WORKERS).", show_default=False)]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show Triton's log here instead of keeping it in a file."),
]


def _shown(settings: Settings, *, verbose: bool) -> "Shown":
    """Stages, with Triton's log in a file, on a terminal; else, or with --verbose, every line; or events in JSON."""
    from gateway_local.live import log_path
    from gateway_local.table import Shown

    if settings.log_format is LogFormat.JSON:
        return Shown("json")
    if verbose or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return Shown("verbose" if verbose else "lines")
    return Shown("live", log_path(settings.port))


def _settings(**options: object) -> Settings:
    os.environ.update(environment_of({name: value for name, value in options.items() if value is not None}))
    settings = load_settings()
    # An invalid file must fail here, before Triton and the workers start.
    hooks(settings).check(settings)
    return settings


def _version(*, wanted: bool) -> None:
    if wanted:
        emit(__version__)
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[  # the callback does the work
        bool,
        typer.Option(
            "--version", callback=lambda value: _version(wanted=value), is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def up(
    spec: ModelSpec | None = None,
    *,
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Default model of requests (GATEWAY_MODEL): SOURCE, or the only one.",
            show_default=False,
        ),
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
    from gateway.findings import Level
    from gateway.server.serve import check_address
    from gateway_cli.model.add import add_to_serve
    from gateway_local.doctor.repository import models
    from gateway_local.up import up as run_up

    settings = _settings(host=host, port=port, workers=workers, model=model or (spec and spec.name))
    if spec is not None:
        service = running_on(settings.port, model_repository)
        add_to_serve(spec, model_repository, service["triton"] if service else None)
        if service:
            emit(*next_steps(settings, service, f"?model={spec.name}"))
            return
    if detach:
        check_address(settings)
        # What the options say is in the environment.
        words = ["up", f"--model-repository={model_repository}", f"--triton-port={triton_port}", "--verbose"]
        emit(*next_steps(settings, detached(settings.port, words)))
        return
    shown = _shown(settings, verbose=verbose)
    display = shown.display()
    if shown.log:
        display.say(f"Triton's log goes to {shown.log}; --verbose shows it here")
    configs, found = models(model_repository)
    if configs and found.level is not Level.OK:  # a warning only: Triton decides about the models
        display.say(f"warning: {found.text.replace(chr(10), ', ')}: {found.advice}")
    run_up(settings, model_repository, shown=shown, display=display, triton_port=triton_port)


app.command()(takes_spec(up, optional=True))


@app.command()
def serve(
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    triton: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Triton's gRPC address (GATEWAY_TRITON_URL).", show_default=False),
    ] = None,
) -> None:
    """Run the API in front of a Triton that runs elsewhere."""
    from gateway.server.serve import serve as run_serve

    run_serve(_settings(host=host, port=port, workers=workers, triton_url=triton))


@app.command()
def plugins() -> None:
    """List the installed plug-ins: name, version, on or off (GATEWAY_PLUGINS_OFF), hooks and settings."""
    for each in listings():
        emit(f"{each.name} {each.version} {each.state}")
        for title, names in (("hooks", each.hooks), ("settings", each.settings)):
            if names:
                emit(f"  {title}: {', '.join(names)}")


for command in (status, stop, reload, classify):
    app.command()(command)
app.command()(stream)


@app.command()
def doctor(
    model_repository: Repository = DEFAULT_MODEL_REPOSITORY,
    *,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Run the service for a minute: start, parity and speed. `gateway up` uses the measured costs.",
        ),
    ] = False,
    photo: Annotated[
        Path | None,
        typer.Option("--photo", help="JPEG that --run sends; by default the shipped one.", dir_okay=False, exists=True),
    ] = None,
) -> None:
    """Check the machine, settings, models and Triton; exits with 1 if a check fails.

    If GATEWAY_TRITON_URL is set, this checks that Triton instead of what `gateway up` needs.
    """
    from gateway.findings import Level
    from gateway_local.console import PlainConsole
    from gateway_local.doctor.report import examine, show, summary

    with PlainConsole(stderr=True).status("checking"):
        findings = list(examine(model_repository))
    if run and not any(finding.level is Level.FAIL for finding in findings):
        findings += _run_service(model_repository, photo)
    show(findings, PlainConsole())
    print_status(summary(findings))
    raise typer.Exit(any(finding.level is Level.FAIL for finding in findings))


def _run_service(model_repository: Path, photo: Path | None) -> "list[Finding]":
    from gateway_local.default_model import default_model
    from gateway_local.display import Lines
    from gateway_local.paths import SAMPLE, SHIPPED_EXAMPLES
    from gateway_models.proof.prove import prove

    settings = load_settings()
    settings = settings.model_copy(update={"model": default_model(model_repository, settings)})
    runtime = ensure_runtime(default_cache_dir(), print_status)
    display = Lines(log=lambda _: None)
    return list(prove(settings, model_repository, runtime, photo or SHIPPED_EXAMPLES / SAMPLE, display))


@triton_app.command("fetch", hidden=True)
def triton_fetch() -> None:
    """Fetch Triton into the cache, so that a later start needs no network."""
    runtime = ensure_runtime(default_cache_dir(), print_status)
    emit(runtime.tritonserver)


@triton_app.command("run")
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
        typer.Argument(help="More arguments of tritonserver, after --.", show_default=False),
    ] = None,
) -> None:
    """Run Triton alone, in the foreground; point `gateway serve` at it with GATEWAY_TRITON_URL.

    It is started again if it dies or hangs.
    """
    from gateway_local.up import run_triton

    settings, ports = load_settings(), (grpc_port, http_port, metrics_port)
    shown = _shown(settings, verbose=True)
    run_triton(settings, model_repository, host=host, ports=ports, shown=shown, arguments=arguments or ())


@triton_app.command("alive", hidden=True)
def triton_alive(
    address: Annotated[
        str | None,
        typer.Option(
            "--triton",
            metavar="HOST:PORT",
            help="Triton's gRPC address (GATEWAY_TRITON_URL).",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to send images to (GATEWAY_MODEL).", show_default=False)
    ] = None,
    patience: Annotated[float, typer.Option(help="Seconds of failure before it exits with 1.", min=0)] = 60.0,
) -> None:
    """Liveness probe: exits with 1 if Triton has failed real inferences for a minute.

    It fails only where a restart helps: not while models are loading or Triton is busy.
    """
    import asyncio

    from gateway.triton.opening import connector
    from gateway.triton.wire import Codecs
    from gateway_local.liveness import reason_to_restart

    settings = load_settings()
    target = address or settings.triton_url[0]

    async def check() -> str | None:
        endpoint = connector(settings)(target)
        try:
            codecs = Codecs.of_settings(settings)
            return await reason_to_restart(endpoint, model or settings.model, codecs=codecs, patience_seconds=patience)
        finally:
            await endpoint.close()

    if (reason := asyncio.run(check())) is not None:
        raise UserError(f"Triton has to be restarted: {reason}")
    print_status("Triton is alive")


def main() -> None:
    """Entry point: prints errors that users can fix as one sentence, without a traceback."""
    # A log that cannot be written must not stop a service.
    sys.stderr = cast("TextIO", LogStream(sys.stderr, lost_as_text))
    try:
        app()
    except (UserError, BulkError) as exc:
        lines = "\n  ".join(map(visible, exc.args))
        typer.secho(f"error: {lines}", err=True, fg="red")
        sys.exit(1)
    except OSError as exc:  # a folder without write permission, a full disk, a path that is too long
        if exc.strerror is None:
            raise
        names = " -> ".join(str(name) for name in (exc.filename, exc.filename2) if name is not None)
        typer.secho(f"error: {exc.strerror}{names and ': '}{visible(names)}", err=True, fg="red")
        sys.exit(1)
