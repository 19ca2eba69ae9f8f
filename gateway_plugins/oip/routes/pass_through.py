"""Requests for models of Triton that classify no images, by an allow-list."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus

import anyio
from fastapi import Request
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from tritonclient.grpc import service_pb2 as pb

from gateway.api.answers import hold_response
from gateway.api.body import Body
from gateway.api.pieces import PiecedAnswer
from gateway.api.request_context import RequestContext, request_context
from gateway.deadline import Deadline
from gateway.errors import DeadlineExceeded, GatewayError, Overloaded
from gateway.inference.request_spec import timeout_within
from gateway.inference.scope import Scope
from gateway.limits.pools import PoolLease
from gateway_plugins.oip import tensors
from gateway_plugins.oip.documents import HEADER_LENGTH
from gateway_plugins.oip.settings import ProtocolSettings
from gateway_plugins.oip.triton_calls import as_document, call
from gateway_plugins.shared.whole_body import read_whole


def passes_through(context: RequestContext, name: str) -> bool:
    """Whether requests for a model are passed through to Triton as they are."""
    return name in ProtocolSettings.of(context.settings).v2_models


async def infer(body: Body, context: RequestContext, name: str, version: str, header_bytes: int | None) -> Response:
    """Run the model on the tensors of a request, which counts as the images of its batch.

    A request whose client disconnects ends; its call to Triton, once begun, runs on and keeps its permit.
    """
    settings = context.settings
    context.check_model(name)
    context.log_fields["model"] = name
    with context.stats.stages["read"]:
        data = await read_whole(body, ProtocolSettings.of(settings).v2_max_tensor_bytes, "v2_max_tensor_bytes")
    request = await tensors.read(data, header_bytes)
    seconds = request.timeout_microseconds / 1e6 if request.timeout_microseconds else None
    deadline = Deadline.after(
        timeout_within(seconds, default=settings.default_timeout_seconds, most=settings.max_timeout_seconds)
    )
    request.message.model_name, request.message.model_version = name, version
    async with Scope() as scope:
        answering = scope.start(_call(context, request.message, len(data), deadline))
        disconnected = scope.start(_disconnected(body))
        await asyncio.wait({answering, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        answer = answering.result()
    pieces, json_bytes = await tensors.encode(answer, request)
    held = hold_response(context)
    return tensor_answer(pieces, json_bytes, held)


def tensor_answer(pieces: Sequence[bytes], header_bytes: int | None, held: PoolLease) -> PiecedAnswer:
    """A response of JSON, or of `header_bytes` of JSON and binary data behind it; counts its bytes in `held`."""
    held.grow(sum(map(len, pieces)))
    if header_bytes is None:
        return PiecedAnswer(deque(pieces), held)
    response = PiecedAnswer(deque(pieces), held, media_type="application/octet-stream")
    response.headers[HEADER_LENGTH] = str(header_bytes)
    return response


async def _call(
    context: RequestContext, message: pb.ModelInferRequest, body_bytes: int, deadline: Deadline
) -> pb.ModelInferResponse:
    """Charge the batch, wait for a permit, and call Triton once."""
    settings, service, caller = context.settings, context.service, context.charges.caller
    if (images := _batch_size(message, body_bytes)) > 1:  # the first one was charged before the body was read
        await caller.charge(deadline.left_seconds, context.stats.stages, images - 1)
    with service.admission.permits(caller.share) as permits:
        left_seconds, max_wait_seconds = deadline.left_seconds, settings.max_wait_seconds
        with context.stats.stages["wait"], anyio.move_on_after(min(left_seconds, max_wait_seconds)) as waiting:
            permit = await permits.acquire(body_bytes)
        if waiting.cancelled_caught:
            if max_wait_seconds >= left_seconds:
                raise DeadlineExceeded
            raise Overloaded(
                f"The request could not be processed within {max_wait_seconds:g} s; try again later.",
                limit="max_wait_seconds",
                value=max_wait_seconds,
            )
        message.parameters["timeout"].int64_param = max(1, int(deadline.left_seconds * 1e6))
        work = service.backend.call("ModelInfer", message.model_name, message.SerializeToString(), deadline)
        answer = None
        with context.stats.stages["infer"], anyio.move_on_after(deadline.left_seconds):
            # Triton works on it until the call ends, whoever still waits, and the permit is kept as long.
            answer = await service.tools.uncancelled.run(work, (permit,))
        if answer is None:
            raise DeadlineExceeded
    return pb.ModelInferResponse.FromString(answer)


async def get_metadata(request: Request, name: str, version: str | None) -> Response:
    """What Triton says of a model."""
    context = request_context(request)
    context.check_model(name)
    answer = await call(context, "ModelMetadata", pb.ModelMetadataRequest(name=name, version=version or ""))
    document = as_document(pb.ModelMetadataResponse.FromString(answer))
    return Response(to_json(document), media_type="application/json")


async def is_ready(request: Request, name: str, version: str | None) -> bool:
    """Whether Triton says that a model is ready."""
    context = request_context(request)
    context.check_model(name)
    try:
        answer = await call(context, "ModelReady", pb.ModelReadyRequest(name=name, version=version or ""))
    except GatewayError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise
        return False
    return bool(pb.ModelReadyResponse.FromString(answer).ready)


async def _disconnected(body: Body) -> None:
    """Return when the client has disconnected."""
    with suppress(ClientDisconnect):
        await body.wait_for_disconnect()


def _batch_size(message: pb.ModelInferRequest, body_bytes: int) -> int:
    """The first dimension of the first input, at least 1; a row has at least one byte of the body."""
    shape = message.inputs[0].shape if message.inputs else ()
    return max(1, min(shape[0], body_bytes)) if shape else 1
