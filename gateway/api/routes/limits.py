"""GET /limits: the limits of a request and of the service."""

from fastapi import APIRouter, Request

from gateway.api.answers import MAX_PREDICTIONS
from gateway.api.request_context import request_context
from gateway.api.schemas import Schema
from gateway.errors import (
    AnswerTooLarge,
    HeadersTooLarge,
    ImageTooLarge,
    InvalidParameter,
    TooCostly,
    UploadTimeout,
)
from gateway.inference.result import MAX_TOP_K
from gateway.ingest.image_formats import CPU_SECONDS
from gateway.ingest.inspection import MAX_IMAGE_SIDE
from gateway.ingest.multipart import MAX_PART_HEADER_BYTES
from gateway.limits.account import (
    SECONDS_PER_IMAGE,
    SECONDS_PER_MEGABYTE,
    SECONDS_PER_MEGABYTE_OF_SLOW_CODECS,
    STREAM_SECONDS_PER_SECOND,
)
from gateway.limits.pools import MIN_UPLOAD_BYTES_PER_SECOND
from gateway.server.http import MAX_HEADER_BYTES, MAX_HEADERS
from gateway.settings import FixedLimit, FixedLimits, variable

router = APIRouter(tags=["service"])


class LimitOut(Schema):
    """One limit: its value, and the code of the error if it is exceeded."""

    name: str
    value: int | float
    unit: str
    code: str
    setting: str | None
    """The environment variable that sets it; null for a limit that is fixed or computed."""


class LimitsResponse(Schema):
    """The limits of a request and of the service."""

    limits: list[LimitOut]


FIXED: FixedLimits = {
    "max_top_k": FixedLimit(MAX_TOP_K, "predictions", InvalidParameter, "Largest `top_k` of a request."),
    "max_predictions": FixedLimit(
        MAX_PREDICTIONS,
        "predictions",
        AnswerTooLarge,
        "Predictions in one response, files × `top_k`; ten scores under /v2 count as one, JSON lines not at all.",
    ),
    "min_upload_bytes_per_second": FixedLimit(
        MIN_UPLOAD_BYTES_PER_SECOND, "bytes/s", UploadTimeout, "Lowest speed of an upload."
    ),
    "max_image_side": FixedLimit(MAX_IMAGE_SIDE, "pixels", ImageTooLarge, "Width or height of one image in pixels."),
    "max_header_bytes": FixedLimit(
        MAX_HEADER_BYTES,
        "bytes",
        HeadersTooLarge,
        "Bytes of a request's headers, and of its JSON header under /v2.",
    ),
    "max_headers": FixedLimit(MAX_HEADERS, "headers", HeadersTooLarge, "Headers of one request."),
    "max_part_header_bytes": FixedLimit(
        MAX_PART_HEADER_BYTES, "bytes", HeadersTooLarge, "Bytes of the headers of one multipart part."
    ),
    "decode_cpu_seconds": FixedLimit(
        CPU_SECONDS, "seconds", TooCostly, "Processor time for decoding one image in the gateway; less for a small one."
    ),
    "request_cpu_seconds_per_image": FixedLimit(SECONDS_PER_IMAGE, "seconds/image", TooCostly),
    "request_cpu_seconds_per_megabyte": FixedLimit(SECONDS_PER_MEGABYTE, "seconds/MB", TooCostly),
    "request_cpu_seconds_per_megabyte_of_slow_codecs": FixedLimit(
        SECONDS_PER_MEGABYTE_OF_SLOW_CODECS, "seconds/MB", TooCostly
    ),
    "stream_cpu_seconds_per_second": FixedLimit(STREAM_SECONDS_PER_SECOND, "seconds/s", TooCostly),
}
"""Limits of the core that are constants."""


@router.get("/limits", summary="The limits of a request and of the service")
async def get_limits(request: Request) -> LimitsResponse:
    """Every limit with its value, its unit, the error code if it is exceeded, and the variable that sets it, if any."""
    settings = request_context(request).settings
    variables = settings.variables()
    values = {
        name: FixedLimit(getattr(settings, name), each.unit, each.error) for name, each in settings.limits().items()
    }
    limits = [
        LimitOut(
            name=name,
            value=limit.value,
            unit=limit.unit,
            code=limit.error.code,
            setting=variable(name) if name in variables else None,
        )
        for name, limit in {**values, **FIXED, **settings.all_fixed_limits()}.items()
    ]
    return LimitsResponse(limits=limits)
