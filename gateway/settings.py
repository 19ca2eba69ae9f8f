"""Everything that can be set, as one frozen object read from GATEWAY_ variables and .env."""

import difflib
import os
from enum import Enum

from dotenv import dotenv_values
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.errors import UserError

ENV_PREFIX = "GATEWAY_"
ENV_FILE = ".env"
KIB, MIB, GIB = 2**10, 2**20, 2**30


class DecodeMode(str, Enum):
    """Where images are decoded: `auto` where it is cheapest, `always` in the gateway, `never` in the gateway."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class LogFormat(str, Enum):
    """`auto` is readable text on a terminal and JSON lines elsewhere."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(str, Enum):
    """The least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class SettingsError(UserError):
    """A GATEWAY_ variable is unknown or has a value that is not allowed; the message names it and what is allowed."""


class Settings(BaseSettings):
    """The gateway's settings; a field `x` is read from `GATEWAY_X`. Sizes are bytes, durations seconds."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_file=ENV_FILE, extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    # Where to listen
    host: str = "127.0.0.1"
    """Address that the API listens on; 0.0.0.0 for every interface."""
    port: int = Field(8080, ge=1, le=65_535)
    """Port that the API listens on."""
    workers: int = Field(1, ge=1, le=64)
    """Gateway processes that share the port."""

    # Triton and its models
    triton_url: str = "127.0.0.1:8001"
    """Triton's gRPC endpoint as host:port."""
    model: str = Field("ensemble_model", min_length=1, max_length=256)
    """Model that answers when a request names none."""
    default_top_k: int = Field(5, ge=1, le=10_000)
    """Predictions for each file when a request does not say `top_k`."""
    max_top_k: int = Field(1_000, ge=1, le=10_000)
    """Largest `top_k` of a request."""

    # Deadlines
    default_timeout_seconds: float = Field(30.0, gt=0, le=3_600)
    """Deadline of a request that does not say `timeout`, counted from its last byte."""
    max_timeout_seconds: float = Field(300.0, gt=0, le=3_600)
    """Largest `timeout` of a request."""
    upload_timeout_seconds: float = Field(300.0, gt=0, le=86_400)
    """Time for a body to arrive, without the time that the gateway itself makes it wait."""
    upload_idle_timeout_seconds: float = Field(20.0, gt=0, le=3_600)
    """Longest silence of a client in the middle of its body."""

    # Limits of one request
    max_files: int = Field(1_000, ge=1, le=10_000)
    """Files in one request; the next one is refused with 413 `too_many_files`."""
    max_file_bytes: int = Field(20 * MIB, ge=1, le=GIB)
    """Bytes of one file; a larger one gets `file_too_large`."""
    max_request_bytes: int = Field(2 * GIB, ge=1, le=64 * GIB)
    """Bytes of one body; a larger one is refused with 413 `request_too_large`."""
    max_image_pixels: int = Field(50_000_000, ge=1, le=1_000_000_000)
    """Width × height × frames of one image; a larger one gets `image_too_large`."""
    max_image_side: int = Field(16_384, ge=1, le=65_535)
    """Width or height of one image in pixels; a larger one gets `image_too_large`."""
    max_part_header_bytes: int = Field(16 * KIB, ge=256, le=MIB)
    """Bytes of the headers of one multipart part; more is refused with 431 `headers_too_large`."""

    # Limits of one process
    max_images_in_flight: int = Field(256, ge=1, le=100_000)
    """Images of one process that may be on their way through Triton at once."""
    max_bytes_in_flight: int = Field(64 * MIB, ge=MIB, le=64 * GIB)
    """Bytes of images that one process may hold on their way through Triton at once."""

    # How images travel
    decode: DecodeMode = DecodeMode.AUTO
    """Where images are decoded: auto, always (in the gateway) or never (in the gateway)."""
    decode_above_pixels: int = Field(4_000_000, ge=1, le=1_000_000_000)
    """With decode=auto, images of more pixels are decoded and shrunk in the gateway."""
    decode_max_side: int = Field(1_024, ge=64, le=16_384)
    """Shorter side in pixels that an image decoded in the gateway is shrunk to, if it is larger."""
    batch_max_images: int = Field(8, ge=1, le=1_024)
    """Images of one request that travel to Triton in one call."""
    batch_max_bytes: int = Field(8 * MIB, ge=MIB, le=GIB)
    """Padded bytes of one call to Triton; a single larger image travels alone."""
    request_max_calls: int = Field(4, ge=1, le=256)
    """Calls to Triton that one request may have in flight."""
    decode_threads: int = Field(min(32, os.cpu_count() or 1), ge=1, le=256)
    """Threads of one process that decode images in the gateway."""

    # The embedded Triton of `gateway up`
    triton_cache_bytes: int = Field(256 * MIB, ge=0, le=64 * GIB)
    """Size of Triton's response cache; 0 for none."""
    triton_start_timeout_seconds: float = Field(180.0, gt=0, le=3_600)
    """Longest time that Triton may take to load its models."""

    # Stopping
    shutdown_grace_seconds: float = Field(30.0, ge=1, le=3_600)
    """Time that requests in flight get to finish after SIGTERM."""

    # Health
    ready_interval_seconds: float = Field(5.0, gt=0, le=300)
    """Time between two inferences that prove readiness."""
    ready_timeout_seconds: float = Field(5.0, gt=0, le=300)
    """Longest time such an inference may take."""

    # Logs
    log_level: LogLevel = LogLevel.INFO
    """Least severe level that is logged."""
    log_format: LogFormat = LogFormat.AUTO
    """text, json, or auto: text on a terminal and JSON lines elsewhere."""

    @field_validator("triton_url")
    @classmethod
    def _triton_url_is_host_and_port(cls, url: str) -> str:
        host, colon, port = url.removeprefix("grpc://").rpartition(":")
        if not (colon and host and port.isdigit() and 0 < int(port) < 65_536):
            msg = "must be host:port of Triton's gRPC endpoint, such as 127.0.0.1:8001"
            raise ValueError(msg)
        return f"{host}:{port}"


def variable(field: str) -> str:
    """The environment variable that sets a field."""
    return f"{ENV_PREFIX}{field.upper()}"


def load_settings() -> Settings:
    """Read the settings; raises SettingsError on an unknown variable or a value that is not allowed."""
    known = [variable(field) for field in Settings.model_fields]
    for name in {**dotenv_values(ENV_FILE), **os.environ}:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else "see the README's table of settings"
            raise SettingsError(f"{name} is not a setting: {hint}")
    try:
        return Settings()
    except ValidationError as exc:
        sentences = [
            f"{variable(str(error['loc'][0]))}={error['input']!r}: {error['msg'].removeprefix('Value error, ')}"
            for error in exc.errors()
        ]
        raise SettingsError("\n".join(sentences)) from exc
