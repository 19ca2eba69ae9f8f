"""The errors of images by URL."""

from gateway.errors import ImageError


class UrlNotAllowed(ImageError):
    """The URL is invalid or outside of `fetch_urls`, or its host has an address that is not public or allowed."""

    code, summary = "url_not_allowed", "The service does not fetch images from this URL"


class FetchFailed(ImageError):
    """The URL's host could not be reached, or answered with something else than an image."""

    code, summary = "fetch_failed", "The image could not be fetched"


class FetchTimeout(ImageError):
    """The image of a URL did not arrive within `fetch_timeout_seconds`."""

    code, summary = "fetch_timeout", "The image could not be fetched in time"
