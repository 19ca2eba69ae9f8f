"""What the gateway answers in place of a result, as types. Written by docs/client_errors.py: do not edit."""

from collections.abc import Mapping
from typing import Any, ClassVar


class GatewayError(Exception):
    """An answer other than a result: a stable code, an HTTP status and a message that says what to do.

    `details` are further members of the problem document (RFC 9457), such as the limit that was broken and its value;
    `retry_after_seconds` is what the Retry-After header said.
    """

    status: int = 500
    code: str = "unknown"
    retryable: ClassVar[bool] = False
    """Whether the same picture may have an answer a little later."""

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


class EmptyFile(ImageError):
    """The file has no bytes."""

    status = 422
    code = "empty_file"


class FileTooLarge(ImageError):
    """The file has more bytes than `max_file_bytes`."""

    status = 413
    code = "file_too_large"


class UnsupportedFormat(ImageError):
    """The bytes are not in a supported image format."""

    status = 415
    code = "unsupported_format"


class TruncatedImage(ImageError):
    """The image ends before its format says it should."""

    status = 422
    code = "truncated_image"


class InvalidImage(ImageError):
    """The format is known, but the header cannot be read or contradicts itself."""

    status = 422
    code = "invalid_image"


class ImageTooLarge(ImageError):
    """Width, height or the number of pixels exceeds its limit."""

    status = 422
    code = "image_too_large"


class UndecodableImage(ImageError):
    """Header and end are valid, but the decoder cannot decode the bytes between them."""

    status = 422
    code = "undecodable_image"


class TooCostly(ImageError):
    """Decoding takes more time or memory than an image of its size, or all images of a request, may take."""

    status = 422
    code = "too_costly"


class TooManyFrames(ImageError):
    """The request selects more frames than `max_frames`, or the file has more frames than the gateway can scan."""

    status = 422
    code = "too_many_frames"


class ImageQuarantined(ImageError):
    """The image crashed a model's process twice, and is refused for `quarantine_seconds`."""

    status = 422
    code = "image_quarantined"


class RequestError(GatewayError):
    """The whole request cannot be served as it was sent."""


class Unauthorized(RequestError):
    """The request has no API key, or an unknown one."""

    status = 401
    code = "unauthorized"


class InvalidRequest(RequestError):
    """The bytes received are not HTTP (RFC 9112), or the URL cannot be parsed."""

    status = 400
    code = "invalid_request"


class InvalidMultipart(RequestError):
    """The multipart body does not follow RFC 7578."""

    status = 400
    code = "invalid_multipart"


class InvalidBody(RequestError):
    """The body does not match its Content-Type."""

    status = 400
    code = "invalid_body"


class UnknownField(RequestError):
    """A form field that is neither a file nor a parameter, or a member that the JSON body does not have."""

    status = 400
    code = "unknown_field"


class NoFiles(RequestError):
    """The request contains no image."""

    status = 400
    code = "no_files"


class InvalidParameter(RequestError):
    """A query parameter or header has a value that is not allowed."""

    status = 422
    code = "invalid_parameter"


class AnswerTooLarge(RequestError):
    """The response would have more than `max_predictions` predictions."""

    status = 422
    code = "answer_too_large"


class TooManyFiles(RequestError):
    """More files than `max_files` in one request."""

    status = 413
    code = "too_many_files"


class RequestTooLarge(RequestError):
    """The body has more bytes than `max_request_bytes`."""

    status = 413
    code = "request_too_large"


class HeadersTooLarge(RequestError):
    """The headers of the request or of a multipart part exceed their limit."""

    status = 431
    code = "headers_too_large"


class UploadTimeout(RequestError):
    """The body did not arrive within the upload deadline."""

    status = 408
    code = "upload_timeout"


class UploadTooSlow(RequestError):
    """The client sends less than `min_upload_bytes_per_second` for longer than `upload_grace_seconds`."""

    status = 408
    code = "upload_too_slow"


class StreamIdle(RequestError):
    """A stream received no frame for `stream_idle_seconds`."""

    status = 408
    code = "stream_idle"


class UnsupportedMediaType(RequestError):
    """The Content-Type or the Content-Encoding is not supported."""

    status = 415
    code = "unsupported_media_type"


class NotFound(RequestError):
    """No such path."""

    status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The path exists, but not for this method."""

    status = 405
    code = "method_not_allowed"


class UpgradeRequired(RequestError):
    """The path serves WebSockets only, and the request does not open one."""

    status = 426
    code = "upgrade_required"


class ModelNotFound(RequestError):
    """Triton serves no such model or version."""

    status = 404
    code = "model_not_found"


class NoFeatures(RequestError):
    """The model has no embedding output: it was added without `--features`."""

    status = 422
    code = "no_features"


class Forbidden(RequestError):
    """The API key is valid but is not an admin key."""

    status = 403
    code = "forbidden"


class ModelInUse(RequestError):
    """The default model cannot be unloaded."""

    status = 409
    code = "model_in_use"


class ServiceError(GatewayError):
    """The request is valid, but the service cannot serve it now; a retry may help."""


class Overloaded(ServiceError):
    """More images are in flight than the limits allow."""

    status = 503
    code = "overloaded"
    retryable = True


class ModelUnavailable(ServiceError):
    """Triton responds, but the model is loading or unloaded, or its process died."""

    status = 503
    code = "model_unavailable"
    retryable = True


class ContractBroken(ServiceError):
    """The model's tensors differ from those that the gateway sends and reads."""

    status = 503
    code = "contract_broken"


class TritonUnreachable(ServiceError):
    """The gateway cannot connect to Triton."""

    status = 503
    code = "triton_unreachable"
    retryable = True


class DeadlineExceeded(ServiceError):
    """The request's `timeout` passed before a response was ready."""

    status = 504
    code = "deadline_exceeded"
    retryable = True


class InferenceFailed(ServiceError):
    """Triton returned an error that no other code covers, or a response that breaks the model contract."""

    status = 502
    code = "inference_failed"


class LoadFailed(ServiceError):
    """Triton could not load or unload a model; the message has Triton's reason."""

    status = 502
    code = "load_failed"


class InternalError(ServiceError):
    """A fault of the gateway itself; the log has the traceback under the request id."""

    status = 500
    code = "internal_error"


BY_CODE: dict[str, type[GatewayError]] = {
    "empty_file": EmptyFile,
    "file_too_large": FileTooLarge,
    "unsupported_format": UnsupportedFormat,
    "truncated_image": TruncatedImage,
    "invalid_image": InvalidImage,
    "image_too_large": ImageTooLarge,
    "undecodable_image": UndecodableImage,
    "too_costly": TooCostly,
    "too_many_frames": TooManyFrames,
    "image_quarantined": ImageQuarantined,
    "unauthorized": Unauthorized,
    "invalid_request": InvalidRequest,
    "invalid_multipart": InvalidMultipart,
    "invalid_body": InvalidBody,
    "unknown_field": UnknownField,
    "no_files": NoFiles,
    "invalid_parameter": InvalidParameter,
    "answer_too_large": AnswerTooLarge,
    "too_many_files": TooManyFiles,
    "request_too_large": RequestTooLarge,
    "headers_too_large": HeadersTooLarge,
    "upload_timeout": UploadTimeout,
    "upload_too_slow": UploadTooSlow,
    "stream_idle": StreamIdle,
    "unsupported_media_type": UnsupportedMediaType,
    "not_found": NotFound,
    "method_not_allowed": MethodNotAllowed,
    "upgrade_required": UpgradeRequired,
    "model_not_found": ModelNotFound,
    "no_features": NoFeatures,
    "forbidden": Forbidden,
    "model_in_use": ModelInUse,
    "overloaded": Overloaded,
    "model_unavailable": ModelUnavailable,
    "contract_broken": ContractBroken,
    "triton_unreachable": TritonUnreachable,
    "deadline_exceeded": DeadlineExceeded,
    "inference_failed": InferenceFailed,
    "load_failed": LoadFailed,
    "internal_error": InternalError,
}
"""The type of each code."""
