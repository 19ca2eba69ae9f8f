"""POST /v2/models/{name}/infer: a tensor of images in, a tensor of scores out."""

import re
from collections import deque
from dataclasses import replace
from http import HTTPStatus

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import Response

from gateway.api.answers import Collected, PiecedAnswer, status_of
from gateway.api.body import Body, uploads_from
from gateway.api.parameters import request_spec
from gateway.api.request_context import request_context
from gateway.api.route_table import traits
from gateway.errors import InvalidBody, NoFiles
from gateway.inference.backend import Embeddings
from gateway.inference.result import Result
from gateway.plugins.oip.answer import OK, Scored, encode
from gateway.plugins.oip.documents import HEADER_LENGTH
from gateway.plugins.oip.reader import InferenceReader
from gateway.plugins.oip.routes.models import ModelName, ModelVersion
from gateway.plugins.oip.sequences import OpenSequences

NO_IMAGES = "The request has no images: the input IMAGE has no elements."
_LENGTH = re.compile(r"[1-9][0-9]{0,17}")


def infer_routes(sequences: OpenSequences) -> APIRouter:
    """The routes. `sequences` holds the sequences that clients have open."""
    router = APIRouter(include_in_schema=False)

    @router.post("/v2/models/{name}/infer")
    @traits(takes_images=True)
    async def infer(request: Request, name: ModelName) -> Response:
        """Classify the images of the input IMAGE by the version in use, or by the version that a split selects.

        A bad image does not affect the others: its row of PREDICTION is NaN (null in JSON), and STATUS has its
        error code.
        """
        return await _infer(request, name, None, sequences)

    @router.post("/v2/models/{name}/versions/{version}/infer")
    @traits(takes_images=True)
    async def infer_version(request: Request, name: ModelName, version: ModelVersion) -> Response:
        """Classify the images of the input IMAGE by one version; see `/v2/models/{name}/infer`."""
        return await _infer(request, name, version, sequences)

    return router


async def _infer(request: Request, model_name: str, version: str | None, sequences: OpenSequences) -> Response:
    context = request_context(request)
    service = context.service
    limits = service.limits
    body = Body(request, context)
    if body.announced_bytes > limits.max_request_bytes:
        raise limits.request_too_large()
    reader = InferenceReader(body, _header_length(request), limits, body.hold)
    with context.stats.stages["read"]:
        uploads = reader.uploads()
        first = await anext(uploads, None)
    if first is None:
        raise NoFiles(NO_IMAGES)
    inference = reader.request
    parameters = inference.parameters
    spec = request_spec(
        request,
        context,
        model_name=model_name,
        version=version,
        timeout_seconds=parameters.timeout / 1e6 if parameters.timeout else None,
        selection=None,
        embeddings=Embeddings.IF_ANY,
        client=str(parameters.sequence_id or ""),
    )
    collected = Collected(context)
    results = await collected.classify(spec, body, uploads_from(first, uploads))
    status = status_of(results)
    if status is not HTTPStatus.OK:
        return _failed(results, status)
    scored = Scored.of(results)
    if parameters.sequence_id:
        scores = [row if status == OK else None for row, status in zip(scored.scores, scored.statuses, strict=True)]
        states = await sequences.add_images(service.backend, parameters, spec, scores)
        scored = replace(scored, sequence=states)
    class_count = sum(min(output.class_count, scored.scores.shape[1]) for output in inference.outputs)
    collected.add_predictions(class_count * len(results))
    labels = await service.backend.labels(model_name, scored.model_version) if class_count else ()
    pieces, header_bytes = await encode(inference, model_name, scored, labels)
    collected.lease.grow(sum(map(len, pieces)))
    if header_bytes is None:
        return PiecedAnswer(deque(pieces), collected.lease)
    response = PiecedAnswer(deque(pieces), collected.lease, media_type="application/octet-stream")
    response.headers[HEADER_LENGTH] = str(header_bytes)
    return response


def _header_length(request: Request) -> int | None:
    given = request.headers.get(HEADER_LENGTH)
    if given is None:
        return None
    if not _LENGTH.fullmatch(given):
        raise InvalidBody(f"{HEADER_LENGTH} must be the length of the JSON in bytes; POST /predict takes a raw image.")
    return int(given)


def _failed(results: list[Result], status: HTTPStatus) -> Response:
    """Raise the error of a single image; report the first error of several images."""
    errors = [(result.index, result.error) for result in results if result.error is not None]
    index, error = errors[0]
    if len(errors) == 1:
        raise error
    sentence = f"None of the {len(errors)} images was classified: image {index}: {error.code}, {error.message}"
    return Response(to_json({"error": sentence}), status, media_type="application/json")
