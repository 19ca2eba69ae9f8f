"""GET /docs: the OpenAPI page, with Swagger UI served from here, as a network may have no way to a CDN."""

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)

ASSETS = "/docs/assets"
ASSETS_ROUTE = f"{ASSETS}/{{path:path}}"

files = StaticFiles(packages=[("fastapi_swagger", "resources")])


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The page on which every endpoint can be tried."""
    root = request.scope.get("root_path", "")
    return get_swagger_ui_html(
        openapi_url=f"{root}/openapi.json",
        title="Triton image gateway",
        swagger_js_url=f"{root}{ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{root}{ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{root}{ASSETS}/favicon-32x32.png",
        swagger_ui_parameters={"tryItOutEnabled": True, "displayRequestDuration": True, "deepLinking": True},
    )


@router.get(ASSETS_ROUTE)
async def asset(request: Request, path: str) -> Response:
    """One of its assets."""
    return await files.get_response(path, request.scope)


def add_docs(app: FastAPI) -> None:
    """Serve the page and its assets."""
    app.include_router(router)
