"""All settings as one frozen object; gateway.environment reads them from GATEWAY_ variables and .env."""

import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway import setting_values
from gateway.cores import usable_cores
from gateway.setting_values import ALL_MODELS

ENV_PREFIX = "GATEWAY_"
ENV_FILE = ".env"
KIB, MIB, GIB = 2**10, 2**20, 2**30


class DecodeMode(StrEnum):
    """Where images are decoded: `auto` where it is cheapest, `always` in the gateway, `never` there (but in Triton)."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class LogFormat(StrEnum):
    """`auto` is readable text on a terminal and JSON lines elsewhere."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class MemoryCheck(StrEnum):
    """What happens if models need more memory than is free: refuse to load them, log a warning, or nothing."""

    REFUSE = "refuse"
    WARN = "warn"
    OFF = "off"


class ModelsLoaded(StrEnum):
    """Which models a Triton has loaded: `all` of its repository, or those that were requested, within a budget."""

    ALL = "all"
    DEMAND = "demand"


class BesideTriton(StrEnum):
    """Whether a Triton shares the machine, and where it runs networks."""

    NO = "no"
    CPU = "cpu"
    GPU = "gpu"


NOT_ABOVE = (
    ("default_top_k", "max_top_k"),
    ("default_timeout_seconds", "max_timeout_seconds"),
    ("upload_idle_timeout_seconds", "upload_timeout_seconds"),
    ("max_file_bytes", "max_request_bytes"),
    ("max_file_bytes", "max_bytes_waiting"),
    ("batch_max_images", "max_images_in_flight"),
    ("batch_max_bytes", "max_bytes_in_flight"),
    ("stream_frame_bytes", "max_bytes_waiting"),
)
"""Pairs of settings of which the first must not be larger than the second."""

NEEDS = (
    ("triton_certificate_file", "triton_key_file"),
    ("triton_key_file", "triton_certificate_file"),
    ("triton_certificate_file", "triton_ca_file"),
    ("triton_server_name", "triton_ca_file"),
    ("fetch_networks", "fetch_urls"),
    ("models_gpu_memory_bytes", "models_memory_bytes"),
)
"""Pairs of settings of which the first has no effect without the second."""

SECRET = frozenset({"cache_secret", "rate_store_url"})
"""Settings whose values are never printed."""


class Settings(BaseSettings):
    """The gateway's settings; a field `x` is read from `GATEWAY_X`. Sizes are bytes, durations seconds."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_file=ENV_FILE, extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    # Where to listen
    host: str = Field("127.0.0.1", min_length=1, max_length=255)
    """Address that the API listens on; 0.0.0.0 for every interface."""
    port: int = Field(8080, ge=1, le=65_535)
    """Port that the API listens on."""
    grpc_port: int = Field(0, ge=0, le=65_535)
    """Port of the Open Inference Protocol over gRPC; 0 for none. Needs the extra grpc."""
    workers: int = Field(1, ge=1, le=64)
    """Gateway processes that share the ports."""
    cores: float = Field(0, ge=0, le=4_096)
    """Cores to compute counts of processes and limits of images for; 0 for those of the machine or container."""
    beside_triton: BesideTriton = BesideTriton.NO
    """Compute workers and limits of images that are not set, for a machine with a Triton on its cpu or gpu; or no."""

    # Access
    api_keys_file: Path | None = None
    """File of the API keys' names and hashes; without it no key is needed. See `gateway key`."""
    admin_keys_file: Path | None = None
    """File of the keys that may load and unload models; without it, that is not possible. See `gateway key`."""
    rate_store_url: SecretStr | None = None
    """Redis or Valkey in which gateways share the rates of keys, such as redis://host:6379/0. Needs the extra fleet."""
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Origins whose web pages may call the API, separated by commas, such as https://app.example; * for all."""

    # Triton and its models
    triton_url: Annotated[tuple[str, ...], NoDecode] = ("127.0.0.1:8001",)
    """Triton's gRPC endpoint as host:port; calls are balanced over several, with commas, or all addresses of a name."""
    triton_ca_file: Path | None = None
    """Certificates (PEM) of the CA that signed Triton's certificate; connections to Triton then use TLS."""
    triton_server_name: str | None = Field(None, min_length=1, max_length=253)
    """Name in Triton's certificate; by default the host of the first `triton_url`."""
    triton_certificate_file: Path | None = None
    """The gateway's certificate (PEM) for a Triton that requires one of its clients; needs `triton_key_file`."""
    triton_key_file: Path | None = None
    """Private key (PEM) of `triton_certificate_file`."""
    model: str = Field("ensemble_model", min_length=1, max_length=256)
    """Model for requests that do not name one."""
    load_models: Annotated[tuple[str, ...], NoDecode] = ()
    """Models to load besides the default one if Triton does not serve them; * for all of its repository."""
    models_loaded: ModelsLoaded = ModelsLoaded.ALL
    """all: each Triton has all models; demand: those of recent requests, within `models_memory_bytes`."""
    models_memory_bytes: int = Field(0, ge=0, le=64 * KIB * GIB)
    """With models_loaded=demand, which needs it: host memory for the models of one Triton, the default one included."""
    models_gpu_memory_bytes: int = Field(0, ge=0, le=KIB * GIB)
    """With models_loaded=demand: memory of each GPU for models; 0 if it is not limited."""
    models_load_seconds: float = Field(60.0, gt=0, le=600)
    """With models_loaded=demand: longest time that a request waits for its model to load, then 503."""
    models_kept_seconds: float = Field(5.0, ge=0, le=3_600)
    """With models_loaded=demand: time for which a loaded model is not unloaded for another one."""
    models_prefetch: bool = True
    """With models_loaded=demand: whether models are loaded ahead of their next request, by the rate of requests."""
    triton_metrics_port: int = Field(8002, ge=0, le=65_535)
    """With models_loaded=demand: port of Triton's metrics, which show its memory; 0 for none."""
    model_split: Annotated[dict[str, dict[str, int]], NoDecode] = {}
    """Shares of a model's requests that go to its versions, such as flowers=1:90,2:10; several with semicolons."""
    model_split_header: str = Field("X-Client-ID", min_length=1, max_length=64)
    """Header whose value ties a client to one version of a split; without it the version is random."""
    model_shadow: Annotated[dict[str, dict[str, int]], NoDecode] = {}
    """Shadow versions: percentages of a model's requests that they also classify, unreturned, such as flowers=2:10."""
    triton_aperture: int = Field(8, ge=0, le=1_000)
    """Most Tritons that one gateway process uses; 0 for all. Its limits may require more."""
    cache_secret: SecretStr | None = Field(None, min_length=16, max_length=1_024)
    """Secret that separates images in Triton's response cache; gateways with the same secret share cached results."""
    default_top_k: int = Field(5, ge=1, le=10_000)
    """Predictions for each file when a request does not set `top_k`."""
    max_top_k: int = Field(1_000, ge=1, le=10_000)
    """Largest `top_k` of a request."""
    max_predictions: int = Field(100_000, ge=1, le=100_000_000)
    """Predictions in one response: files × `top_k`; ten scores under /v2 count as one; JSON lines have no limit."""

    # Deadlines
    default_timeout_seconds: float = Field(30.0, gt=0, le=3_600)
    """Deadline of a request that does not set `timeout`, counted from its last byte."""
    max_timeout_seconds: float = Field(300.0, gt=0, le=3_600)
    """Largest `timeout` of a request, and the deadline of an explanation that sets none."""
    upload_timeout_seconds: float = Field(300.0, gt=0, le=86_400)
    """Time for a body to arrive, excluding time in which the gateway does not read."""
    upload_idle_timeout_seconds: float = Field(20.0, gt=0, le=3_600)
    """Longest pause of a client while it sends its body, and longest time for the headers of a request."""

    min_upload_bytes_per_second: int = Field(8 * KIB, ge=1, le=GIB)
    """Lowest speed of an upload; a client that stays slower gets 408 `upload_too_slow`."""
    upload_grace_seconds: float = Field(20.0, gt=0, le=3_600)
    """Time that an upload may fall behind `min_upload_bytes_per_second` before it is refused."""
    answer_timeout_seconds: float = Field(60.0, gt=0, le=3_600)
    """Longest time for a client to read the next 64 KiB of its response; then its connection is closed."""

    # Limits of one request
    max_files: int = Field(1_000, ge=1, le=10_000)
    """Files in one request; the next one is refused with 413 `too_many_files`."""
    max_file_bytes: int = Field(20 * MIB, ge=1, le=GIB)
    """Bytes of one file; a larger one gets `file_too_large`."""
    max_request_bytes: int = Field(2 * GIB, ge=1, le=64 * GIB)
    """Bytes of one body; a larger one is refused with 413 `request_too_large`."""
    request_cpu_seconds: float = Field(3.0, ge=0.1, le=3_600)
    """Processor time for decoding a request's images, plus an allowance per image and byte; then `too_costly`."""
    max_frames: int = Field(1_000, ge=1, le=10_000)
    """Frames of all files in a request with `frames`; a file with more gets `too_many_frames`."""
    max_masks: int = Field(2_000, ge=1, le=10_000)
    """Masked copies of an image in one explanation; more are refused with 422 `invalid_parameter`."""
    max_masked_bytes: int = Field(GIB, ge=MIB, le=64 * GIB)
    """Bytes of the masked copies of one explanation; more are refused with `too_costly`."""
    max_image_pixels: int = Field(50_000_000, ge=1, le=1_000_000_000)
    """Width × height of one image (its first frame); a larger one gets `image_too_large`."""
    max_image_side: int = Field(16_384, ge=1, le=65_535)
    """Width or height of one image in pixels; a larger one gets `image_too_large`."""
    max_header_bytes: int = Field(64 * KIB, ge=KIB, le=MIB)
    """Bytes of a request's headers, and of its JSON header under /v2; more is refused with 431 `headers_too_large`."""
    max_headers: int = Field(100, ge=1, le=10_000)
    """Headers of one request; more are refused with 431 `headers_too_large`."""
    max_part_header_bytes: int = Field(16 * KIB, ge=256, le=MIB)
    """Bytes of the headers of one multipart part; more is refused with 431 `headers_too_large`."""

    # Images by URL
    fetch_urls: Annotated[tuple[str, ...], NoDecode] = ()
    """Prefixes of URLs from which images may be fetched, with commas: https://host/folder/, s3://bucket/, gs://bucket/."""
    fetch_networks: Annotated[tuple[str, ...], NoDecode] = ()
    """Networks besides the public internet from which images may be fetched, with commas, such as 10.20.0.0/16."""
    fetch_timeout_seconds: float = Field(10.0, gt=0, le=3_600)
    """Time to fetch one image, its redirects included; then its error is `fetch_timeout`."""
    max_fetches: int = Field(64, ge=1, le=10_000)
    """Images that one process fetches at once; further ones wait for `max_wait_seconds` at most, then `overloaded`."""

    # Limits of one process
    max_connections: int = Field(1_000, ge=1, le=100_000)
    """Connections of one process; then a new one replaces an idle or the slowest one, or gets 503 `overloaded`."""
    grpc_max_calls: int = Field(256, ge=1, le=100_000)
    """gRPC calls of one process at once, with open streams; more are refused with RESOURCE_EXHAUSTED."""
    grpc_max_message_bytes: int = Field(24 * MIB, ge=MIB, le=GIB)
    """Bytes of one gRPC message, with all its images; a larger one is refused with RESOURCE_EXHAUSTED."""
    max_streams: int = Field(64, ge=0, le=100_000)
    """Open streams of one process; then a new one replaces the longest without a frame, or gets 503 `overloaded`."""
    stream_frame_bytes: int = Field(4 * MIB, ge=KIB, le=64 * MIB)
    """Bytes of one frame of a stream; a larger one ends the stream with close code 1009."""
    stream_frames_waiting: int = Field(2, ge=1, le=1_000)
    """Frames of one stream that may wait; at the limit the oldest are dropped, or with `drop=never` new ones wait."""
    stream_frames_in_flight: int = Field(2, ge=1, le=64)
    """Frames of one stream that may be classified at once."""
    stream_idle_seconds: float = Field(30.0, gt=0, le=3_600)
    """Longest time without a frame before a stream is closed."""
    max_images_in_flight: int = Field(32, ge=1, le=100_000)
    """Images of one process that may be in Triton at once."""
    max_bytes_in_flight: int = Field(64 * MIB, ge=MIB, le=64 * GIB)
    """Bytes of images of one process that may be in Triton at once."""
    max_images_waiting: int = Field(64, ge=1, le=100_000)
    """Images of one process that may wait for admission; at the limit, new requests get 503 `overloaded`."""
    max_bytes_waiting: int = Field(256 * MIB, ge=MIB, le=64 * GIB)
    """Bytes of uploads that one process may buffer; at the limit, the slowest upload gets 503 `overloaded`."""
    max_bytes_unread: int = Field(128 * MIB, ge=MIB, le=64 * GIB)
    """Bytes of unread responses that one process may buffer; at the limit, the slowest reader is disconnected."""
    max_wait_seconds: float = Field(2.0, gt=0, le=3_600)
    """Longest time that a request waits for the admission of its first image, then 503, or its key's rate, then 429."""
    hold_without_triton: bool = False
    """Whether images wait up to `max_wait_seconds` while no Triton is ready; else they are refused at once."""

    # Decoding and batching
    decode: DecodeMode = DecodeMode.AUTO
    """Whether images are decoded in the gateway instead of Triton: auto, always or never."""
    decode_above_pixels: int = Field(4_000_000, ge=1, le=1_000_000_000)
    """With decode=auto, images with more pixels are decoded in the gateway, and resized as their model requires."""
    decode_max_side: int = Field(1_024, ge=64, le=16_384)
    """Shorter side in pixels of an image decoded in the gateway, if the input size of its model is unknown."""
    batch_max_images: int = Field(8, ge=1, le=1_024)
    """Images in one call to Triton, of one request or of several; a slow model gets fewer."""
    batch_max_bytes: int = Field(8 * MIB, ge=MIB, le=GIB)
    """Padded bytes of one call to Triton; a larger image is sent in a call of its own."""
    request_max_calls: int = Field(4, ge=1, le=256)
    """Calls to Triton with images of one request that may be in flight."""
    decoders: int = Field(min(32, math.ceil(usable_cores())), ge=1, le=256)
    """Child processes of one gateway process that decode images; all but the first start only when images wait."""
    decode_cpu_seconds: float = Field(3.0, ge=0.1, le=3_600)
    """Processor time that decoding one image in the gateway may take; a small image gets less, then `too_costly`."""
    decode_memory_bytes: int = Field(GIB, ge=128 * MIB, le=64 * GIB)
    """Memory that decoding one image may take (a small one gets less, then `too_costly`), and all images at once."""

    # The embedded Triton of `gateway up`
    triton_cache_bytes: int = Field(256 * MIB, ge=0, le=64 * GIB)
    """Size of Triton's response cache; 0 for none."""
    memory_check: MemoryCheck = MemoryCheck.REFUSE
    """What happens if models need more memory than is free: refuse, warn or off."""
    model_repository: Path | None = None
    """Model repository of a Triton on this machine, to check the memory of models to load; `gateway up` sets it."""
    triton_start_timeout_seconds: float = Field(180.0, gt=0, le=3_600)
    """Longest time that Triton may take to load its models."""

    # Recovery and shutdown
    heal: bool = True
    """Whether models that died or fail are reloaded; needs a Triton with --model-control-mode=explicit."""
    heal_after_failures: int = Field(3, ge=1, le=1_000)
    """Consecutive failed probes after which a model is reloaded, even if its process is alive."""
    quarantine_seconds: float = Field(600.0, ge=0, le=86_400)
    """Time for which an image is refused after it has crashed a model's process twice; 0 for never."""
    shutdown_delay_seconds: float = Field(0.0, ge=0, le=300)
    """Time between SIGTERM and the closing of the port; readiness is false, and requests are still served."""
    shutdown_grace_seconds: float = Field(30.0, ge=1, le=3_600)
    """Time for requests in flight to finish after SIGTERM."""

    # Health
    ready_interval_seconds: float = Field(5.0, gt=0, le=300)
    """Time between two probes (inferences that check readiness)."""
    ready_timeout_seconds: float = Field(5.0, gt=0, le=300)
    """Longest time of a probe."""

    # Logs and traces
    log_level: LogLevel = LogLevel.INFO
    """Least severe level that is logged."""
    log_format: LogFormat = LogFormat.AUTO
    """text, json, or auto: text on a terminal and JSON lines elsewhere."""
    otlp_endpoint: str | None = None
    """OTLP/HTTP endpoint for spans, such as http://127.0.0.1:4318; unset: no spans. Needs the extra otel."""

    # The prediction log
    log_predictions: str | None = None
    """Folder, bucket (s3://…) or CloudEvents collector (http://…) of the prediction log. Needs the extra log."""
    log_predictions_share: Annotated[dict[str, float], NoDecode] = {ALL_MODELS: 1.0}
    """Percentage of images whose results are logged, at random: one number, or one by model as *=1,flowers=100."""
    log_predictions_below_score: float = Field(0.0, ge=0, le=1)
    """Results whose best score is below this are always logged."""
    log_predictions_below_margin: float = Field(0.0, ge=0, le=1)
    """Results whose two best scores differ by less than this are always logged."""
    log_predictions_disagreements: bool = True
    """Whether results are always logged that a shadow version contradicts."""
    log_predictions_errors: bool = True
    """Whether images that failed are always logged."""
    log_predictions_images: bool = False
    """Whether the image files of logged results are stored."""
    log_predictions_embeddings: bool = True
    """Whether the embeddings of logged results are stored, for models that have them."""
    log_predictions_fields_header: str = Field("X-Log-Fields", min_length=1, max_length=64)
    """Header with fields of the client's choice for the rows of its request, such as camera=7,site=berlin."""
    log_predictions_queue_bytes: int = Field(32 * MIB, ge=MIB, le=GIB)
    """Bytes of results and images of one process that may wait to be logged; more are dropped and counted."""
    log_predictions_file_rows: int = Field(10_000, ge=1, le=1_000_000)
    """Rows after which a file of the log is written."""
    log_predictions_file_bytes: int = Field(64 * MIB, ge=MIB, le=GIB)
    """Bytes of rows and images after which a file of the log is written."""
    log_predictions_file_seconds: float = Field(60.0, ge=0.1, le=86_400)
    """Longest time until a row is written; what is not written yet is lost if the writer is killed."""
    log_predictions_keep_days: int = Field(30, ge=0, le=36_500)
    """Days after which rows and images are deleted; 0 for never."""
    log_predictions_keep_bytes: int = Field(10 * GIB, ge=0, le=1_024 * 1_024 * GIB)
    """Bytes of the log above which its oldest days are deleted; 0 for no limit."""

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_may_have_units(cls, value: object, info: ValidationInfo) -> object:
        numeric = cls.model_fields[info.field_name or ""].annotation in {int, float}
        return setting_values.number_of(info.field_name or "", value) if numeric and isinstance(value, str) else value

    @field_validator(
        *("api_keys_file", "admin_keys_file", "triton_ca_file", "triton_certificate_file", "triton_key_file"),
        mode="before",
    )
    @classmethod
    def _key_files_are_not_empty(cls, path: object, info: ValidationInfo) -> object:
        # An empty value must not switch the keys or TLS off by mistake.
        if path == "":
            without = "a Triton without TLS" if "triton" in (info.field_name or "") else "an API without keys"
            msg = f"must be the path of a file; leave it unset for {without}"
            raise ValueError(msg)
        return path

    @field_validator("otlp_endpoint")
    @classmethod
    def _otlp_endpoint_is_a_url(cls, endpoint: str | None) -> str | None:
        return None if endpoint is None else setting_values.otlp_endpoint(endpoint)

    @field_validator("rate_store_url")
    @classmethod
    def _rate_store_is_a_url(cls, url: SecretStr | None) -> SecretStr | None:
        return None if url is None else SecretStr(setting_values.rate_store(url.get_secret_value()))

    @field_validator("model_split", mode="before")
    @classmethod
    def _split_into_shares(cls, text: object) -> object:
        return setting_values.split_of(text) if isinstance(text, str) else text

    @field_validator("model_shadow", mode="before")
    @classmethod
    def _shadow_into_percentages(cls, text: object) -> object:
        return setting_values.shadows_of(text) if isinstance(text, str) else text

    @field_validator("log_predictions")
    @classmethod
    def _log_is_a_folder_or_url(cls, url: str | None) -> str | None:
        return None if url is None else setting_values.log_url(url)

    @field_validator("log_predictions_share", mode="before")
    @classmethod
    def _share_into_percentages(cls, text: object) -> object:
        return setting_values.percentages_of(text) if isinstance(text, str) else text

    @field_validator("model_split_header", "log_predictions_fields_header")
    @classmethod
    def _is_header_name(cls, name: str) -> str:
        return setting_values.header_name(name)

    @field_validator("cors_origins", "triton_url", "load_models", "fetch_urls", "fetch_networks", mode="before")
    @classmethod
    def _split_at_commas(cls, parts: object) -> object:
        return setting_values.listed(parts) if isinstance(parts, str) else parts

    @field_validator("cors_origins")
    @classmethod
    def _origins_have_no_path(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        return setting_values.origins(origins)

    @field_validator("fetch_urls")
    @classmethod
    def _fetch_urls_are_prefixes(cls, prefixes: tuple[str, ...]) -> tuple[str, ...]:
        return setting_values.url_prefixes(prefixes)

    @field_validator("fetch_networks")
    @classmethod
    def _fetch_networks_are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        return setting_values.networks(networks)

    @field_validator("triton_url")
    @classmethod
    def _triton_urls_are_host_and_port(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return setting_values.triton_addresses(urls)

    @model_validator(mode="after")
    def _do_not_contradict_each_other(self) -> "Settings":
        sentences = [
            f"{self._format(low)} is above {self._format(high)}: lower the first to at most {getattr(self, high)}, "
            f"or raise the second to at least {getattr(self, low)}"
            for low, high in NOT_ABOVE
            if getattr(self, low) > getattr(self, high)
        ]
        sentences += [
            f"{variable(field)} needs {variable(other)}: set both or neither"
            for field, other in NEEDS
            if getattr(self, field) and not getattr(self, other)
        ]
        sentences += self._demand_faults()
        if self.grpc_port == self.port:
            sentences.append(f"{variable('grpc_port')} and {variable('port')} are the same port: choose another one")
        if sentences:
            raise ValueError("\n".join(sentences))
        return self

    def _demand_faults(self) -> list[str]:
        if self.models_loaded is not ModelsLoaded.DEMAND:
            return []
        faults = []
        if not self.models_memory_bytes:
            faults.append(
                f"{variable('models_loaded')}=demand needs {variable('models_memory_bytes')}: set it to the memory "
                "that the models of one Triton may take, such as 16GiB"
            )
        if ALL_MODELS in self.load_models:
            faults.append(
                f"{variable('load_models')}=* loads every model, and {variable('models_loaded')}=demand does not: name "
                "the models that always stay loaded, or leave it empty"
            )
        return faults

    def unset(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some values whose fields were not set."""
        return {field: value for field, value in values.items() if field not in self.model_fields_set}

    def _format(self, field: str) -> str:
        default = "" if field in self.model_fields_set else " (its default)"
        return f"{variable(field)}={getattr(self, field)}{default}"


def variable(field: str) -> str:
    """The environment variable that sets a field."""
    return f"{ENV_PREFIX}{field.upper()}"
