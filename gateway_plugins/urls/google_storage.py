"""Objects in Google Cloud Storage, read with the service's own identity."""

import asyncio
from typing import Any, Self
from urllib.parse import quote

import google.auth
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request

from gateway_plugins.urls.errors import FetchFailed
from gateway_plugins.urls.fetcher import BucketRequest
from gateway_plugins.urls.locations import Location, read_location

ENDPOINT = "https://storage.googleapis.com"
"""The XML API. The token is sent to this host alone."""
SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"


class GoogleStorage:
    """Gets access tokens by google-auth, which finds an identity as every client of Google Cloud does."""

    def __init__(self, credentials: Any) -> None:  # noqa: ANN401  # made by google-auth, without types
        self._credentials = credentials
        self._request = Request()
        self._renewal = asyncio.Lock()

    @classmethod
    def open(cls) -> Self:
        """Find the service's identity; raises LookupError if it has none."""
        try:
            credentials, _ = google.auth.default(scopes=[SCOPE])
        except DefaultCredentialsError as exc:
            msg = "there are no credentials of Google Cloud: give the service a service account, or set "
            msg += f"GOOGLE_APPLICATION_CREDENTIALS. {exc.args[0]}"
            raise LookupError(msg) from exc
        return cls(credentials)

    async def request(self, location: Location) -> BucketRequest:
        """See Bucket. In a thread, since the token may have to be renewed; many images wait for one renewal."""
        try:
            async with self._renewal:
                headers = await asyncio.to_thread(self._authorize)
        except GoogleAuthError as exc:
            raise FetchFailed("The service cannot get its credentials for the bucket; try again later.") from exc
        return BucketRequest(read_location(f"{ENDPOINT}/{location.host}{quote(location.path)}"), headers)

    def _authorize(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        self._credentials.before_request(self._request, "GET", ENDPOINT, headers)
        return headers
