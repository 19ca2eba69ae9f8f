"""The errors of streams."""

from http import HTTPStatus

from gateway.errors import RequestError


class UpgradeRequired(RequestError):
    """The path serves WebSockets only, and the request does not open one."""

    status = HTTPStatus.UPGRADE_REQUIRED
    code, summary = "upgrade_required", "This path takes WebSockets only"
