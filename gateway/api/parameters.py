"""The parameters of `POST /predict`; for all routes, parsing of parameters and the specification of a request."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends
from fastapi import Query as QueryParameter
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, create_model
from starlette.requests import HTTPConnection, Request

from gateway.api.body import Body
from gateway.api.request_context import RequestContext
from gateway.api.route_table import Endpoint, traits
from gateway.api.schemas import FAULTS, REQUEST_BODY
from gateway.errors import InvalidParameter
from gateway.inference.backend import Backend, Embeddings
from gateway.inference.request_spec import Expansion, RequestSpec
from gateway.inference.result import LABELS_HINT, Selection
from gateway.ingest.upload import Uploads
from gateway.limits.caller import ANYONE
from gateway.values.validation import NAME_CHARACTERS, VERSION_PATTERN, fault, near

P = TypeVar("P", bound=BaseModel)

LISTS = frozenset({"labels"})
"""Parameters that may be repeated."""

FRAMES_PATTERN = r"^(all|[1-9][0-9]{0,5})$"
"""The values of `frames`: a number, or all."""

NATIVE = "native"
"""The name of this service's own response format."""

CLIENT_HEADER = "X-Client-ID"
"""The header whose value ties a client to one version of a model; without it the version is random."""

MAX_REPORTED = 10
"""Invalid parameters that one response reports."""

_CACHE_SIZE, _CACHED_BYTES = 1_024, 512
"""Size of the cache of parsed query strings, and longest cached one: most clients always send the same."""


MIN_TIMEOUT_SECONDS = 0.001
"""Shortest timeout that a client may request; any network takes longer."""

TopK = Annotated[int | None, Field(ge=1)]
ModelName = Annotated[str | None, Field(min_length=1, max_length=256)]
ModelVersion = Annotated[str | None, Field(pattern=VERSION_PATTERN)]
TimeoutSeconds = (
    Annotated[float, Field(allow_inf_nan=False), WithJsonSchema({"type": "number", "minimum": MIN_TIMEOUT_SECONDS})]
    | None
)
"""The limits are in `check_timeout`."""


class PredictParameters(BaseModel):
    """Parameters of `POST /predict`: in the query, or as multipart fields of the same names, best before the files."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    top_k: TopK = None
    """Predictions for each file, best first; the default and the largest value are settings."""
    threshold: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    """Only classes with at least this score; default 0.5 for a multi-label model unless `top_k` is set."""
    labels: Annotated[list[str], Field(max_length=1_000)] = []
    """Only classes with these labels; repeat the parameter for several."""
    model: ModelName = None
    """A model of `GET /models`; the default is a setting."""
    version: ModelVersion = None
    """A version of the model; default: the version in use."""
    timeout: TimeoutSeconds = None
    """Deadline for each file in seconds, from its last byte on."""
    frames: Annotated[str | None, Field(max_length=32, json_schema_extra={"pattern": FRAMES_PATTERN})] = None
    """Frames of animations that get a result each: a number, evenly spread, or all."""
    strict: bool = False
    """Whether a damaged JPEG is refused; by default its result has `warning`."""
    format: str = NATIVE
    """The format of the response: this service's own, or that of another service."""


@lru_cache
def predict_parameters(formats: tuple[str, ...]) -> type[PredictParameters]:
    """The parameters with the possible values of `format`."""
    # The OpenAPI document names this class, and generated clients with it.
    shape = StrEnum("Shape", {name.upper(): name for name in formats})  # type: ignore[misc]  # no literal
    shape.__doc__ = "The format of a response."
    description = PredictParameters.model_fields["format"].description
    return create_model(
        "PredictParameters", __base__=PredictParameters, format=(shape, Field(shape(NATIVE), description=description))
    )


def query_parameters(parameters: type[P], query_string: bytes) -> P:
    """Parse a query string as FastAPI does; raises InvalidParameter."""
    return cast("P", (_cached_parse if len(query_string) <= _CACHED_BYTES else _parse)(parameters, query_string))


async def open_uploads(request: Request, context: RequestContext, parameters: type[P]) -> tuple[P, Body, Uploads]:
    """Parse the parameters of the query and of the form's fields, and open the body for its uploads.

    Raises InvalidParameter, and what `Body` and `Body.open_uploads` raise.
    """
    of_query = query_parameters(parameters, request.scope["query_string"])
    with context.stats.stages["read"]:
        body = Body(request, context)
        form, uploads = await body.open_uploads(tuple(parameters.model_fields))
    if not form:
        return of_query, body, uploads
    # Fields of the form override the query; the last value of a repeated one counts.
    fields = {name: values if name in LISTS else values[-1] for name, values in form.items()}
    with reading(parameters):
        given = parameters.model_validate({**of_query.model_dump(exclude_none=True), **fields})
    return given, body, uploads


def image_route(
    router: APIRouter,
    path: str,
    parameters: type[BaseModel],
    ok: dict[str, Any],
    **documentation: Any,  # noqa: ANN401  # see APIRouter.post
) -> Callable[[Endpoint], Endpoint]:
    """Declare an endpoint that takes images, and parses `parameters` itself, by `open_uploads`; `ok` describes 200."""

    def documented(given: Annotated[parameters, QueryParameter()]) -> None:  # type: ignore[valid-type]
        """Declares the parameters in the OpenAPI document."""

    def declare(endpoint: Endpoint) -> Endpoint:
        route = router.post(
            path,
            responses={200: ok, **FAULTS},
            openapi_extra={"requestBody": REQUEST_BODY},
            dependencies=[Depends(documented)],
            **documentation,
        )
        return route(traits(takes_images=True, direct=True)(endpoint))

    return declare


def _parse(parameters: type[BaseModel], query_string: bytes) -> BaseModel:
    given: dict[str, Any] = {}
    for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name in LISTS and name in parameters.model_fields:
            given.setdefault(name, []).append(value)
        else:
            given[name] = value  # the last value of a repeated parameter counts
    with reading(parameters):
        return parameters.model_validate(given)


_cached_parse = lru_cache(_CACHE_SIZE)(_parse)


def invalid_parameter(errors: list[dict[str, object]], known: Iterable[str]) -> InvalidParameter:
    """Convert pydantic's errors to one message that names each parameter; `known` are the parameters of the route."""
    sentences = []
    for error in errors[:MAX_REPORTED]:
        loc = error["loc"]
        name = str(loc[-1]) if isinstance(loc, tuple) and loc else "request"
        if error["type"] == "extra_forbidden":
            meant = near(name, known)
            sentences.append(
                f"{name[:NAME_CHARACTERS]!r} is not a parameter of this request{f'; {meant}' if meant else '.'}"
            )
        else:
            sentences.append(f"{name!r}: {fault(error)}.")
    if len(errors) > MAX_REPORTED:
        sentences.append(f"And {len(errors) - MAX_REPORTED} more.")
    return InvalidParameter(" ".join(sentences))


@contextmanager
def reading(parameters: type[BaseModel]) -> Iterator[None]:
    """Convert pydantic's ValidationError for a client's parameters to InvalidParameter.

    Any other ValidationError is a bug; therefore the application has no exception handler for ValidationError.
    """
    try:
        yield
    except ValidationError as exc:
        errors = [dict(error) for error in exc.errors()]
        raise invalid_parameter(errors, parameters.model_fields) from None


def check_timeout(seconds: float, most: float) -> None:
    """Raise InvalidParameter for a timeout beyond its limits."""
    if not seconds >= MIN_TIMEOUT_SECONDS:
        raise InvalidParameter(
            f"'timeout': must be at least {MIN_TIMEOUT_SECONDS:g} s.",
            limit="min_timeout_seconds",
            value=MIN_TIMEOUT_SECONDS,
        )
    if seconds > most:
        raise InvalidParameter(f"'timeout': must be at most {most:g} s.", limit="max_timeout_seconds", value=most)


async def named_class(
    backend: Backend, model_name: str, version: str, label: str | None, class_id: int | None
) -> tuple[str | None, int | None]:
    """The label and the class that a client names by either; (None, None) if it names none.

    The class is None for a label that several classes share. Raises InvalidParameter if the model does not have it, and
    what `Backend.labels` raises.
    """
    labels = list(await backend.labels(model_name, version))
    if class_id is not None:
        if class_id >= len(labels):
            raise InvalidParameter(f"'class_id': the model {model_name!r} has the classes 0 to {len(labels) - 1}.")
        return labels[class_id], class_id
    if label is None:
        return None, None
    count = labels.count(label)
    if not count:
        raise InvalidParameter(
            f"'label': the model {model_name!r} has no label {label[:NAME_CHARACTERS]!r}; {LABELS_HINT}"
        )
    return label, labels.index(label) if count == 1 else None


def request_spec(
    request: HTTPConnection,
    context: RequestContext,
    *,
    model_name: str,
    version: str | None,
    timeout_seconds: float | None,
    selection: Selection | None,
    expansion: Expansion | None = None,
    embeddings: Embeddings = Embeddings.NONE,
    strict: bool = False,
    client: str = "",
) -> RequestSpec:
    """Create the specification of a request; without a version, the model's rollout may choose one.

    A client always gets the same one; it is identified by CLIENT_HEADER, or else by `client`.

    Raises InvalidParameter if the timeout exceeds its limit, and Forbidden if the API key may not use the model.
    """
    settings = context.settings
    if timeout_seconds is not None:
        check_timeout(timeout_seconds, settings.max_timeout_seconds)
    rollout = None if version is not None else context.service.backend.rollout(model_name)
    split = rollout is not None and len(rollout.shares) > 1
    if rollout is not None and split:
        version = rollout.choose(model_name, request.headers.get(CLIENT_HEADER, "") or client)
    context.log_fields["model"] = model_name
    if context.caller is not ANYONE:
        context.check_model(model_name)
    return RequestSpec(
        model_name=model_name,
        model_version=version or "",
        selection=selection,
        embeddings=embeddings,
        timeout_seconds=settings.default_timeout_seconds if timeout_seconds is None else timeout_seconds,
        request_id=context.request_id,
        split=split,
        expansion=expansion,
        route=context.route.path if context.route else "",
        key=context.log_fields.get("key", ""),
        address=request.client.host if request.client else "",
        strict=strict,
        stats=context.stats,
        caller=context.caller,
        paid=context.charged,
    )
