"""GET /: the web page for classifying images in a browser. GET /docs: the OpenAPI page.

The gateway serves Swagger UI itself, so that no CDN is needed.
"""

import asyncio
from collections.abc import Sequence
from os import PathLike, stat_result
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gateway.api.request_context import request_context
from gateway.api.route_table import Access, traits
from gateway.errors import NotFound
from gateway.plugins.page.model_examples import Example, examples_of, read_example
from gateway.values.validation import NAME_CHARACTERS

router = APIRouter(include_in_schema=False)

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
"""No external and no inline resources; `blob:` is for the preview of an image before it is uploaded."""

HEADERS = {
    # Revalidated on each request, mostly with 304, so that pages never run scripts of an older gateway.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


SHIPPED_EXAMPLES = {"cat.jpg": "tabby", "coffee.jpg": "espresso", "rocket.jpg": "missile"}
"""Pictures among the assets, each with a class of ImageNet: models with these classes offer them."""
IMAGENET_CLASSES = 1_000


class PageFiles(StaticFiles):
    """The page and its assets, each with the page's headers."""

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, or 304 if the client has it."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


METRICS_LINK = '\n      <a href="metrics">Metrics</a>'
STATIC = Path(__file__).with_name("static")
files = PageFiles(directory=STATIC)
swagger_files = StaticFiles(packages=[("fastapi_swagger", "resources")])


@router.get("/")
@traits(access=Access.OPEN)
async def page(request: Request) -> Response:
    """The page, without a link to metrics that need a key. Pages of GATEWAY_CORS_ORIGINS may have it in a frame."""
    settings = request_context(request).settings
    if settings.metrics_access is Access.OPEN:
        response = await files.get_response("index.html", request.scope)
    else:
        text = (STATIC / "index.html").read_text().replace(METRICS_LINK, "")
        response = Response(text, media_type="text/html", headers=HEADERS)
    response.headers["Content-Security-Policy"] = " ".join((CONTENT_SECURITY_POLICY, *settings.cors_origins))
    return response


@router.get("/assets/{path:path}")
@traits(access=Access.OPEN, polled=True)
async def asset(request: Request, path: str) -> Response:
    """An asset of the page; a route instead of a mount, so that the log and the metrics have its route."""
    return await _asset(files, request, path)


@router.get("/models/{name}/examples")
async def list_examples(request: Request, name: str) -> dict[str, list[dict[str, str | None]]]:
    """The example pictures of a model: from its folder in the repository, or the shipped ones for ImageNet's classes.

    Each has a `url` relative to the page's, and the `label` of what it shows, null if that is not known.
    """
    found = await _examples(request, name)
    listed: list[dict[str, str | None]] = [
        {"url": f"models/{name}/examples/{number}", "label": example.label} for number, example in enumerate(found)
    ]
    if not listed and _is_imagenet((await request_context(request).service.backend.model(name)).labels):
        listed = [{"url": f"assets/{file}", "label": None} for file in SHIPPED_EXAMPLES]
    return {"examples": listed}


@router.get("/models/{name}/examples/{number}")
async def example(request: Request, name: str, number: int) -> Response:
    """One of the pictures in a model's folder."""
    found = await _examples(request, name)
    data = await asyncio.to_thread(read_example, found[number]) if 0 <= number < len(found) else None
    if data is None:
        raise NotFound(f"The model {name!r} has no example {number}.")
    return Response(data, media_type=found[number].media_type, headers=HEADERS)


async def _examples(request: Request, name: str) -> Sequence[Example]:
    """The example pictures of a model; raises Forbidden or ModelNotFound."""
    context = request_context(request)
    context.check_model(name)
    await context.service.backend.model(name)
    repository = context.settings.model_repository
    return [] if repository is None else await asyncio.to_thread(examples_of, repository, name)


def _is_imagenet(labels: Sequence[str]) -> bool:
    """Whether these are the labels of ImageNet's 1,000 classes."""
    return len(labels) == IMAGENET_CLASSES and set(SHIPPED_EXAMPLES.values()) <= set(labels)


@router.get("/docs")
@traits(access=Access.OPEN)
async def docs(request: Request) -> Response:
    """The page with the documentation of every endpoint."""
    return await files.get_response("docs.html", request.scope)


@router.get("/docs/assets/{path:path}")
@traits(access=Access.OPEN, polled=True)
async def docs_asset(request: Request, path: str) -> Response:
    """One of Swagger UI's assets."""
    return await _asset(swagger_files, request, path)


async def _asset(folder: StaticFiles, request: Request, path: str) -> Response:
    try:
        return await folder.get_response(path, request.scope)
    except HTTPException:
        raise NotFound(f"There is no asset {path[:NAME_CHARACTERS]!r}.") from None
