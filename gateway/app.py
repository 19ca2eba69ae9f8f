"""Builds the ASGI application from the settings and the plug-ins."""

import math
import mimetypes
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from gateway.api.application import assemble, key_check
from gateway.api.request_context import State
from gateway.api.routes.health import is_ready
from gateway.environment import load_settings
from gateway.hooks import Plugin, Plugins, Runtime
from gateway.inference.backend import Backend
from gateway.inference.request import Observers
from gateway.inference.service import InferenceService
from gateway.inference.tools import BatchLimits, Tools
from gateway.ingest.decoder_pool import DecoderPool
from gateway.ingest.image_formats import CPU_SECONDS, DecodeLimits
from gateway.ingest.inspection import DecodePolicy
from gateway.limits.admission import Admission
from gateway.limits.pools import response_buffer, streams, upload_buffer
from gateway.logs import configure_logs
from gateway.machine.capacity import CALL_IMAGES
from gateway.machine.cores import usable_cores
from gateway.metrics import SHARED_FOLDER, reserve_space
from gateway.plugin_loading import check_used, installed, metrics_of, opened
from gateway.predict import image_steps, router
from gateway.server.allocator import keep_freed_memory
from gateway.server.connections import Connections, affordable_connections
from gateway.server.draining import draining_on_signals
from gateway.server.heartbeat import heartbeat
from gateway.settings import MIB, Settings
from gateway.timing import freeze_garbage
from gateway.triton.opening import connector, create_backend


def create_app(
    settings: Settings, backend: Backend | None = None, plugins: Sequence[type[Plugin]] | None = None
) -> FastAPI:
    """Create the gateway as an ASGI application; without a backend it calls the Triton at `settings.triton_url`.

    `plugins` are those to use; by default, all that are installed. Raises a UserError if the settings require something
    that cannot be read or is not installed: a file of keys, a certificate, a package of an extra.
    """
    kinds = [kind for kind in (installed() if plugins is None else plugins) if kind.name not in settings.plugins_off]
    check_used(settings, kinds)
    Plugins(kinds).check(settings)
    metrics_of(kinds)
    every = opened(settings, kinds)
    connect = connector(settings)
    # Everything that reports the limit must report the one that applies.
    settings = settings.model_copy(update={"max_connections": affordable_connections(settings.max_connections)})
    check = key_check(settings, every)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            with every.named():
                state = await start(app, stack)
            yield state

    async def start(app: FastAPI, stack: AsyncExitStack) -> State:
        # A gRPC channel belongs to the event loop and the process that created it, so it is created here.
        triton = backend or every.backend() or create_backend(settings, connect)
        stack.push_async_callback(triton.close)
        limits = DecodeLimits(
            CPU_SECONDS,
            settings.decode_memory_bytes,
            settings.max_image_pixels,
            settings.request_cpu_seconds,
        )
        decoders = await stack.enter_async_context(DecoderPool(_decoders(settings), limits=limits))
        service = _service(settings, triton, decoders, every, has_keys=check is not None)
        stack.push_async_callback(service.close)
        await triton.start()
        draining = stack.enter_context(draining_on_signals(settings.shutdown_delay_seconds))
        connections = Connections(settings.max_connections)
        state = State(
            settings=settings,
            service=service,
            plugins=every,
            uploads=upload_buffer(settings.max_bytes_waiting),
            responses=response_buffer(settings.max_bytes_unread),
            connections=connections,
            draining=draining,
            is_ready=lambda: is_ready(state, service.backend.health()),
            streams=streams(settings.max_streams),
            error_formats=every.error_formats(),
            websockets=every.websockets(),
            body_readers=every.body_readers(),
        )
        runtime = Runtime(
            app,
            state,
            service,
            state["uploads"],
            knows_key=(lambda _: True) if check is None else check.knows_key,
            upload_bound=(lambda _: None) if check is None else check.upload_bound,
            is_ready=state["is_ready"],
        )
        await stack.enter_async_context(every.lifespan(runtime))
        state["fetchers"] = every.fetchers()
        # Last, so that it ends before a plug-in that may block: see gateway.timing.
        beats = heartbeat(lambda: len(connections) > 0, every.owner_of)
        connections.first_came = await stack.enter_async_context(beats)
        return state

    with every.named():
        return assemble(settings, kinds, every, check, lifespan, router(every))


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
    tools = Tools(backend, admission, DecodePolicy.from_settings(settings), batches, decoders)
    steps = image_steps(plugins.steps(), has_keys=has_keys, on_demand=backend.loader is not None)
    return InferenceService(tools, steps, Observers(plugins.observers(tools)))
