"""All settings as one frozen object; gateway.environment reads them from GATEWAY_ variables and .env."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

from dotenv import dotenv_values
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from gateway import errors
from gateway.machine.capacity import Costs
from gateway.values import setting_values, variables

ENV_PREFIX = variables.ENV_PREFIX
Access = variables.Access
DecodeMode = variables.DecodeMode
variable = variables.variable
ENV_FILE = ".env"
FIXED_VALUES = variables.FIXED_VALUES
KIB, MIB, GIB = 2**10, 2**20, 2**30


def given_variables() -> dict[str, str | None]:
    """The variables of the file .env and of the environment, which takes precedence."""
    return {**dotenv_values(ENV_FILE), **os.environ}


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


class BesideTriton(StrEnum):
    """Whether a Triton shares the machine, and where it runs networks."""

    NO = "no"
    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Names the allowed values of a setting whose type does not: Annotated[…, Allowed("a host name")]."""

    values: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """Marks a field that no variable sets: a constant, or a value that is computed, and `how`."""

    how: str = ""


T = TypeVar("T")
Constant = Annotated[T, Fixed()]
"""The type of a field that is a constant. It is a field so that tests can set a small value."""


Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(setting_values.if_text(setting_values.listed))]
"""Several values, which a variable separates by commas."""
TlsFile = Annotated[Path | None, BeforeValidator(setting_values.not_empty("a Triton without TLS"))]


Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Limit:
    """Marks a setting as a limit of a request or the service: its unit, and the error beyond it."""

    unit: str
    error: type[errors.GatewayError]


class FixedLimit(NamedTuple):
    """A limit that is a constant, and the error beyond it."""

    value: float
    unit: str
    error: type[errors.GatewayError]
    meaning: str = ""


FixedLimits = Mapping[str, FixedLimit]


class Section(BaseSettings):
    """Some settings of the core, or those of a plug-in; a field `x` is read from `GATEWAY_X`.

    The docstring of a section is its heading in docs/reference/settings.md.

    Sizes are bytes, durations seconds. gateway.plugin_loading combines the sections of the core and of the installed
    plug-ins to one class, so one object has all settings, and each plug-in sees it as its own section: `Section.of`.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_file=ENV_FILE,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        defer_build=True,
    )
    not_above: ClassVar[Pairs] = ()
    """Pairs of settings of which the first must not be larger than the second."""
    needs: ClassVar[Pairs] = ()
    """Pairs of settings of which the first has no effect without the second."""
    fixed_limits: ClassVar[FixedLimits] = {}
    """Limits that are no fields, since nothing sets them."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # none is used
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources of values, in order of precedence; raises TypeError for an argument that is no setting.

        Unknown variables of the environment and of the file .env are ignored here; `gateway.environment.load_settings`
        refuses those with the gateway's prefix, and the variables of fixed fields, which FIXED_VALUES passes instead.
        """
        assert isinstance(init_settings, InitSettingsSource)
        if unknown := init_settings.init_kwargs.keys() - settings_cls.model_fields.keys():
            raise TypeError(
                f"{min(unknown)!r} is not a setting of this class; one with the settings of all installed plug-ins is "
                "gateway.plugin_loading.settings_class()"
            )
        passed = json.loads(os.environ.get(FIXED_VALUES, "{}"))
        known = {name: value for name, value in passed.items() if name in settings_cls.model_fields}
        return init_settings, InitSettingsSource(settings_cls, known), env_settings, dotenv_settings

    @classmethod
    def of(cls, settings: "Section") -> Self:
        """The settings as this section; raises UserError if they lack it, as a plug-in's that is switched off."""
        if not isinstance(settings, cls):
            raise errors.UserError(
                f"there are no {cls.__name__}: does {variable('plugins_off')} switch their plug-in off?"
            )
        return settings

    def faults(self) -> Sequence[str]:
        """More contradictions between the settings of this section, each as a sentence."""
        return ()

    def process_bytes(self) -> int:
        """Memory of each gateway process and its helper processes that these settings need, in addition to buffers."""
        return 0

    def tensor_models(self) -> Mapping[str, Any]:
        """Models of Triton that take tensors instead of files: by name, a gateway.triton.wire.DeclaredModel."""
        return {}

    @classmethod
    def variables(cls) -> Mapping[str, FieldInfo]:
        """The fields that GATEWAY_ variables set; the others are fixed."""
        return {name: field for name, field in cls.model_fields.items() if fixed(field) is None}

    @classmethod
    def sections(cls) -> "Sequence[type[Section]]":
        """The sections of this class, itself included."""
        return [each for each in cls.__mro__ if issubclass(each, Section) and each is not Section]

    @classmethod
    def pairs(cls, name: str) -> Pairs:
        """All pairs of `not_above` or `needs`."""
        return [pair for section in cls.sections() for pair in vars(section).get(name, ())]

    @classmethod
    def limits(cls) -> Mapping[str, Limit]:
        """The settings that are limits."""
        marks = {name: mark(field, Limit) for name, field in cls.model_fields.items()}
        return {name: limit for name, limit in marks.items() if limit is not None}

    @classmethod
    def all_fixed_limits(cls) -> FixedLimits:
        """The limits of all sections that are not settings."""
        return {
            name: limit for section in cls.sections() for name, limit in vars(section).get("fixed_limits", {}).items()
        }

    def each(self, method: str) -> Iterator[Any]:
        """The result of a method of each section that has one."""
        for section in self.sections():
            if method in vars(section):
                yield vars(section)[method](self)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_may_have_units(cls, value: object, info: ValidationInfo) -> object:
        numeric = cls.model_fields[info.field_name or ""].annotation in {int, float}
        return setting_values.number_of(info.field_name or "", value) if numeric and isinstance(value, str) else value

    @model_validator(mode="after")
    def _do_not_contradict_each_other(self) -> Self:
        sentences = [
            f"{self._format(low)} is above {self._format(high)}: lower the first to at most {getattr(self, high)}, "
            f"or raise the second to at least {getattr(self, low)}"
            for low, high in self.pairs("not_above")
            if getattr(self, low) > getattr(self, high)
        ]
        sentences += [
            f"{variable(field)} needs {variable(other)}: set both or neither"
            for field, other in self.pairs("needs")
            if field in self.model_fields_set and getattr(self, field) and not getattr(self, other)
        ]
        sentences += [sentence for sentences in self.each("faults") for sentence in sentences]
        if sentences:
            raise ValueError("\n".join(sentences))
        return self

    def unset(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The given values without the fields that were set."""
        return {field: value for field, value in values.items() if field not in self.model_fields_set}

    def _format(self, field: str) -> str:
        default = "" if field in self.model_fields_set else " (its default)"
        return f"{variable(field)}={getattr(self, field)}{default}"


def mark(field: FieldInfo, kind: type[T]) -> T | None:
    """The mark of a kind (Allowed, Fixed, Limit) in the type of a field; None without one."""
    return next((each for each in field.metadata if isinstance(each, kind)), None)


def fixed(field: FieldInfo) -> Fixed | None:
    """How a field is fixed; None if a variable sets it."""
    return mark(field, Fixed)


def _costs(text: str) -> str:
    """Check the times of an image, such as "preprocessor_ms=2.1,gpu_network_ms=0.08"."""
    Costs.read(text)
    return text


class ListenSettings(Section):
    """Where the service listens, and the machine that it is for."""

    host: str = Field("127.0.0.1", min_length=1, max_length=255)
    """Address of the API; 0.0.0.0 for every interface."""
    port: int = Field(8080, ge=1, le=65_535)
    """Port of the API."""
    workers: int = Field(1, ge=1, le=64)
    """Gateway processes that share the ports."""
    cores: float = Field(0, ge=0, le=4_096)
    """Cores to size the service for; 0 for all of the machine or container."""
    beside_triton: BesideTriton = BesideTriton.NO
    """Size what is not set for a machine with a Triton on its cpu or gpu; or no."""
    triton_alone: bool = False
    """Size Triton's models for cores that no gateway shares."""
    costs: Annotated[str, Field(min_length=0, max_length=500), AfterValidator(_costs)] = ""
    """What an image costs, as `gateway doctor --run` prints it; by default, the costs of the default model."""


class PluginSettings(Section):
    """Plug-ins."""

    plugins_off: Listed = ()
    """Names of plug-ins (`gateway plugins`) that are not used; their settings do not exist."""


class AccessSettings(Section):
    """Who may call."""

    metrics_access: Access = Access.OPEN
    """Who may read `GET /metrics`, which names models and keys: all, any API key, or an admin key."""
    cors_origins: Annotated[Listed, AfterValidator(setting_values.origins)] = ()
    """Origins whose web pages may call the API and frame the page, such as https://app.example; * for all."""
    hosts: Annotated[Listed, AfterValidator(setting_values.hosts)] = ()
    """Public names of the service, such as *.lab.example; * for all. Without API keys, other public names get 403."""


class TritonSettings(Section):
    """Triton, its models and their answers."""

    needs: ClassVar[Pairs] = (
        ("triton_certificate_file", "triton_key_file"),
        ("triton_key_file", "triton_certificate_file"),
        ("triton_certificate_file", "triton_ca_file"),
        ("triton_server_name", "triton_ca_file"),
        ("models_gpu_memory_bytes", "models_memory_bytes"),
    )

    triton_url: Annotated[Listed, AfterValidator(setting_values.triton_addresses)] = ("127.0.0.1:8001",)
    """Triton's gRPC host:port; calls are balanced over several, and over all addresses of a name."""
    triton_ca_file: TlsFile = None
    """PEM of the CA that signed Triton's certificate; turns on TLS to Triton."""
    triton_server_name: Annotated[str | None, Allowed("a host name")] = Field(None, min_length=1, max_length=253)
    """Name in Triton's certificate; by default the host of the first `triton_url`."""
    triton_certificate_file: TlsFile = None
    """The gateway's certificate (PEM), for mutual TLS; needs `triton_key_file`."""
    triton_key_file: TlsFile = None
    """Private key (PEM) of `triton_certificate_file`."""
    model: str = Field("ensemble_model", min_length=1, max_length=256)
    """Model for requests that do not name one."""
    load_models: Listed = ()
    """Models that Triton should serve besides the default one; * for all of its repository."""
    models_memory_bytes: int = Field(0, ge=0, le=64 * KIB * GIB)
    """Host memory of a Triton for models, which requests then load; 0 loads all at the start."""
    models_gpu_memory_bytes: int = Field(0, ge=0, le=KIB * GIB)
    """With models_memory_bytes: memory of each GPU for models; 0 for no limit."""
    cache_secret: SecretStr | None = Field(None, min_length=16, max_length=1_024)
    """Secret of Triton's response cache; gateways with the same one share results."""
    default_top_k: int = Field(5, ge=1, le=1_000)
    """Predictions for each file without `top_k`."""

    def faults(self) -> Sequence[str]:
        """Models on demand contradict a list of all models."""
        if not (self.models_memory_bytes and setting_values.ALL_MODELS in self.load_models):
            return ()
        return (
            f"{variable('load_models')}=* loads every model, and with {variable('models_memory_bytes')} requests load "
            "them: name the models that always stay loaded, or leave it empty",
        )


class DeadlineSettings(Section):
    """Deadlines."""

    not_above: ClassVar[Pairs] = (("default_timeout_seconds", "max_timeout_seconds"),)

    default_timeout_seconds: float = Field(30.0, gt=0, le=3_600)
    """Deadline of each file of a request without `timeout`, counted from the file's last byte."""
    max_timeout_seconds: Annotated[float, Limit("seconds", errors.InvalidParameter)] = Field(300.0, gt=0, le=3_600)
    """Largest `timeout` of a request, and default of an explanation."""
    upload_timeout_seconds: Annotated[float, Limit("seconds", errors.UploadTimeout)] = Field(300.0, gt=0, le=86_400)
    """Time for a body to arrive."""
    upload_idle_timeout_seconds: Annotated[Constant[float], Limit("seconds", errors.UploadTimeout)] = 20.0
    """Longest time for the headers of a request, and for which a body may fall behind `min_upload_bytes_per_second`."""
    answer_timeout_seconds: Constant[float] = 60.0
    """Longest time for a client to read the next 64 KiB of its response; then its connection is closed."""


class RequestSettings(Section):
    """Limits of one request."""

    not_above: ClassVar[Pairs] = (("max_file_bytes", "max_request_bytes"),)

    max_files: Annotated[int, Limit("files", errors.TooManyFiles)] = Field(1_000, ge=1, le=10_000)
    """Files in one request; beyond it 413 `too_many_files`."""
    max_file_bytes: Annotated[int, Limit("bytes", errors.FileTooLarge)] = Field(20 * MIB, ge=1, le=GIB)
    """Bytes of one file; beyond it `file_too_large`."""
    max_request_bytes: Annotated[int, Limit("bytes", errors.RequestTooLarge)] = Field(2 * GIB, ge=1, le=64 * GIB)
    """Bytes of one body; beyond it 413 `request_too_large`."""
    request_cpu_seconds: Annotated[Constant[float], Limit("seconds", errors.TooCostly)] = 3.0
    """Processor time for decoding a request's images, plus an allowance per image and byte."""
    max_image_pixels: Annotated[int, Limit("pixels", errors.ImageTooLarge)] = Field(50_000_000, ge=1, le=1_000_000_000)
    """Width × height of one image; beyond it `image_too_large`."""


class ProcessSettings(Section):
    """Limits of one process."""

    max_connections: Annotated[
        int, Fixed("1,000, or what the limit of open files leaves"), Limit("connections", errors.Overloaded)
    ] = 1_000
    """Connections of one process; then a new one replaces an idle or the slowest one, or gets 503."""
    max_images_in_flight: Annotated[int, Limit("images", errors.Overloaded)] = Field(32, ge=1, le=100_000)
    """Images of one process that may be in Triton at once."""
    max_bytes_in_flight: Annotated[
        int, Fixed("64 MiB; less if memory is limited"), Limit("bytes", errors.Overloaded)
    ] = 64 * MIB
    """Bytes of images of one process that may be in Triton at once."""
    max_images_waiting: Annotated[
        int, Fixed("`GATEWAY_MAX_IMAGES_IN_FLIGHT`, at least 64"), Limit("images", errors.Overloaded)
    ] = Field(default_factory=lambda known: max(64, known["max_images_in_flight"]))
    """Images of one process that may wait for admission, of requests that have had no other image admitted."""
    max_bytes_waiting: Annotated[
        int,
        Fixed("256 MiB, or `GATEWAY_MAX_FILE_BYTES` if that is more; less if memory is limited"),
        Limit("bytes", errors.Overloaded),
    ] = Field(default_factory=lambda known: max(256 * MIB, known["max_file_bytes"]))
    """Bytes of uploads that one process may buffer; beyond it the slowest upload gets 503."""
    max_bytes_unread: Annotated[int, Fixed("128 MiB; less if memory is limited"), Limit("bytes", errors.Overloaded)] = (
        128 * MIB
    )
    """Bytes of unread responses that one process may buffer; beyond it the slowest reader is disconnected."""
    max_wait_seconds: Annotated[float, Limit("seconds", errors.Overloaded)] = Field(2.0, gt=0, le=3_600)
    """Longest wait of a request for admission, then 503, or for its key's rate, then 429."""
    hold_without_triton: bool = False
    """Whether images wait up to `max_wait_seconds` while no Triton is ready; else they are refused at once."""


class DecodingSettings(Section):
    """Decoding."""

    decode: DecodeMode = DecodeMode.AUTO
    """Whether images are decoded in the gateway instead of Triton."""
    decode_memory_bytes: Annotated[int, Fixed("1 GiB; less if memory is limited"), Limit("bytes", errors.TooCostly)] = (
        GIB
    )
    """Memory for decoding one image (less for a small one), and all images at once."""


class LocalTritonSettings(Section):
    """The Triton that `gateway up` starts."""

    triton_cache_bytes: int = Field(256 * MIB, ge=0, le=64 * GIB)
    """Size of Triton's response cache; 0 for none."""
    model_repository: Annotated[Path | None, Allowed("the path of a folder")] = None
    """Folder of Triton's models, to check their memory and record which versions answer."""
    triton_start_timeout_seconds: float = Field(180.0, gt=0, le=3_600)
    """Longest time for Triton to load its models."""


class RecoverySettings(Section):
    """Recovery and shutdown."""

    heal: bool = True
    """Whether failed models are reloaded; needs Triton's --model-control-mode=explicit."""
    ready_interval_seconds: Constant[float] = 5.0
    """Time between two probes (inferences that check readiness), and between two look-ups of Triton's name. Probes of a
    model without requests for a minute are six times as rare."""
    shutdown_delay_seconds: float = Field(0.0, ge=0, le=300)
    """Time between SIGTERM and the closing of the port: not ready, but requests are served."""
    shutdown_grace_seconds: float = Field(30.0, ge=1, le=3_600)
    """Time for requests in flight to finish after SIGTERM."""


class LogSettings(Section):
    """Logs."""

    log_level: LogLevel = LogLevel.INFO
    """Least severe level that is logged."""
    log_format: LogFormat = LogFormat.AUTO
    """auto: text on a terminal and JSON lines elsewhere."""


STREAM_IDLE_SECONDS = 30.0
"""Longest time without a frame before a stream is closed; a client opens another one for its next frame."""


class StreamSettings(Section):
    """Streams of frames, over WebSockets and gRPC."""

    fixed_limits: ClassVar[FixedLimits] = {
        "stream_idle_seconds": FixedLimit(STREAM_IDLE_SECONDS, "seconds", errors.StreamIdle)
    }

    max_streams: Annotated[int, Limit("streams", errors.Overloaded)] = Field(64, ge=0, le=100_000)
    """Open streams of one process; beyond it the most idle stream is closed, or the new one gets 503."""


class Settings(
    # The fields of a class with several bases are in the order of the last base to the first.
    StreamSettings,
    LogSettings,
    RecoverySettings,
    LocalTritonSettings,
    DecodingSettings,
    ProcessSettings,
    RequestSettings,
    DeadlineSettings,
    TritonSettings,
    AccessSettings,
    PluginSettings,
    ListenSettings,
):
    """All settings."""


def is_secret(section: type[Section], field: str) -> bool:
    """Whether the value of a setting is never printed."""
    return section.model_fields[field].annotation in {SecretStr, SecretStr | None}
