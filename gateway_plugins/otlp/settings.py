"""The settings of spans."""

from typing import Annotated

from pydantic import AfterValidator

from gateway.settings import Section
from gateway.values.setting_values import ENDPOINT, unless_none


def _endpoint(url: str) -> str:
    """Check the URL of an OTLP collector."""
    if not ENDPOINT.fullmatch(url):
        msg = "must be the http:// or https:// URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318"
        raise ValueError(msg)
    return url


Endpoint = Annotated[str | None, AfterValidator(unless_none(_endpoint))]


class OtlpSettings(Section):
    """Spans over OTLP."""

    otlp_endpoint: Endpoint = None
    """OTLP/HTTP endpoint for spans, such as http://127.0.0.1:4318; unset: no spans. Needs the extra otel."""
