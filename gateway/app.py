"""Builds the ASGI application from the settings."""

import importlib
import mimetypes
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from opentelemetry.trace import Tracer
from starlette.middleware.cors import CORSMiddleware

from gateway import __version__
from gateway.api import client_wheel, page
from gateway.api.auth import KeyCheck, document_keys
from gateway.api.middleware import RequestContextMiddleware, SecurityHeaders
from gateway.api.openapi import document_answers, document_images
from gateway.api.problems import add_handlers
from gateway.api.request_context import State
from gateway.api.route_table import RouteTable
from gateway.api.routes import embed, explain, feedback, health, limits, models, predict, stream
from gateway.api.routes.v2 import infer, metadata
from gateway.environment import load_settings
from gateway.inference.backend import Backend
from gateway.inference.batching import BatchLimits
from gateway.inference.prediction_log import PredictionLog
from gateway.inference.service import InferenceService
from gateway.ingest.decoders.budget import DecodeLimits
from gateway.ingest.decoders.pool import Decoders
from gateway.ingest.prepare import DecodePolicy
from gateway.keys import KeyFile
from gateway.limits.admission import Admission
from gateway.limits.connections import Connections
from gateway.limits.pools import Pool, response_buffer, streams, upload_buffer
from gateway.logs import configure_logs
from gateway.memory import usable_memory
from gateway.metrics import SHARED_FOLDER, reserve_space
from gateway.server.draining import draining_on_signals
from gateway.server.heartbeat import heartbeat
from gateway.server.open_files import affordable_connections
from gateway.server.workers import die_with_supervisor, shared_file
from gateway.settings import ModelsLoaded, Settings
from gateway.tenants.rates import ProcessRates, Rates, WorkerRates, require_client
from gateway.tenants.tenant import Tenants
from gateway.time_slices import keep_what_was_made
from gateway.tracing import require_sdk
from gateway.triton.footprint import check_load
from gateway.triton.health.state import Schedule
from gateway.triton.pool import Share, TritonPool
from gateway.triton.quarantine import Notes, Quarantine
from gateway.triton.seal import Seal
from gateway.triton.tls import Connect, connector
from gateway.triton.triton_backend import TritonBackend

if TYPE_CHECKING:
    from gateway.otlp import Exporter
    from gateway.urls.fetcher import Fetcher

ROUTERS = (
    predict.router,
    embed.router,
    explain.router,
    feedback.router,
    stream.router,
    models.router,
    models.admin_router,
    metadata.router,
    infer.router,
    limits.router,
    health.router,
    page.router,
    client_wheel.router,
)
ROUTES = RouteTable(ROUTERS)
PREDICTION_LOG = "gateway_predictions.service_log"
"""The module that opens the prediction log; imported only if there is one, since the service imports no package."""
DESCRIPTION = "Classify images: send them to `POST /predict`, get labels and scores for every file."


def create_app(settings: Settings, backend: Backend | None = None) -> FastAPI:
    """Create the gateway as an ASGI application; without a backend it calls the Triton at `settings.triton_url`.

    Raises KeysError if a file of API keys cannot be read, TlsError if a certificate cannot be used, TracingUnavailable
    if an endpoint for spans is set but OpenTelemetry's SDK is not installed, RateStoreUnavailable if a store of rates
    is set but its client is not, GrpcUnavailable if a port for gRPC is set but its packages are not installed, and
    UserError if predictions are to be logged or images to be fetched from buckets and what that needs is not installed.
    """
    if settings.grpc_port:
        from gateway.grpc_api.requirements import require_packages  # nothing of the folder is loaded without a port

        require_packages()
    exporter = _open_exporter(settings)
    prediction_log = _open_prediction_log(settings)
    create_fetcher = _fetching(settings)
    connect = connector(settings)
    # Everything that reports the limit must report the one that applies.
    settings = settings.model_copy(update={"max_connections": affordable_connections(settings.max_connections)})
    rates = _rates(settings)
    check = _key_check(settings, Tenants(settings, rates))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        # A gRPC channel belongs to the event loop and the process that created it, so it is created here.
        triton = backend or create_backend(settings, connect)
        limits = DecodeLimits(
            settings.decode_cpu_seconds,
            settings.decode_memory_bytes,
            settings.max_image_pixels,
            settings.request_cpu_seconds,
        )
        async with Decoders(settings.decoders, limits=limits) as decoders:
            service = InferenceService(
                triton,
                Admission(
                    max_images=settings.max_images_in_flight,
                    max_bytes=settings.max_bytes_in_flight,
                    max_images_waiting=settings.max_images_waiting,
                    max_wait_seconds=settings.max_wait_seconds,
                    decoders=settings.decoders,
                ),
                DecodePolicy.from_settings(settings),
                BatchLimits(settings.batch_max_images, settings.batch_max_bytes, settings.request_max_calls),
                decoders,
                settings.model_shadow,
                prediction_log,
                triton.loader,
            )
            uploads = upload_buffer(settings.max_bytes_waiting)
            fetcher = None if create_fetcher is None else create_fetcher(uploads)
            await triton.start()
            if prediction_log is not None:
                await prediction_log.start(decoders)
            with draining_on_signals(settings.shutdown_delay_seconds) as draining:
                connections = Connections(settings.max_connections)
                state = State(
                    settings=settings,
                    service=service,
                    uploads=uploads,
                    responses=response_buffer(settings.max_bytes_unread),
                    connections=connections,
                    draining=draining,
                    streams=streams(settings.max_streams),
                )
                if fetcher is not None:
                    state["fetcher"] = fetcher
                async with heartbeat(lambda: len(connections) > 0), _serve_grpc(app, state, check):
                    yield state
            if fetcher is not None:
                fetcher.close()
            await service.close()
            await triton.close()
            if prediction_log is not None:
                await prediction_log.close()
            await rates.close()
        if exporter is not None:
            exporter.close()

    app = FastAPI(
        title="Triton image gateway",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # After a redirect a client would upload the images again, behind a proxy even over plain http; a 404 names
        # the right path instead.
        redirect_slashes=False,
        # Generated clients use it as the name of their functions: predict, list_models, …
        generate_unique_id_function=lambda route: route.name,
    )
    _add_middleware(app, settings, check, None if exporter is None else exporter.tracer)
    add_handlers(app, ROUTES)
    for router in ROUTERS:
        if router is not models.admin_router or settings.admin_keys_file is not None:
            app.include_router(router)
    document_answers(app, ROUTES)
    if settings.fetch_urls:
        document_images(app, ROUTES, {"anyOf": [predict.IMAGE_IN_BASE64, predict.IMAGE_BY_URL]})
    ROUTES.create_series()
    return app


def create_backend(settings: Settings, connect: Connect | None = None) -> TritonBackend:
    """Create the backend for the settings; the caller starts it inside the event loop that uses it."""
    schedule = Schedule(
        settings.ready_interval_seconds, settings.ready_timeout_seconds, failures=settings.heal_after_failures
    )
    on_demand = settings.models_loaded is ModelsLoaded.DEMAND
    tritons = TritonPool(
        settings.triton_url,
        model_name=settings.model,
        schedule=schedule,
        heal=settings.heal,
        # With models on demand each Triton has others, so a gateway needs all of them.
        share=Share(0 if on_demand else settings.triton_aperture, settings.max_images_in_flight),
        splits=(settings.model_split, settings.model_shadow),
        load=settings.load_models,
        on_demand=on_demand,
        connect=connect or connector(settings),
    )
    seal = Seal(_cache_secret(settings))
    quarantine = Quarantine(settings.quarantine_seconds, notes=Notes(shared_file("quarantine")))
    hold_seconds = settings.max_wait_seconds if settings.hold_without_triton else 0.0
    check_load = _load_check(settings)
    if on_demand:
        from gateway.triton.demand.opening import open_backend  # loaded only if it is set

        return open_backend(
            settings, tritons, seal=seal, quarantine=quarantine, hold_seconds=hold_seconds, check_load=check_load
        )
    return TritonBackend(
        tritons,
        model_name=settings.model,
        seal=seal,
        quarantine=quarantine,
        hold_seconds=hold_seconds,
        check_load=check_load,
    )


def _load_check(settings: Settings) -> Callable[[str], str | None] | None:
    """The check of a model to load against this machine's memory; None if Triton runs on another machine."""
    repository = settings.model_repository
    if repository is None:
        return None
    return lambda name: check_load(name, repository, settings.memory_check, usable_memory())


def _cache_secret(settings: Settings) -> bytes:
    """The secret for keys of Triton's response cache; random if none is set."""
    return settings.cache_secret.get_secret_value().encode() if settings.cache_secret else secrets.token_bytes(32)


def _rates(settings: Settings) -> Rates:
    """Where the rates of API keys are counted; raises RateStoreUnavailable if a store is set without its client."""
    folder = shared_file("rates")
    local = ProcessRates() if folder is None else WorkerRates(folder)
    if settings.rate_store_url is None:
        return local
    require_client()
    from gateway.tenants.rate_store import StoredRates  # an optional dependency

    return StoredRates(settings.rate_store_url.get_secret_value(), local)


def _open_exporter(settings: Settings) -> "Exporter | None":
    """The exporter of spans, if an endpoint is set."""
    if settings.otlp_endpoint is None:
        return None
    require_sdk()
    from gateway.otlp import Exporter  # an optional dependency

    return Exporter(settings.otlp_endpoint)


def _open_prediction_log(settings: Settings) -> PredictionLog | None:
    """The log of predictions, if one is set."""
    if settings.log_predictions is None:
        return None
    log: PredictionLog = importlib.import_module(PREDICTION_LOG).open_log(settings)
    return log


def _fetching(settings: Settings) -> "Callable[[Pool], Fetcher] | None":
    """Creates what fetches images by URL, if any may be fetched."""
    if not settings.fetch_urls:
        return None
    from gateway.urls.buckets import open_buckets  # loaded only if it is configured
    from gateway.urls.fetcher import Fetcher

    return partial(Fetcher, settings, buckets=open_buckets(settings))


def _serve_grpc(app: FastAPI, state: State, check: KeyCheck | None) -> AbstractAsyncContextManager[None]:
    """The gRPC server, if a port for it is set."""
    if not state["settings"].grpc_port:
        return nullcontext()
    from gateway.grpc_api.server import serving  # optional dependencies

    return serving(
        app,
        state,
        knows_key=(lambda _: True) if check is None else check.knows_key,
        is_ready=lambda: health.is_ready(state, state["service"].backend.health()),
    )


def _key_check(settings: Settings, tenants: Tenants) -> KeyCheck | None:
    """The check of API keys, if there is a file of them."""
    keys = None if settings.api_keys_file is None else KeyFile(settings.api_keys_file)
    admin_keys = None if settings.admin_keys_file is None else KeyFile(settings.admin_keys_file, admin=True)
    return KeyCheck(keys, admin_keys, tenants) if keys or admin_keys else None


def _add_middleware(app: FastAPI, settings: Settings, check: KeyCheck | None, tracer: Tracer | None) -> None:
    """Add the middleware from the innermost to the outermost."""
    if check is not None:
        document_keys(app, ROUTES, admin_only=check.admin_only)
    app.add_middleware(RequestContextMiddleware, ROUTES, check, tracer)
    if settings.cors_origins:
        # Outside RequestContextMiddleware, so that pages can also read error responses. Preflight requests are
        # answered here, before the check of keys, because browsers send them without a key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=[
                "Authorization",
                "X-API-Key",
                "X-Request-ID",
                infer.HEADER_LENGTH,
                settings.model_split_header,
            ],
            expose_headers=[
                "RateLimit",
                "RateLimit-Policy",
                "Retry-After",
                "Server-Timing",
                "WWW-Authenticate",
                "X-Request-ID",
                infer.HEADER_LENGTH,
            ],
        )
    app.add_middleware(SecurityHeaders)


def create_app_from_environment() -> FastAPI:
    """Create the application in a worker process: read the settings from the environment and configure the logs."""
    die_with_supervisor()
    if (folder := os.environ.get(SHARED_FOLDER)) is not None:
        reserve_space(Path(folder))
    settings = load_settings()
    configure_logs(settings)
    app = create_app(settings)
    prepare(app)
    keep_what_was_made()
    return app


def prepare(app: FastAPI) -> None:
    """Do what would block the event loop during the first requests, for 0.1 s of processor time.

    FastAPI builds the routes of an included router when it is first asked for a match, and the first file of the page
    reads the system's table of media types.
    """
    for route in app.router.routes:
        route.matches({"type": "http", "method": "GET", "path": "", "root_path": "", "headers": []})
    mimetypes.init()
