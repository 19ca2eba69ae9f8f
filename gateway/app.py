"""Builds the ASGI application from the settings and the plug-ins: routes, middleware, and the parts of the service."""

import math
import mimetypes
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError

from gateway import __version__
from gateway.api import openapi
from gateway.api.auth import KeyCheck
from gateway.api.middleware import middleware
from gateway.api.problems import handle_validation_error
from gateway.api.route_table import RouteTable
from gateway.api.routes import health, limits, models
from gateway.draining import draining_on_signals
from gateway.environment import load_settings
from gateway.hooks import Plugin, Plugins, Runtime
from gateway.inference.backend import Backend, BatchLimits
from gateway.inference.request import Observers
from gateway.inference.service import InferenceService
from gateway.ingest.decoder_pool import DecoderPool
from gateway.ingest.image_formats import CPU_SECONDS, DecodeLimits
from gateway.ingest.upload import UploadLimits
from gateway.limits.admission import Admission
from gateway.limits.pools import response_buffer, streams, upload_buffer
from gateway.logs import configure_logs
from gateway.machine.capacity import CALL_IMAGES
from gateway.machine.cores import usable_cores
from gateway.metrics import SHARED_FOLDER, reserve_space
from gateway.plugin_loading import check_used, errors_of, metrics_of, opened, used
from gateway.predict import image_steps, router
from gateway.server.allocator import keep_freed_memory
from gateway.server.connections import CONNECTIONS, Connections, affordable_connections
from gateway.server.heartbeat import Heartbeat
from gateway.settings import MIB, Settings
from gateway.timing import freeze_garbage
from gateway.triton.opening import connector, create_backend

ROUTERS = (
    models.router,
    models.admin_router,
    health.router,
    limits.router,
    openapi.router,
)
DESCRIPTION = "Classify images: send them to `POST /predict`, get labels and scores for every file."


def create_app(
    settings: Settings, backend: Backend | None = None, plugins: Sequence[type[Plugin]] | None = None
) -> FastAPI:
    """Create the gateway as an ASGI application; without a backend it calls the Triton at `settings.triton_url`.

    `plugins` are those to use; by default, all that are installed. `app.state.routes` is its RouteTable. Raises a
    UserError if the settings require something that cannot be read or is not installed: a file of keys, a certificate,
    a package of an extra.
    """
    kinds = used(settings, plugins)
    check_used(settings, kinds)
    Plugins(kinds).check(settings)
    metrics_of(kinds)
    every = opened(settings, kinds)
    connect = connector(settings)
    # Everything that reports the limit must report the one that applies.
    settings = settings.model_copy(update={"max_connections": affordable_connections(settings.max_connections)})
    keys = KeyCheck(every.authenticators())
    keys.check_metrics(settings.metrics_access)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            with every.named():
                # A gRPC channel belongs to the event loop and the process that created it, so it is created here.
                triton = backend or every.backend() or create_backend(settings, connect)
                runtime = await _start(app, settings, triton, every, keys, stack)
                connections = Connections(settings.max_connections)
                # Last, so that it ends before a plug-in that may block: see gateway.timing.
                stack.enter_context(Heartbeat(lambda: len(connections) > 0, every.owner_of))
            yield {"runtime": runtime, CONNECTIONS: connections}

    with every.named():
        routers = (router(every), *ROUTERS, *every.routers())
        routes = RouteTable(routers, {health.METRICS_PATH: settings.metrics_access})
        app = FastAPI(
            middleware=[*every.middleware(), *middleware(settings, routes, keys)],
            exception_handlers={RequestValidationError: handle_validation_error},
            title="Triton image gateway",
            version=__version__,
            description=DESCRIPTION,
            lifespan=lifespan,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            # The plug-in otlp makes spans; FastAPI would look for providers in each request.
            telemetry={"tracing": False, "metrics": False, "logs": False},
            # Generated clients use it as the name of their functions: predict, list_models, …
            generate_unique_id_function=lambda route: route.name,
        )
        app.state.routes = routes
        codes = [each.code for each in errors_of(kinds)]
        openapi.complete(app, routes, every.error_formats(), codes, keys, every.document)
        for each in routers:
            if each is not models.admin_router or keys.has_admins:
                app.include_router(each)
        routes.create_series()
        return app


async def _start(
    app: FastAPI, settings: Settings, triton: Backend, plugins: Plugins, keys: KeyCheck, stack: AsyncExitStack
) -> Runtime:
    """Start the service; the stack ends it."""
    stack.push_async_callback(triton.close)
    limits = DecodeLimits(
        CPU_SECONDS,
        settings.decode_memory_bytes,
        settings.max_image_pixels,
        settings.request_cpu_seconds,
    )
    decoders = await stack.enter_async_context(DecoderPool(_decoders(settings), limits=limits))
    service = _service(settings, triton, decoders, plugins, has_keys=bool(keys.authenticators))
    stack.push_async_callback(service.close)
    await triton.start()
    draining = stack.enter_context(draining_on_signals(settings.shutdown_delay_seconds))
    runtime = Runtime(
        app=app,
        settings=settings,
        service=service,
        plugins=plugins,
        knows_key=keys.knows_key,
        upload_bound=keys.upload_bound,
        draining=draining,
        uploads=upload_buffer(settings.max_bytes_waiting),
        responses=response_buffer(settings.max_bytes_unread),
        streams=streams(settings.max_streams),
        error_formats=plugins.error_formats(),
        websockets=plugins.websockets(),
        body_readers=plugins.body_readers(),
    )
    await stack.enter_async_context(plugins.lifespan(runtime))
    runtime.fetchers = plugins.fetchers()
    return runtime


def create_app_from_environment() -> FastAPI:
    """Create the application in a worker process: read the settings from the environment and configure the logs."""
    if (folder := os.environ.get(SHARED_FOLDER)) is not None:
        reserve_space(Path(folder))
    keep_freed_memory()
    settings = load_settings()
    configure_logs(settings)
    app = create_app(settings)
    prepare(app)
    freeze_garbage()
    return app


def prepare(app: FastAPI) -> None:
    """Do work in advance that would block the event loop during the first requests, for 0.1 s of processor time.

    FastAPI builds the routes of an included router when it is first asked for a match, and the first file of the page
    reads the system's table of media types.
    """
    for route in app.router.routes:
        route.matches({"type": "http", "method": "GET", "path": "", "root_path": "", "headers": []})
    mimetypes.init()


CALL_BYTES = 8 * MIB
"""Padded bytes of one call to Triton; a larger image has its own call."""


def _batches(images_in_flight: int) -> BatchLimits:
    """The limits of calls: a bulk request leaves half of the images in flight to other requests."""
    calls = max(4, images_in_flight // CALL_IMAGES // 2)
    return BatchLimits(min(CALL_IMAGES, images_in_flight), CALL_BYTES, calls)


def _decoders(settings: Settings) -> int:
    """Child processes that decode images, one for each core; all but the first start only when images wait."""
    return min(32, math.ceil(settings.cores or usable_cores()))


def _service(
    settings: Settings, backend: Backend, decoders: DecoderPool, plugins: Plugins, *, has_keys: bool
) -> InferenceService:
    admission = Admission(
        max_images=settings.max_images_in_flight,
        max_bytes=settings.max_bytes_in_flight,
        max_images_waiting=settings.max_images_waiting,
        max_wait_seconds=settings.max_wait_seconds,
        decoders=decoders.count,
    )
    batches = _batches(settings.max_images_in_flight)
    steps = image_steps(plugins.steps(), has_keys=has_keys)
    service = InferenceService(backend, admission, UploadLimits.from_settings(settings), batches, decoders, steps)
    service.observers = Observers(plugins.observers(service))
    return service
