"""GET /limits: the limits of a request and of the service."""

from datetime import datetime

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
    UploadTooSlow,
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
from gateway.limits.pools import MIN_UPLOAD_BYTES_PER_SECOND, UPLOAD_GRACE_SECONDS
from gateway.plugins.keys.quota import Period, Priority
from gateway.plugins.keys.tenant import Tenant
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


class RateOut(Schema):
    """The rate of an API key."""

    images: int
    window_seconds: int
    """The time in which this number of images may come."""
    remaining: int | None
    """Images that could be sent at once after the last one; null before the first one."""


class PeriodOut(Schema):
    """The images of an API key in the current day or month of UTC."""

    images: int
    """The number that may come."""
    remaining: int
    resets_at: datetime
    """When the next day or month begins."""


class KeyQuotaOut(Schema):
    """The quota of the API key of the request; see docs/guides/keys.md."""

    name: str
    rate: RateOut | None
    """null without a limit."""
    per_day: PeriodOut | None
    """null without a limit."""
    per_month: PeriodOut | None
    """null without a limit."""
    share: float
    """Part of the images in flight, and weight while images wait."""
    max_images_in_flight: int
    """That part of one gateway process."""
    priority: Priority
    models: list[str] | None
    """The models that requests may name; null for all."""
    routes: list[str] | None
    """The paths that requests may use; null for all."""


class LimitsResponse(Schema):
    """The limits of a request and of the service."""

    limits: list[LimitOut]
    key: KeyQuotaOut | None = None
    """null unless the keys of the service have quotas."""


FIXED: FixedLimits = {
    "max_top_k": FixedLimit(MAX_TOP_K, "predictions", InvalidParameter, "Largest `top_k` of a request."),
    "max_predictions": FixedLimit(
        MAX_PREDICTIONS,
        "predictions",
        AnswerTooLarge,
        "Predictions in one response, files × `top_k`; ten scores under /v2 count as one, JSON lines not at all.",
    ),
    "min_upload_bytes_per_second": FixedLimit(
        MIN_UPLOAD_BYTES_PER_SECOND, "bytes/s", UploadTooSlow, "Lowest speed of an upload."
    ),
    "upload_grace_seconds": FixedLimit(
        UPLOAD_GRACE_SECONDS,
        "seconds",
        UploadTooSlow,
        "Time that an upload may fall behind `min_upload_bytes_per_second`.",
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
    """Every limit with its value, its unit, the error code if it is exceeded, and the variable that sets it, if any.

    `key` is the quota of the API key with which this is requested, if the keys of the service have quotas.
    """
    context = request_context(request)
    settings = context.settings
    variables = settings.variables()
    values = {name: FixedLimit(getattr(settings, name), *limit) for name, limit in settings.all_limits().items()}
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
    key = await _quota(context.caller) if isinstance(context.caller, Tenant) else None
    return LimitsResponse(limits=limits, key=key)


async def _quota(tenant: Tenant) -> KeyQuotaOut:
    quota, rate = tenant.quota, tenant.quota.rate
    periods = {}
    for period, images in quota.periods.items():
        window, used = await tenant.used(period)
        periods[period] = PeriodOut(images=images, remaining=max(images - used, 0), resets_at=window.ends)
    return KeyQuotaOut(
        name=tenant.name,
        rate=None
        if rate is None
        else RateOut(images=rate.images, window_seconds=rate.seconds, remaining=tenant.remaining),
        per_day=periods.get(Period.DAY),
        per_month=periods.get(Period.MONTH),
        share=quota.share or 1.0,
        max_images_in_flight=tenant.max_images_in_flight,
        priority=quota.priority,
        models=list(quota.models) or None,
        routes=list(quota.routes) or None,
    )
