"""GET /docs: the OpenAPI page, with Swagger UI served from here, as a network may have no way to a CDN."""

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)

ASSETS = "/docs/assets"


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


def add_docs(app: FastAPI) -> None:
    """Serve the page and its assets."""
    app.include_router(router)
    app.mount(ASSETS, StaticFiles(packages=[("fastapi_swagger", "resources")]))
