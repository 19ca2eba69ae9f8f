"""GET /label: the page to label logged images, and what it asks. A child process reads the log.

The page sends the labels to POST /feedback, as every other client does.
"""

import asyncio
import base64
import json
import sys
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.api.request_context import request_context
from gateway.api.route_table import Access, traits
from gateway.errors import NotFound, Overloaded
from gateway.settings import variable
from gateway_plugins.page.page import HEADERS, files

READER = "gateway_predictions.labelling"
TIMEOUT_SECONDS = 60.0
"""Longest time for one response of the child; a large log takes long to read. The child is replaced then."""
IDLE_SECONDS = 600.0
"""The child ends after this time without a request."""
MAX_LINE_BYTES = 256 * 2**20
"""Bytes of one response: an image in base64."""
TYPES = {"jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp", "bmp": "image/bmp", "gif": "image/gif"}
"""Formats of the log that browsers show, and that run no script. Others have no preview."""
HOW = "This service offers no images to label: its operator has to set {}=true, {}=true, and {} to a folder or bucket."
Model = Annotated[str, Query(min_length=1, max_length=128)]


class Labelling:
    """A child process that reads the log of this service; started by the first request."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, **request: str) -> Any:  # noqa: ANN401  # JSON
        """The response to a request; raises Overloaded if the log cannot be read."""
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    answer = await self._exchange(request)
            except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as exc:
                self.close()
                raise Overloaded("The log of predictions cannot be read now; try again later.") from exc
            except asyncio.CancelledError:
                self.close()  # its response would be taken for the next one
                raise
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.close)
        if isinstance(answer, dict) and "error" in answer:
            raise Overloaded("The log of predictions cannot be read now; try again later.") from OSError(
                answer["error"]
            )
        return answer

    def close(self) -> asyncio.subprocess.Process | None:
        """Kill the child, and return it; the event loop collects it."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
        return process

    async def end(self) -> None:
        """Kill the child, and wait until it has ended."""
        if self._idle is not None:
            self._idle.cancel()
        if (process := self.close()) is not None:
            await process.communicate()

    async def _exchange(self, request: dict[str, str]) -> Any:  # noqa: ANN401  # JSON
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", READER, self._url),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_LINE_BYTES,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        await self._process.stdin.drain()
        return json.loads(await self._process.stdout.readuntil(b"\n"))


def router(labelling: Labelling | None) -> APIRouter:
    """The routes; all but the page itself get 404 where `labelling` is None."""
    routes = APIRouter(include_in_schema=False)

    def reader(request: Request, model: str) -> Labelling:
        """The reader of the log; raises Forbidden for a model that the key may not use, or NotFound where it is off."""
        context = request_context(request)
        context.check_model(model)
        context.log_fields["model"] = model
        if labelling is None:
            raise NotFound(HOW.format(*map(variable, ("label_queue", "log_predictions_images", "log_predictions"))))
        return labelling

    @routes.get("/label")
    @traits(access=Access.OPEN)
    async def label_page(request: Request) -> Response:
        """The page itself."""
        return await files.get_response("label.html", request.scope)

    @routes.post("/label/next")
    async def next_to_label(request: Request, model: Model) -> dict[str, Any]:
        """The next image of a model, which nobody else gets for some minutes; null if none is left."""
        return {"image": await reader(request, model).ask(do="next", model=model)}

    @routes.get("/label/overview")
    async def label_overview(request: Request, model: Model) -> dict[str, Any]:
        """How many images of a model are labelled, and its accuracy and drift by day."""
        found: dict[str, Any] = await reader(request, model).ask(do="overview", model=model)
        return found

    @routes.get("/label/image")
    async def image_to_label(
        request: Request, model: Model, path: Annotated[str, Query(min_length=1, max_length=512)]
    ) -> Response:
        """A logged image, by the path that /label/next gave."""
        found = await reader(request, model).ask(do="image", model=model, path=path)
        if found is None:
            raise NotFound("The log no longer has this image.")
        media_type = TYPES.get(path.rpartition(".")[2], "application/octet-stream")
        headers = {**HEADERS, "Cache-Control": "no-store"}
        return Response(base64.b64decode(found["data"]), media_type=media_type, headers=headers)

    return routes
