"""The settings of spans."""

from typing import Annotated

from pydantic import AfterValidator

from gateway.settings import Section
from gateway.values import setting_values

Endpoint = Annotated[str | None, AfterValidator(setting_values.unless_none(setting_values.otlp_endpoint))]


class OtlpSettings(Section):
    """Spans over OTLP."""

    otlp_endpoint: Endpoint = None
    """OTLP/HTTP endpoint for spans, such as http://127.0.0.1:4318; unset: no spans. Needs the extra otel."""
