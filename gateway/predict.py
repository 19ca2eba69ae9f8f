"""POST /predict, from the form to the answer, in the order of events. Read this module first.

    1  server/connection.py, http.py              bytes become an HTTP request
    2  api/middleware.py                          id, API key, limits; the log event and the metrics at the end
    3  `predict` below                            parameters; the body is opened, and read as a stream of uploads
    4  api/body.py, ingest/multipart.py           each file of the form is an upload as soon as its last byte is there
    5  inference/request.py                       takes one upload after the other through the steps
    6  `image_steps` below                        charge, recognise, plan, wait for a permit, decode or pass on
    7  inference/service.py                       similar images share calls, also of several requests; signatures
    8  triton/backend.py, replica.py              which Triton, which ensemble; retries; which classes
    9  triton/wire.py, client.py                  padding, the gRPC call, its errors, and its answer as rows
   10  inference/service.py, request.py           each row becomes the result of its image, and permits are released
   11  api/answers.py                             results become the answer, in one of the `shapes`

FastAPI declares the route, writes its OpenAPI document, and serves most other routes. This one, as others that are
called often, is called by the middleware itself (the trait `direct`), since FastAPI's routing, dependencies and
response validation would take a third of the application's processor time for a request with one image. The parameters
are declared once, in api/parameters.py: `predict` parses them, and FastAPI documents them.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.api.answers import Native, respond
from gateway.api.parameters import NATIVE, image_route, open_uploads, predict_parameters, request_spec
from gateway.api.request_context import CONTEXT, RequestContext
from gateway.errors import DamagedImage, DeadlineExceeded, ImageError, InvalidParameter, Overloaded
from gateway.inference.answer_shape import AnswerShape
from gateway.inference.request import Image, Step, within
from gateway.inference.result import Selection
from gateway.ingest.image_formats import Header, expected_seconds, shrunk_bytes
from gateway.ingest.inspection import check_size, for_triton, inspect, needs_decoding
from gateway.limits.caller import ANYONE
from gateway.values.arguments import adapt

if TYPE_CHECKING:
    from gateway.hooks import Plugins

JSON = AnswerShape.media_type
CLASSIFIED = "At least one file was classified; each file has its own result."


def router(plugins: "Plugins") -> APIRouter:
    """The route, with the response formats and bodies of some plug-ins."""
    shapes: dict[str, AnswerShape] = {NATIVE: Native(), **plugins.shapes()}
    for shape in shapes.values():
        shape.item = adapt(shape.item, Native.item)  # type: ignore[method-assign]
        shape.around = adapt(shape.around, Native.around)  # type: ignore[method-assign,assignment]
    known = predict_parameters(tuple(shapes))
    schemas = [shape.documents for shape in shapes.values() if shape.media_type == JSON]
    others = {shape.media_type: {"schema": {"type": "string"}} for shape in shapes.values() if shape.media_type != JSON}
    expansions = plugins.expansions()
    api = APIRouter(tags=["classify"])

    ok = {"description": CLASSIFIED, **({"content": others} if others else {})}

    @image_route(api, "/predict", known, ok, summary="Classify images", response_model=reduce(or_, schemas))
    async def predict(request: Request) -> Response:
        """Classify one or more images. Each file gets its own result, in order: a bad file does not affect the others.

        Files are classified as they arrive, while the rest of a large upload is still being received.
        """
        context: RequestContext = request.scope["state"][CONTEXT]
        settings = context.settings
        parameters, body, uploads = await open_uploads(request, context, known)
        if parameters.frames is not None and "frames" not in expansions:
            raise InvalidParameter("'frames': this service has no plug-in for it.")
        if parameters.frames is not None and parameters.format != NATIVE:
            raise InvalidParameter("'frames': answers for each frame are available in the native format only.")
        spec = request_spec(
            request,
            context,
            model_name=parameters.model or settings.model,
            version=parameters.version,
            timeout_seconds=parameters.timeout,
            selection=Selection.of(parameters.top_k, parameters.threshold, parameters.labels, settings.default_top_k),
            expansion=None if parameters.frames is None else expansions["frames"](parameters.frames),
            strict=parameters.strict,
        )
        return await respond(context, spec, body, uploads, shapes[parameters.format])

    return api


def image_steps(plugin_steps: Sequence[Step] = (), *, has_keys: bool = True) -> tuple[Step, ...]:
    """The steps of an image, in their order, for all routes that classify; images.py has those for other routes.

    An image that waits for a plug-in, such as for its model to be loaded, has no permit yet: images of other requests
    pass it. The last step gives it to inference/service.py: it is signed, shares a call, and gets its result.
    """
    return (
        *((charge,) if has_keys else ()),
        recognise,
        *map(until_deadline, plugin_steps),
        expand,
        plan,
        wait_for_permit,
        decode_or_pass_on,
    )


def until_deadline(step: Step) -> Step:
    """The step of a plug-in, which is cancelled at the image's deadline."""

    async def run(image: Image) -> bool | None:
        return await within(image.deadline, step(image))

    return run


async def charge(image: Image) -> None:
    """Charge the image to the API key; the first one of a request is paid already."""
    spec = image.request.spec
    if spec.paid:
        spec.paid = False
    elif spec.caller is not ANYONE:
        await image.charge()


async def recognise(image: Image) -> None:
    """Find the format by the content, and the header; check both. The account grows by the cost of such a file.

    A decoder reads the header of a format that is never passed on, and of files whose header is not read here.
    """
    request, upload, account = image.request, image.upload, image.request.account
    nbytes, limits = len(upload.data), request.service.limits
    with request.stages["prepare"]:
        account.add_image(nbytes)
        account.check()
        if upload.error is not None:
            raise upload.error
        began = time.thread_time()
        try:
            found = inspect(upload.data, limits)
        finally:
            account.spend(time.thread_time() - began)
        if isinstance(found, Header):
            image.header = found
            return
        if found.traits.slow:
            account.add_slow_codec(nbytes)
        header = request.service.decoders.read_header(upload.data, found, account)
        image.header = await within(image.deadline, header)
    check_size(image.header, limits)


async def expand(image: Image) -> bool:
    """Make several images of the upload, if the request asks for that: frames of an animation, or masked copies."""
    expansion = image.request.spec.expansion
    return expansion is not None and await expansion.run(image)


async def plan(image: Image) -> None:
    """Decide whether the image is decoded here or in Triton's preprocessor, and pay the latter's processor time."""
    request, header = image.request, image.header
    assert header is not None
    if needs_decoding(header, request.service.limits) or request.tensor_input is not None:
        with request.stages["wait"]:
            image.size = await image.decoded_size()
        return
    image.decode_seconds = seconds = expected_seconds(header, len(image.upload.data))
    if not request.account.try_pay(seconds):
        with request.stages["wait"]:
            await within(image.deadline, request.account.pay(seconds))


async def wait_for_permit(image: Image) -> None:
    """Wait until the image may be in flight, by the bytes that it holds; meanwhile the request reads no upload."""
    request, data = image.request, image.upload.data
    if image.size is None:
        image.permit = await request.permit(len(data), image.deadline)
    else:
        assert image.header is not None
        nbytes = max(len(data), shrunk_bytes(image.header, image.size))
        image.permit = await request.permit(nbytes, image.deadline, expected_seconds(image.header, len(data)))


async def decode_or_pass_on(image: Image) -> None:
    """Give the image to the next call of its model; if it is decoded here, a new task decodes it first."""
    request = image.request
    if image.size is not None:
        request.spawn(_decode_and_add, image)  # while the next upload is read
        return
    assert image.header is not None
    image.payload = for_triton(image.upload.data, image.header)
    await request.service.add(image)


async def _decode_and_add(image: Image) -> None:
    try:
        await decode(image)
    except (ImageError, DeadlineExceeded, Overloaded) as error:
        image.permit.release()
        image.fail(error)
    else:
        await image.request.service.add(image)


async def decode(image: Image) -> None:
    """Decode the image in a decoder of the gateway; its permit shrinks to the result.

    Raises ImageError, DeadlineExceeded or Overloaded.
    """
    request, upload, header = image.request, image.upload, image.header
    assert header is not None
    assert image.size is not None
    pixels = request.service.decoders.decode(upload.data, header, image.size, request.account)
    with request.stages["prepare"]:
        image.payload, image.damaged = await within(image.deadline, pixels)
        if image.damaged and request.spec.strict:
            raise DamagedImage
    if request.spec.lowest_priority or not request.service.observers.keep_files:
        image.upload = replace(upload, data=b"")
    request.service.admission.decoded(image.permit, len(image.payload) + len(image.upload.data))
