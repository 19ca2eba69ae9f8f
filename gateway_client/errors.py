"""The errors of the gateway, one type for each code, and those that arise in the client.

GatewayError
├── ImageError      one image failed; the others keep their results
├── RequestError    the whole request cannot be served as it was sent
└── ServiceError    the request is valid, but the service cannot serve it now
"""

from collections.abc import Mapping
from typing import Any, ClassVar

BY_CODE: dict[str, type["GatewayError"]] = {}
"""The type of each code of the gateway."""


class GatewayError(Exception):
    """An error of the gateway: a stable code, an HTTP status and a message with advice.

    `details` are further members of the problem document (RFC 9457), such as the limit that was exceeded and its
    value; `retry_after_seconds` is the value of the Retry-After header.
    """

    status: int = 500
    code: str = "unknown"
    retryable: ClassVar[bool] = False
    """Whether the same image may succeed when it is sent again later."""

    def __init_subclass__(cls, *, code: str | None = None, status: int = 500, retryable: bool = False) -> None:
        """Register the type of a code of the gateway."""
        super().__init_subclass__()
        if code is not None:
            cls.code, cls.status, cls.retryable = code, status, retryable
            BY_CODE[code] = cls

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.status = status or type(self).status
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.details = dict(details or {})


class ImageError(GatewayError):
    """One uploaded file failed; the other files of the request keep their results."""


class EmptyFile(ImageError, status=422, code="empty_file"):
    """The file has no bytes."""


class FileTooLarge(ImageError, status=413, code="file_too_large"):
    """The file has more bytes than `max_file_bytes`."""


class UnsupportedFormat(ImageError, status=415, code="unsupported_format"):
    """The bytes are not in a supported image format."""


class TruncatedImage(ImageError, status=422, code="truncated_image"):
    """The image ends before its format says it should."""


class InvalidImage(ImageError, status=422, code="invalid_image"):
    """The format is known, but the header cannot be read or contradicts itself."""


class ImageTooLarge(ImageError, status=422, code="image_too_large"):
    """Width, height or the number of pixels exceeds its limit."""


class UndecodableImage(ImageError, status=422, code="undecodable_image"):
    """Header and end are valid, but the decoder cannot decode the bytes between them."""


class DamagedImage(ImageError, status=422, code="damaged_image"):
    """The image can be decoded, but its data is damaged, and the request is `strict`."""


class TooCostly(ImageError, status=422, code="too_costly"):
    """Decoding takes more time or memory than an image of its size, or all images of a request, may take."""


class TooManyFrames(ImageError, status=422, code="too_many_frames"):
    """The request selects more frames than `max_frames`, or the file has more frames than the gateway can scan."""


class ImageCrashedModel(ImageError, status=422, code="image_crashed_model"):
    """The image crashed the model's process twice."""


class UrlNotAllowed(ImageError, status=422, code="url_not_allowed"):
    """The URL is invalid or outside of `fetch_urls`, or its host has an address that is not public or allowed."""


class FetchFailed(ImageError, status=422, code="fetch_failed"):
    """The URL's host could not be reached, or answered with something else than an image."""


class FetchTimeout(ImageError, status=422, code="fetch_timeout"):
    """The image of a URL did not arrive within `fetch_timeout_seconds`."""


class RequestError(GatewayError):
    """The whole request cannot be served as it was sent."""


class Unauthorized(RequestError, status=401, code="unauthorized"):
    """The request has no API key, or an unknown one."""


class InvalidRequest(RequestError, status=400, code="invalid_request"):
    """The bytes received are not HTTP (RFC 9112), or the URL cannot be parsed."""


class InvalidMultipart(RequestError, status=400, code="invalid_multipart"):
    """The multipart body does not follow RFC 7578."""


class InvalidBody(RequestError, status=400, code="invalid_body"):
    """The body does not match its Content-Type."""


class UnknownField(RequestError, status=400, code="unknown_field"):
    """A form field that is neither a file nor a parameter, or a member that the JSON body does not have."""


class NoFiles(RequestError, status=400, code="no_files"):
    """The request contains no image."""


class InvalidParameter(RequestError, status=422, code="invalid_parameter"):
    """A query parameter or header has a value that is not allowed."""


class AnswerTooLarge(RequestError, status=422, code="answer_too_large"):
    """The response would have more than `max_predictions` predictions."""


class TooManyFiles(RequestError, status=413, code="too_many_files"):
    """More files than `max_files` in one request."""


class RequestTooLarge(RequestError, status=413, code="request_too_large"):
    """The body has more bytes than `max_request_bytes`."""


class HeadersTooLarge(RequestError, status=431, code="headers_too_large"):
    """The headers of the request or of a multipart part exceed their limit."""


class UploadTimeout(RequestError, status=408, code="upload_timeout"):
    """The body did not arrive within the upload deadline."""


class UploadTooSlow(RequestError, status=408, code="upload_too_slow"):
    """The client sends less than `min_upload_bytes_per_second` for longer than `upload_grace_seconds`."""


class StreamIdle(RequestError, status=408, code="stream_idle"):
    """A stream received no frame for `stream_idle_seconds`."""


class UnsupportedMediaType(RequestError, status=415, code="unsupported_media_type"):
    """The Content-Type or the Content-Encoding is not supported."""


class NotFound(RequestError, status=404, code="not_found"):
    """No such path."""


class MethodNotAllowed(RequestError, status=405, code="method_not_allowed"):
    """The path exists, but not for this method."""


class UpgradeRequired(RequestError, status=426, code="upgrade_required"):
    """The path serves WebSockets only, and the request does not open one."""


class ModelNotFound(RequestError, status=404, code="model_not_found"):
    """Triton serves no such model or version."""


class NoFeatures(RequestError, status=422, code="no_features"):
    """The model has no embedding output: it was added without `--embeddings`."""


class Forbidden(RequestError, status=403, code="forbidden"):
    """The API key is valid but may not be used for this: it is no admin key, or its quota excludes it."""


class SequenceUnknown(RequestError, status=409, code="sequence_unknown"):
    """The request continues a sequence of which Triton has no state; start it again, with another id."""


class ModelInUse(RequestError, status=409, code="model_in_use"):
    """The default model cannot be unloaded."""


class ServiceError(GatewayError):
    """The request is valid, but the service cannot serve it now; a retry may help."""


class Overloaded(ServiceError, status=503, code="overloaded", retryable=True):
    """More images are in flight than the limits allow."""


class RateLimited(Overloaded, status=429, code="rate_limited", retryable=True):
    """The API key's rate of images is exceeded."""


class ModelUnavailable(ServiceError, status=503, code="model_unavailable", retryable=True):
    """Triton responds, but the model is loading or unloaded, or its process died."""


class ContractBroken(ServiceError, status=503, code="contract_broken"):
    """The model's tensors differ from those that the gateway sends and reads."""


class TritonUnreachable(ServiceError, status=503, code="triton_unreachable", retryable=True):
    """The gateway cannot connect to Triton."""


class DeadlineExceeded(ServiceError, status=504, code="deadline_exceeded", retryable=True):
    """The request's `timeout` passed before a response was ready."""


class InferenceFailed(ServiceError, status=502, code="inference_failed"):
    """Triton returned an error that no other code covers, or a response that breaks the model contract."""


class LoadFailed(ServiceError, status=502, code="load_failed"):
    """Triton could not load or unload a model; the message has Triton's reason."""


class InternalError(ServiceError, status=500, code="internal_error"):
    """A fault of the gateway itself; the log has the traceback under the request id."""


class UnreadableFile(ImageError):
    """The client cannot read the file; it was not sent."""

    status = 422
    code = "unreadable_file"


class ConnectionLost(GatewayError):
    """The connection broke before a response was ready."""

    status = 502
    code = "connection_lost"
    retryable = True


class Unreachable(GatewayError):
    """There is no gateway at the URL, or it was unreachable for longer than `retry_seconds`."""

    status = 502
    code = "unreachable"


class UnexpectedAnswer(GatewayError):
    """The server that answered is not this gateway."""

    status = 502
    code = "unexpected_answer"
