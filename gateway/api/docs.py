"""GET /docs: the OpenAPI page; the gateway serves Swagger UI itself, so that no CDN is needed."""

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from gateway.api.page import files as page_files

router = APIRouter(include_in_schema=False)

ASSETS_ROUTE = "/docs/assets/{path:path}"

files = StaticFiles(packages=[("fastapi_swagger", "resources")])


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The page with the documentation of every endpoint."""
    return await page_files.get_response("docs.html", request.scope)


@router.get(ASSETS_ROUTE)
async def asset(request: Request, path: str) -> Response:
    """One of Swagger UI's assets."""
    return await files.get_response(path, request.scope)


def add_docs(app: FastAPI) -> None:
    """Serve the page and its assets."""
    app.include_router(router)
