"""Objects in S3, and in what speaks its protocol, read with the service's own credentials."""

import asyncio
from typing import Any, Self

from botocore import UNSIGNED
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from gateway_plugins.urls.errors import FetchFailed
from gateway_plugins.urls.fetcher import BucketRequest
from gateway_plugins.urls.locations import Location, read_location

DEFAULT_REGION = "us-east-1"


class S3:
    """Signs requests by botocore, which finds the endpoint, the region and credentials as every client of AWS does."""

    def __init__(self, client: Any, credentials: Any) -> None:  # noqa: ANN401  # made by botocore, without types
        self._client = client
        self._credentials = credentials

    @classmethod
    def open(cls) -> Self:
        """A client with the service's identity; raises LookupError if it has none."""
        session = Session()
        credentials = session.get_credentials()
        if credentials is None:
            msg = "there are no credentials of AWS: give the service a role, or set AWS_ACCESS_KEY_ID and "
            msg += "AWS_SECRET_ACCESS_KEY"
            raise LookupError(msg)
        return cls(session.create_client("s3", config=Config(signature_version=UNSIGNED)), credentials)

    async def request(self, location: Location) -> BucketRequest:
        """See Bucket. In a thread, since credentials may have to be renewed."""
        try:
            return await asyncio.to_thread(self._sign, location)
        except BotoCoreError as exc:
            raise FetchFailed("The service cannot get its credentials for the bucket; try again later.") from exc

    def _sign(self, location: Location) -> BucketRequest:
        # With an unsigned client, this is the object's plain URL.
        key = location.path.removeprefix("/")
        url: str = self._client.generate_presigned_url("get_object", Params={"Bucket": location.host, "Key": key})
        request = AWSRequest("GET", url)
        credentials = self._credentials.get_frozen_credentials()
        S3SigV4Auth(credentials, "s3", self._client.meta.region_name or DEFAULT_REGION).add_auth(request)
        return BucketRequest(read_location(url), dict(request.headers.items()))
