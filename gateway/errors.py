"""The errors that the gateway returns; plug-ins add others, see gateway.hooks.Plugin.errors.

An ImageError is the result of one file, and the other files of the request keep theirs. A RequestError is the
client's to correct, and after a ServiceError a retry may help. docs/reference/errors.md has the table of all.

The message is public: it states what is wrong and what to do, without internal details. Details for operators go into
the exception's cause (`raise … from exc`), which is logged.

A new code stands also, for a file, in `FILE_FAULTS` of gateway/plugins/page/static/entry.js; for the service, in
`SERVICE_CODES` of gateway_client/errors.py, and in the chart's alerts of error codes (files/alerts.yml).
"""

import traceback
from collections.abc import Collection
from http import HTTPStatus
from typing import ClassVar, Self

PROBLEM_MEDIA_TYPE = "application/problem+json"
MAX_MESSAGE_BYTES = 1_000
"""Longest message of an error: some repeat what a client has sent."""


class GatewayError(Exception):
    """Base class: an HTTP status, a stable code and a public message.

    `details` are additional members of the problem document, such as the limit that was exceeded and its value.
    """

    status: ClassVar[HTTPStatus] = HTTPStatus.INTERNAL_SERVER_ERROR
    code: ClassVar[str] = "internal_error"
    summary: str = "The gateway failed"

    def __init__(self, message: str | None = None, **details: object) -> None:
        self.message = _bounded(message) if message is not None else f"{self.summary}."
        self.details = details
        super().__init__(self.message)


class ImageError(GatewayError):
    """One uploaded file failed; the other files of the request keep their results."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY


class EmptyFile(ImageError):
    """The file has no bytes."""

    code, summary = "empty_file", "The file is empty"


class FileTooLarge(ImageError):
    """The file has more bytes than `max_file_bytes`."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code, summary = "file_too_large", "The file is too large"


class UnsupportedFormat(ImageError):
    """The bytes are not in a supported image format."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code, summary = "unsupported_format", "The file is not an image of a supported format"


class TruncatedImage(ImageError):
    """The image ends before its format says it should."""

    code, summary = "truncated_image", "The image is cut off"


class InvalidImage(ImageError):
    """The format is known, but the header cannot be read or contradicts itself."""

    code, summary = "invalid_image", "The image's header is damaged"


class ImageTooLarge(ImageError):
    """Width, height or the number of pixels exceeds its limit."""

    code, summary = "image_too_large", "The image has too many pixels"


class UndecodableImage(ImageError):
    """Header and end are valid, but the decoder cannot decode the bytes between them."""

    code, summary = "undecodable_image", "The image cannot be decoded"


class DamagedImage(ImageError):
    """The image can be decoded, but its data is damaged, and the request is `strict`."""

    code, summary = "damaged_image", "The image is damaged: some of its pixels are wrong"


class TooCostly(ImageError):
    """Decoding takes more time or memory than an image of its size, or all images of a request, may take."""

    code, summary = "too_costly", "Decoding exceeds the time or memory allowed for an image of this size"


class TooManyFrames(ImageError):
    """The request selects more frames than `max_frames`, or the file has more frames than the gateway can scan."""

    code, summary = "too_many_frames", "The file has too many frames"


class ImageCrashedModel(ImageError):
    """A process of the model died during a call with the image, and again when the image was sent alone."""

    code, summary = "image_crashed_model", "The image crashed the model's process twice"


class RequestError(GatewayError):
    """The whole request cannot be served as it was sent."""

    status = HTTPStatus.BAD_REQUEST


class Unauthorized(RequestError):
    """The request has no API key, or an unknown one."""

    status = HTTPStatus.UNAUTHORIZED
    code, summary = "unauthorized", "An API key is required"
    challenge = "Bearer"
    """The value of the header WWW-Authenticate (RFC 6750, section 3)."""


class InvalidRequest(RequestError):
    """The bytes received are not HTTP (RFC 9112), or the URL cannot be parsed."""

    code, summary = "invalid_request", "The request is not HTTP"


class InvalidMultipart(RequestError):
    """The multipart body does not follow RFC 7578."""

    code, summary = "invalid_multipart", "The multipart body is malformed"


class InvalidBody(RequestError):
    """The body does not match its Content-Type."""

    code, summary = "invalid_body", "The body is malformed"


class UnknownField(RequestError):
    """A form field that is neither a file nor a parameter, or a member that the JSON body does not have."""

    code, summary = "unknown_field", "The body has an unknown field"


class NoFiles(RequestError):
    """The request contains no image."""

    code, summary = "no_files", "The request has no files"


class InvalidParameter(RequestError):
    """A query parameter or header has a value that is not allowed."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code, summary = "invalid_parameter", "A parameter is invalid"


class AnswerTooLarge(RequestError):
    """The response would have more than `max_predictions` predictions."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code, summary = "answer_too_large", "The answer would be too large"


class TooManyFiles(RequestError):
    """More files than `max_files` in one request."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code, summary = "too_many_files", "The request has too many files"


class RequestTooLarge(RequestError):
    """The body has more bytes than `max_request_bytes`."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code, summary = "request_too_large", "The request is too large"


class HeadersTooLarge(RequestError):
    """The headers of the request or of a multipart part exceed their limit."""

    status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    code, summary = "headers_too_large", "The headers are too large"


class UploadTimeout(RequestError):
    """The body did not arrive within the upload deadline, or is too slow."""

    status = HTTPStatus.REQUEST_TIMEOUT
    code, summary = "upload_timeout", "The upload took too long"


class StreamIdle(RequestError):
    """A stream received no frame for `stream_idle_seconds`."""

    status = HTTPStatus.REQUEST_TIMEOUT
    code, summary = "stream_idle", "The stream was silent for too long"


class UnsupportedMediaType(RequestError):
    """The Content-Type or the Content-Encoding is not supported."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code, summary = "unsupported_media_type", "The Content-Type is not supported"

    @classmethod
    def encoded(cls) -> Self:
        """The error for a body with a Content-Encoding."""
        error = cls("Content-Encoding: send the body uncompressed; images are compressed already.")
        error.summary = "The Content-Encoding is not supported"
        return error


class NotFound(RequestError):
    """No such path."""

    status = HTTPStatus.NOT_FOUND
    code, summary = "not_found", "There is nothing at this path"


class MethodNotAllowed(RequestError):
    """The path exists, but not for this method."""

    status = HTTPStatus.METHOD_NOT_ALLOWED
    code, summary = "method_not_allowed", "The method is not allowed here"
    allowed = ""
    """The value of the header Allow (RFC 9110, section 10.2.1)."""

    @classmethod
    def of(cls, method: str, path: str, allowed: Collection[str]) -> Self:
        """The error for a method on a path with other methods, or with a WebSocket alone."""
        instead = f": send {' or '.join(sorted(allowed))}" if allowed else ""
        error = cls(f"{method} is not allowed on {path}{instead}; see /docs.")
        error.allowed = ", ".join(sorted(allowed))
        return error


class ModelNotFound(RequestError):
    """Triton serves no such model or version."""

    status = HTTPStatus.NOT_FOUND
    code, summary = "model_not_found", "There is no such model"


class NoFeatures(RequestError):
    """The model has no embedding output: it was added without `--embeddings`."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code, summary = "no_features", "The model gives no vectors"


def no_features(model_name: str) -> NoFeatures:
    """The error for an embedding request to a model without embeddings, with the command that adds them."""
    return NoFeatures(
        f"The model {model_name!r} gives no vectors: add it under another name with `gateway model add … "
        "--embeddings`, and ask for that; 'embedding_size' in GET /models says which models give some."
    )


class Forbidden(RequestError):
    """The API key may not be used for this, or a request without one is for another host or of another site's page."""

    status = HTTPStatus.FORBIDDEN
    code, summary = "forbidden", "The request is not allowed"


class ModelInUse(RequestError):
    """The default model cannot be unloaded."""

    status = HTTPStatus.CONFLICT
    code, summary = "model_in_use", "The model is in use"


class SequenceUnknown(RequestError):
    """The request continues a sequence without a state in Triton: it has not begun, was idle too long, or was lost."""

    status = HTTPStatus.CONFLICT
    code, summary = "sequence_unknown", "The sequence has no state"


class ServiceError(GatewayError):
    """The request is valid, but the service cannot serve it now; a retry may help."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    retry_after_seconds: int | None = 1
    """The Retry-After header of the response, or None if a retry would not help."""


class Overloaded(ServiceError):
    """More images are in flight than the limits allow."""

    code, summary = "overloaded", "Too many images are in flight"


class RateLimited(Overloaded):
    """The API key has sent the images of its rate, day or month."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code, summary = "rate_limited", "The key's limit of images is reached"

    def __init__(self, message: str | None = None, *, retry_after_seconds: int | None = 1, **details: object) -> None:
        super().__init__(message, **details)
        self.retry_after_seconds = retry_after_seconds


class ModelUnavailable(ServiceError):
    """Triton responds, but the model is loading or unloaded, or its process died."""

    code, summary = "model_unavailable", "The model is not available"
    retry_after_seconds = 5


class ContractBroken(ServiceError):
    """The model's tensors differ from those that the gateway sends and reads."""

    code, summary = "contract_broken", "The model does not fit the gateway's contract"
    retry_after_seconds = None


class TritonUnreachable(ServiceError):
    """The gateway cannot connect to Triton."""

    code, summary = "triton_unreachable", "The inference server cannot be reached"
    retry_after_seconds = 5


class DeadlineExceeded(ServiceError):
    """The request's `timeout` passed before a response was ready."""

    status = HTTPStatus.GATEWAY_TIMEOUT
    code, summary = "deadline_exceeded", "The deadline passed before a response was ready"


class InferenceFailed(ServiceError):
    """Triton returned an error that no other code covers, or a response that breaks the model contract."""

    status = HTTPStatus.BAD_GATEWAY
    code, summary = "inference_failed", "The inference server could not answer"
    retry_after_seconds = None


class LoadFailed(ServiceError):
    """Triton could not load or unload a model; the message has Triton's reason."""

    status = HTTPStatus.BAD_GATEWAY
    code, summary = "load_failed", "The model could not be loaded"
    retry_after_seconds = None


class InternalError(ServiceError):
    """A fault of the gateway itself; the log has the traceback under the request id."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    code, summary = "internal_error", "The gateway failed"
    retry_after_seconds = None


def _bounded(message: str) -> str:
    """The beginning and the end of a message of more than MAX_MESSAGE_BYTES."""
    data = message.encode(errors="replace")
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    half = MAX_MESSAGE_BYTES // 2
    return f"{data[:half].decode(errors='ignore')} … {data[-half:].decode(errors='ignore')}"


class UserError(Exception):
    """Stops a command; each argument is printed as a line, and the message states what to do.

    Line breaks within an argument, as a file name may have them, are escaped.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class AlreadyLogged(Exception):
    """An exception that has been logged; it is raised again so that the server closes the connection."""


def clear_frames(error: BaseException) -> None:
    """Clear the local variables that an error's tracebacks keep alive, such as parts of an upload.

    The error may live until the client has read the response. If one of the variables holds the error itself, all of
    them live until the next full garbage collection, which blocks the event loop.
    """
    errors, seen = [error], set[int]()
    while errors:
        found = errors.pop()
        if id(found) not in seen:
            seen.add(id(found))
            traceback.clear_frames(found.__traceback__)
            errors += filter(None, (found.__cause__, found.__context__))


def problem_document(error: GatewayError, request_id: str) -> dict[str, object]:
    """The problem document of an error: the members of RFC 9457, the code, the request id, and the error's details."""
    return {
        "type": "about:blank",
        "title": error.summary,
        "status": int(error.status),
        "code": error.code,
        "detail": error.message,
        "request_id": request_id,
        **error.details,
    }
