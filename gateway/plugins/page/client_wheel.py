"""GET /client/: the Python client as a wheel, for `pip install` from the address of the service.

Every distribution of the gateway brings the wheel, in its own version: setup.py builds it.
"""

import asyncio
import hashlib
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryDirectory

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.api.route_table import Access, traits
from gateway.errors import NotFound
from gateway.plugins.page.client_build import build_client
from gateway.plugins.page.page import HEADERS

router = APIRouter(include_in_schema=False)

BROUGHT = Path(__file__).with_name("client")
"""The folder of the wheel that a distribution brings."""
CHECKOUT = Path(__file__).parents[3]
PEOPLE = """\
<!doctype html>
<html lang="en">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>triton-image-gateway-client</title>
<body>
<header class="top">
  <img src="../assets/icon.svg" alt="" width="28" height="28">
  <a class="brand" href="../">Triton image gateway</a>
  <nav aria-label="Service"><a href="../">Classify images</a> <a href="../docs">API docs</a></nav>
</header>
<main>
  <h1>The Python client of this service</h1>
  <div class="code-line box">
    <textarea id="code" rows="1" readonly aria-label="Command">pip install {address}{name}</textarea>
    <button id="copy" class="small" type="button">Copy</button>
  </div>
  <p class="fine">The wheel is {wheel}.</p>
</main>
<link rel="stylesheet" href="../assets/tokens.css">
<link rel="stylesheet" href="../assets/page.css">
<script type="module" src="../assets/client.js"></script>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A built distribution, by its file name."""

    name: str
    data: bytes
    sha256: str


@cache
def client_wheel() -> Wheel:
    """The wheel in this distribution; in a checkout, setuptools builds it now. Raises NotFound."""
    if brought := [*BROUGHT.glob("*.whl")]:
        return _read(brought[0])
    with TemporaryDirectory() as folder:
        try:
            return _read(build_client(CHECKOUT / "gateway_client", Path(folder)))
        except CalledProcessError as exc:
            text = "This checkout has no setuptools to build the client with; install ./gateway_client."
            raise NotFound(text) from exc


def _read(path: Path) -> Wheel:
    data = path.read_bytes()
    return Wheel(path.name, data, hashlib.sha256(data).hexdigest())


@router.get("/client/")
@traits(access=Access.OPEN)
async def folder(request: Request) -> Response:
    """A page for people, with a link to the wheel."""
    wheel = await asyncio.to_thread(client_wheel)
    link = f'<a href="{wheel.name}#sha256={wheel.sha256}">{wheel.name}</a>'
    page = PEOPLE.format(address=escape(f"{request.url.replace(query='')}"), name=wheel.name, wheel=link)
    return Response(page, media_type="text/html", headers=HEADERS)


@router.get("/client/{name}")
@traits(access=Access.OPEN)
async def file(request: Request, name: str) -> Response:
    """The wheel."""
    wheel = await asyncio.to_thread(client_wheel)
    if name != wheel.name:
        raise NotFound(f"There is nothing at this path; the client is at client/{wheel.name}.")
    headers = {**HEADERS, "ETag": f'"{wheel.sha256}"'}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(wheel.data, media_type="application/octet-stream", headers=headers)
