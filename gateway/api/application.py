"""Assembles the FastAPI application: routes, middleware, error handlers and the OpenAPI document."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from gateway import __version__
from gateway.api import openapi
from gateway.api.auth import KeyCheck
from gateway.api.middleware import OriginCheck, middleware
from gateway.api.problems import add_handlers
from gateway.api.request_context import State
from gateway.api.route_table import Access, RouteTable
from gateway.api.routes import health, limits, models
from gateway.errors import UserError
from gateway.hooks import Plugin, Plugins
from gateway.plugin_loading import errors_of
from gateway.settings import MetricsAccess, Settings, variable

ROUTERS = (
    models.router,
    models.admin_router,
    health.router,
    limits.router,
    openapi.router,
)
METRICS_ACCESS = {MetricsAccess.OPEN: Access.OPEN, MetricsAccess.KEY: Access.KEY, MetricsAccess.ADMIN: Access.ADMIN}
DESCRIPTION = "Classify images: send them to `POST /predict`, get labels and scores for every file."
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[State]]


def assemble(
    settings: Settings,
    kinds: Sequence[type[Plugin]],
    plugins: Plugins,
    check: KeyCheck | None,
    lifespan: Lifespan,
    predict: APIRouter,
) -> FastAPI:
    """The application of the core and its plug-ins (their classes are `kinds`), with the route `predict`.

    `app.state.routes` is its RouteTable.
    """
    routers = (predict, *ROUTERS, *plugins.routers())
    routes = RouteTable(routers, {health.METRICS_PATH: METRICS_ACCESS[settings.metrics_access]})
    origins = OriginCheck(settings) if check is None or check.admin_only else None
    app = FastAPI(
        middleware=[*plugins.middleware(), *middleware(routes, check, origins, _cors(settings))],
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
        # The plug-in otlp makes spans; FastAPI would look for providers in each request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        # Generated clients use it as the name of their functions: predict, list_models, …
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.routes = routes
    codes = [each.code for each in errors_of(kinds)]
    openapi.complete(app, routes, plugins.error_formats(), codes, check, plugins.document)
    add_handlers(app, routes)
    for router in routers:
        if router is not models.admin_router or (check is not None and check.has_admins):
            app.include_router(router)
    routes.create_series()
    return app


def key_check(settings: Settings, plugins: Plugins) -> KeyCheck | None:
    """The check of keys, if there is one; raises UserError without one that the settings require."""
    authenticators, access = plugins.authenticators(), settings.metrics_access
    if authenticators:
        check = KeyCheck(authenticators)
        if access is MetricsAccess.KEY and check.admin_only:
            raise UserError(f"{variable('metrics_access')}={access}, and only the keys of admins are checked")
        return check
    if access is not MetricsAccess.OPEN:
        raise UserError(f"{variable('metrics_access')}={access}, and no plug-in checks keys")
    return None


def _cors(settings: Settings) -> Sequence[Middleware]:
    """The CORS middleware, which lets web pages of other origins send requests."""
    if not settings.cors_origins:
        return ()
    return (
        Middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["*"],
        ),
    )
