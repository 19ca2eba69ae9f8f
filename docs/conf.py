"""The documentation's site, from the Markdown files of the whole project: their links hold in the repository too.

`make site` builds it into build/site, without a network; a link to a file or heading that does not exist is an error.
"""

import json
import re
import sys
from pathlib import Path
from shutil import copyfile

import fastapi_swagger
from sphinx.application import Sphinx

sys.path.append(str(Path(__file__).parent))
from tables import openapi

SWAGGER_UI = Path(fastapi_swagger.__file__).parent / "resources"
OPENAPI_PAGE = "docs/reference/http-api"

project = "Triton image gateway"
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design"]
root_doc = "docs/index"
FOLDERS = ("bench", "gateway_client", "native")
include_patterns = ["*.md", "docs/**.md", "deploy/helm/**.md", *(f"{folder}/*.md" for folder in FOLDERS)]
exclude_patterns = [
    ".*",
    "build",
    "docs/adr",
    "bench/*.py",
    "gateway",
    "gateway_local",
    "gateway_models",
    "tests",
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # as GitHub makes them
highlight_language = "none"
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]  # JSON with … in it

html_theme = "furo"
html_title = project
html_favicon = "../gateway/plugins/page/static/icon.svg"
html_logo = html_favicon
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["root"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}

copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"


def write_openapi(app: Sphinx) -> None:
    """Put the schema and Swagger UI into the site."""
    folder = Path(app.outdir, "_static", "openapi")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("swagger-ui.css", "swagger-ui-bundle.js"):
        copyfile(SWAGGER_UI / name, folder / name)
    # A script instead of JSON, so that the page works without a server too.
    (folder / "schema.js").write_text(f"const OPENAPI = {json.dumps(openapi())};\n")


def show_openapi(app: Sphinx, page: str, *_: object) -> None:
    """Load Swagger UI on the one page that shows it."""
    if page == OPENAPI_PAGE:
        app.add_css_file("openapi/swagger-ui.css")
        for name in ("openapi/swagger-ui-bundle.js", "openapi/schema.js", "openapi.js"):
            app.add_js_file(name)


def leave_out_records(_: Sphinx, __: str, source: list[str]) -> None:
    """Decision records are for contributors, and not on the site: links to them become text."""
    text = re.sub(r"\s\(\[(?:why|how)[^]]*\]\([^)]*adr/[^)]*\)\)", "", source[0])
    source[0] = re.sub(r"\[([^]]*)\]\([^)]*adr/[^)]*\)", r"\1", text)


def setup(app: Sphinx) -> None:
    """Connect to Sphinx's events."""
    app.connect("builder-inited", write_openapi)
    app.connect("html-page-context", show_openapi)
    app.connect("source-read", leave_out_records)
