"""The hooks of a plug-in: the public interface by which a package adds to the service.

A plug-in is a subclass of `Plugin`, named by an entry point of the group `triton_gateway`. It overrides the hooks that
it needs; a hook that nobody overrides costs nothing, since what a request meets is put together once, at the start.
docs/guides/plugins.md has examples, and says what may change.

    hook                      called                          for
    settings                  when settings are read          variables GATEWAY_… of the plug-in's own
    commands                  by the command `gateway`        commands: `gateway NAME …`
    check                     before the service starts       packages and files that the settings require
    ports                     before the service starts       ports that the plug-in listens on
    examine, check_triton     by `gateway doctor`             what is wrong with the services that are used
    metrics                   when the application is made    the plug-in's metrics
    errors                    by the documents                error codes of the plug-in's own
    routers, document         when the application is made    routes, and the OpenAPI document
    shapes                    when the application is made    formats of the response of POST /predict
    body_readers              when the application is made    readers of bodies of further media types
    authenticator             when the application is made    who may call
    has_admins                when the application is made    whether models are loaded and unloaded over HTTP
    backend                   when the service starts         the inference server
    repair                    when the service starts         reloads models that fail
    check_load                before an admin loads a model   a warning, or a refusal
    lifespan                  around the service              connections, processes, servers of the plug-in's own
    fetcher                   when the service has started    images that a body refers to
    websockets                when the service starts         WebSockets, by their paths
    error_formats             when the application is made    error responses that are no problem documents
    middleware                when the application is made    ASGI middleware around every request and response
    cors_headers              when the application is made    headers that pages of other origins may send and read
    steps                     when the service starts         steps of an image before it has a permit
    record_rollout            when an admin changes it        records which versions of a model answer
    request_fields            for each request                what observers get of the headers
    expansion                 for each request                several images of one upload
    observer                  when the service starts         sees each call and each result
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from gateway.errors import GatewayError, InvalidParameter, NotFound
from gateway.findings import Finding
from gateway.inference import answer_shape
from gateway.limits.caller import ANYONE, Caller
from gateway.settings import Section, Settings

if TYPE_CHECKING:  # commands that only read the settings load none of these
    from fastapi import APIRouter, FastAPI
    from pydantic import BaseModel
    from starlette.middleware import Middleware

    from gateway.inference.backend import Backend
    from gateway.inference.expansion import Expansion
    from gateway.inference.observer import Observer
    from gateway.inference.service import InferenceService
    from gateway.inference.steps import Step
    from gateway.ingest.media_types import BodyReader, Uploads, UploadsOrUrls
    from gateway.limits.lease import Bound
    from gateway.limits.pools import Pool
    from gateway.values.rollout import Rollout

GROUP = "triton_gateway"
"""The group of entry points that name plug-ins."""


class Fetcher(Protocol):
    """Makes uploads of the images that a body refers to."""

    def __call__(self, images: "UploadsOrUrls", *, key_bound: "Bound | None", client: str) -> "Uploads":
        """The images of a request; what they hold of the upload buffer also counts for its API key.

        `client` identifies who sends the request, see gateway.values.clients.
        """
        ...


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a plug-in listens on, for which `gateway up` prints a line."""

    setting: str
    number: int
    purpose: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose key a request has."""

    name: str
    """For the log, the metrics, and observers."""
    admin: bool = False
    """Whether it may load and unload models."""
    caller: Caller = ANYONE
    """What its requests may take."""


class Authenticator(Protocol):
    """Knows the keys of requests."""

    @property
    def admin_only(self) -> bool:
        """Whether only routes for admins need a key."""
        ...

    def identify(self, key: bytes) -> Identity | None:
        """Whose key it is, without waiting; None for an invalid one.

        It is the bearer token of the header Authorization, or the header X-API-Key, and not empty. Open streams ask
        again every few seconds, and end once the key is invalid.
        """
        ...


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """The format of error responses below a path, for clients that do not accept problem documents."""

    path: str
    """/v2 is for /v2 and everything below."""
    schema: "type[BaseModel]"
    body: Callable[[GatewayError], bytes]
    """The JSON of a response."""

    def applies(self, path: str) -> bool:
        """Whether a path of a request has this format."""
        return path == self.path or path.startswith(f"{self.path}/")


AnswerShape = answer_shape.AnswerShape
"""A response format of POST /predict: how to write each file's result, and the JSON around the results."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a plug-in's `lifespan` gets: the parts of a service that has just been created."""

    app: "FastAPI"
    state: Mapping[str, Any]
    """The lifespan state; see gateway.api.request_context.State."""
    service: "InferenceService"
    uploads: "Pool"
    """The bytes of uploads that arrive or wait."""
    knows_key: Callable[[Sequence[tuple[bytes, bytes]]], bool]
    """Whether a request with these headers has a valid API key, or needs none."""
    upload_bound: "Callable[[Sequence[tuple[bytes, bytes]]], Bound | None]"
    """The share of the upload buffer of the API key in these headers, None without one."""
    is_ready: Callable[[], bool]
    """Whether the default model answered the last probe."""


WebSocketProtocolOf = Callable[[Any], Any]
"""Makes the protocol of a WebSocket from a connection; see gateway.server.handler.ProtocolOf."""

RepairOf = Callable[[Any, Any, Any], Any]
"""Makes the gateway.triton.health.checker.TritonRecovery of a TritonEndpoint, its HealthState and its Probes."""


class Plugin:
    """A plug-in of one application. The hooks do nothing unless they are overridden."""

    settings: ClassVar[type[Section] | None] = None
    """The plug-in's own settings; `Section.of` finds them in the settings of the service."""
    metrics: ClassVar[str | None] = None
    """Name of the module with the plug-in's metrics. It is loaded with the application, whether or not the plug-in is
    used, so that the series exist from the start."""
    errors: ClassVar[str | None] = None
    """Name of the module with the plug-in's errors: subclasses of classes in gateway.errors, each with its own code."""

    commands: ClassVar[str | None] = None
    """Name of a module whose `app`, a typer.Typer with a name, is a group of commands of `gateway`."""

    idle_hooks: Collection[str] = ()
    """The hook `request_fields`, if the plug-in overrides it but does not need it with its settings: requests do not
    call it then. To be set when the plug-in is created."""

    def __init__(self, settings: Settings) -> None:
        """Create the plug-in, once for each application."""

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Raise UserError if something that the settings require is missing, such as a package of an extra."""

    @classmethod
    def ports(cls, settings: Settings) -> Sequence[Port]:
        """Ports that the plug-in listens on."""
        del settings
        return ()

    @classmethod
    async def check_triton(cls, settings: Settings, address: str) -> Sequence[Finding]:
        """What `gateway doctor` reports of one Triton, which has answered at an address host:port."""
        del settings, address
        return ()

    @classmethod
    async def examine(cls, settings: Settings) -> Sequence[Finding]:
        """What `gateway doctor` reports of what the settings name."""
        del settings
        return ()

    def authenticator(self) -> Authenticator | None:
        """The check of keys; the first plug-in's is used. Raises UserError if it needs a file that cannot be read."""
        return None

    def has_admins(self) -> bool:
        """Whether models can be loaded, unloaded and rolled out over HTTP, with the key of an admin."""
        return False

    def record_rollout(self, model_name: str, rollout: "Rollout") -> "Rollout | None":
        """Record in a model's repository which of its versions answer; returns what was recorded before.

        None leaves it to others. Called on a thread. Raises ModelNotFound, InvalidParameter, or LoadFailed if the
        repository cannot be written.
        """
        del model_name, rollout
        return None

    def backend(self, plugins: "Plugins") -> "Backend | None":
        """The inference server instead of the Tritons of the settings; the first plug-in that has one supplies it.

        `plugins` are all of the application: it may use their `repair`. Called in the event loop that uses it; the
        service starts and closes it.
        """
        del plugins
        return None

    def repair(self) -> RepairOf | None:
        """What reloads models that fail, of each Triton; the first plug-in that has it does."""
        return None

    def check_load(self, model_name: str) -> str | None:
        """A warning about a model that an admin loads; raises LoadFailed to refuse that. Called on a thread."""
        del model_name
        return None

    def routers(self) -> "Sequence[APIRouter]":
        """Routes of the API. Each endpoint declares its traits; see gateway.api.route_table."""
        return ()

    def document(self, schema: dict[str, Any]) -> None:
        """Complete the OpenAPI document."""

    def shapes(self) -> Mapping[str, AnswerShape]:
        """Formats of the response of POST /predict, by the value of its parameter `format`."""
        return {}

    def body_readers(self) -> "Mapping[str, BodyReader]":
        """Readers of bodies of further media types, by media type in lower case; the first plug-in's are used.

        Forms, image/* and application/octet-stream are read by the core.
        """
        return {}

    def websockets(self) -> "Mapping[str, WebSocketProtocolOf]":
        """What serves the WebSockets at some paths; elsewhere, an offer of the protocol is ignored."""
        return {}

    def error_formats(self) -> Sequence[ErrorFormat]:
        """The formats of error responses below some paths, if they are no problem documents."""
        return ()

    def middleware(self) -> "Sequence[Middleware]":
        """ASGI middleware around the application, the first one outermost.

        It sees every request before its API key is checked, and the final headers of every response, also of errors.
        """
        return ()

    def cors_headers(self) -> Sequence[str]:
        """Headers that web pages of other origins may send and read."""
        return ()

    def lifespan(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """What runs beside the service: entered once it has started, and left before it closes."""
        del runtime
        return nullcontext()

    def steps(self) -> "Sequence[Step]":
        """Steps of each image, once its header is known and before it has a permit; see gateway.inference.steps."""
        return ()

    def request_fields(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Fields of a request for observers, from its headers; raises InvalidParameter."""
        del headers
        return {}

    def expansion(self, parameter: str, value: str) -> "Expansion | None":
        """What makes several images of each upload, if a parameter of POST /predict asks for it; else None.

        Raises InvalidParameter. It serves one request.
        """
        del parameter, value
        return None

    def observer(self) -> "Observer | None":
        """What sees the results of all requests."""
        return None

    def fetcher(self) -> Fetcher | None:
        """What makes uploads of references; None if bodies must not refer to images."""
        return None


P = TypeVar("P", bound=Plugin)
_NO_FIELDS: Mapping[str, str] = {}


def _has(plugin: Plugin, hook: str) -> bool:
    """Whether a plug-in overrides a hook and needs it with its settings."""
    return getattr(type(plugin), hook) is not getattr(Plugin, hook) and hook not in plugin.idle_hooks


class Plugins:
    """The plug-ins of one application."""

    def __init__(self, plugins: Sequence[Plugin] = ()) -> None:
        self._plugins = {type(plugin): plugin for plugin in plugins}
        self._request_fields = [plugin.request_fields for plugin in plugins if _has(plugin, "request_fields")]

    def __iter__(self) -> Iterator[Plugin]:
        return iter(self._plugins.values())

    def get(self, kind: type[P]) -> P:
        """The plug-in of a class."""
        plugin = self._plugins[kind]
        assert isinstance(plugin, kind)
        return plugin

    def authenticator(self) -> Authenticator | None:
        """The authenticator of the first plug-in that has one."""
        return next((found for plugin in self if (found := plugin.authenticator()) is not None), None)

    @property
    def have_admins(self) -> bool:
        """Whether any plug-in has admins."""
        return any(plugin.has_admins() for plugin in self)

    def shapes(self) -> dict[str, AnswerShape]:
        """The response formats of all plug-ins."""
        return {name: shape for plugin in self for name, shape in plugin.shapes().items()}

    def body_readers(self) -> "dict[str, BodyReader]":
        """The readers of all plug-ins; the first plug-in that names a media type reads it."""
        return {name: reader for plugin in reversed(list(self)) for name, reader in plugin.body_readers().items()}

    def backend(self) -> "Backend | None":
        """The backend of the first plug-in that has one."""
        return next((found for plugin in self if (found := plugin.backend(self)) is not None), None)

    def repair(self) -> RepairOf | None:
        """The repair of the first plug-in that has one."""
        return next((found for plugin in self if (found := plugin.repair()) is not None), None)

    def record_rollout(self, model_name: str, rollout: "Rollout") -> "Rollout":
        """What was recorded before; raises what the hook raises, and NotFound if no plug-in has the repository."""
        for plugin in self:
            if (before := plugin.record_rollout(model_name, rollout)) is not None:
                return before
        raise NotFound("This service has no access to its model repository: run `gateway model use` where that is.")

    def check_load(self, model_name: str) -> str | None:
        """The first warning; raises LoadFailed."""
        return next((found for plugin in self if (found := plugin.check_load(model_name)) is not None), None)

    def websockets(self) -> "dict[str, WebSocketProtocolOf]":
        """What serves WebSockets, by path; the first plug-in that names a path serves it."""
        return {path: serve for plugin in reversed(list(self)) for path, serve in plugin.websockets().items()}

    def error_formats(self) -> Sequence[ErrorFormat]:
        """The error formats of all plug-ins."""
        return [each for plugin in self for each in plugin.error_formats()]

    def request_fields(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The fields of a request, of all plug-ins."""
        if not self._request_fields:
            return _NO_FIELDS
        fields: dict[str, str] = {}
        for read in self._request_fields:
            fields.update(read(headers))
        return fields

    def steps(self) -> "Sequence[Step]":
        """The steps of all plug-ins."""
        return [step for plugin in self for step in plugin.steps()]

    def observers(self) -> "Sequence[Observer]":
        """The observers of all plug-ins."""
        return [found for plugin in self if (found := plugin.observer()) is not None]

    def expansion(self, parameter: str, value: str) -> "Expansion":
        """The expansion of the first plug-in that knows a parameter; raises InvalidParameter."""
        for plugin in self:
            if (found := plugin.expansion(parameter, value)) is not None:
                return found
        raise InvalidParameter(f"{parameter!r}: this service has no plug-in for it.")

    def fetcher(self) -> Fetcher | None:
        """The fetcher of the first plug-in that has one."""
        return next((found for plugin in self if (found := plugin.fetcher()) is not None), None)
