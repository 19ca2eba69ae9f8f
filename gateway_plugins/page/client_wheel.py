"""GET /client/: the Python client as a wheel, for `pip install` from the address of the service.

The wheel is made from the files of the installed `gateway_client`, so every installation of the gateway has it, in the
gateway's own version, and nothing has to be built before. The folder is also a package index (PEP 503).
"""

import asyncio
import base64
import hashlib
import io
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway import __version__
from gateway.api.route_table import Access, traits
from gateway.errors import NotFound

router = APIRouter(include_in_schema=False)

PACKAGE = Path(__file__).parents[2] / "gateway_client"
PROJECT = "triton-gateway-client"
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date of a zip archive's member: equal files make equal wheels."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A built distribution, by its file name."""

    name: str
    data: bytes
    sha256: str


@cache
def client_wheel() -> Wheel:
    """The client's wheel (PyPA's binary distribution format 1.0), as its pyproject.toml describes it."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text("utf-8"))["project"]
    stem = f"{project['name'].replace('-', '_')}-{__version__}"
    info = f"{stem}.dist-info"
    modules = sorted(path for path in PACKAGE.rglob("*") if path.suffix == ".py" or path.name == "py.typed")
    members = {f"gateway_client/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes() for path in modules}
    members |= {f"{info}/licenses/{name}": (PACKAGE / name).read_bytes() for name in project["license-files"]}
    members[f"{info}/METADATA"] = _metadata(project).encode()
    members[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: triton-image-gateway\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    lines = [f"{name},sha256={_record_hash(content)},{len(content)}\n" for name, content in members.items()]
    members[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name, _FIRST_DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    data = file.getvalue()
    return Wheel(f"{stem}-py3-none-any.whl", data, hashlib.sha256(data).hexdigest())


def _metadata(project: dict[str, Any]) -> str:
    """Core metadata 2.4 of the fields that the client's pyproject.toml has."""
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", project["name"]),
        ("Version", __version__),
        ("Summary", project["description"]),
        ("License-Expression", project["license"]),
        ("Keywords", ",".join(project["keywords"])),
        *(("Classifier", each) for each in project["classifiers"]),
        ("Requires-Python", project["requires-python"]),
        ("Description-Content-Type", "text/markdown"),
        *(("License-File", each) for each in project["license-files"]),
        *(("Requires-Dist", each) for each in project["dependencies"]),
    ]
    readme = (PACKAGE / project["readme"]).read_text("utf-8")
    return "".join(f"{name}: {value}\n" for name, value in fields) + f"\n{readme}"


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@router.get("/client/")
@traits(access=Access.OPEN)
async def folder() -> Response:
    """A page for people, with a link to the wheel; of the index, the list of projects."""
    wheel = await asyncio.to_thread(client_wheel)
    return _html(
        f"<p>The Python client of this service: <code>pip install</code> with the address of "
        f"{_link(wheel.name, wheel)}.</p>\n"
        f'<p>As a package index: <a href="{PROJECT}/">{PROJECT}</a></p>'
    )


@router.get("/client/{name:path}")
@traits(access=Access.OPEN)
async def file(request: Request, name: str) -> Response:
    """The wheel, or the index's page of its project."""
    wheel = await asyncio.to_thread(client_wheel)
    if name == f"{PROJECT}/":
        return _html(_link(f"../{wheel.name}", wheel))
    if name != wheel.name:
        raise NotFound(f"There is nothing at this path; the client is at client/{wheel.name}.")
    headers = {**HEADERS, "ETag": f'"{wheel.sha256}"'}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(wheel.data, media_type="application/octet-stream", headers=headers)


def _link(address: str, wheel: Wheel) -> str:
    return f'<a href="{escape(address)}#sha256={wheel.sha256}">{escape(wheel.name)}</a>'


def _html(body: str) -> Response:
    text = (
        '<!doctype html>\n<html lang="en">\n<meta name="viewport" content="width=device-width">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{PROJECT}</title>\n<body>\n{body}\n</body>\n</html>\n'
    )
    return Response(text, media_type="text/html", headers=HEADERS)
