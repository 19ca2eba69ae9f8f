"""The hooks of a plug-in: the public interface by which a package adds to the service.

A plug-in is a subclass of `Plugin`, named by an entry point of the group `triton_gateway`. It overrides the hooks that
it needs. Every hook but `record_rollout` is called once, when the application is made or starts. So a hook that is
not overridden costs nothing. docs/guides/plugins.md lists them, has examples, and says what may change.

Several plug-ins combine by what a hook returns:

    one thing, or None        the first plug-in that returns something; yours come before the gateway's
    a sequence                all of them, in the same order
    a mapping                 all of them; of two with one key, the first plug-in's

An implementation may leave out arguments that it does not need.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import structlog

from gateway.errors import GatewayError, UserError
from gateway.findings import Finding, fail
from gateway.inference import answer_shape
from gateway.limits.caller import ANYONE, Caller
from gateway.settings import Section, Settings
from gateway.timing import interrupted_after
from gateway.values.arguments import adapt

if TYPE_CHECKING:  # commands that only read the settings load none of these
    from fastapi import APIRouter, FastAPI
    from pydantic import BaseModel
    from starlette.middleware import Middleware

    from gateway.draining import Draining
    from gateway.inference.backend import Backend
    from gateway.inference.request import Observer, Step
    from gateway.inference.request_spec import Expansion
    from gateway.inference.service import InferenceService
    from gateway.ingest.upload import BodyReader, UploadsOrUrls
    from gateway.limits.bounds import Bound
    from gateway.limits.pools import Pool
    from gateway.values.rollout import Rollout

log = structlog.get_logger("gateway")

CLOSE_SECONDS = 5.0
"""Longest time that a plug-in may take to leave its `lifespan`."""

GROUP = "triton_gateway"
"""The group of entry points that name plug-ins."""


class PluginFailed(UserError):
    """An installed plug-in cannot be loaded, or one of its hooks has failed."""

    @classmethod
    def of(cls, name: str, error: Exception, what: str = "") -> Self:
        """The error for an exception of a plug-in's code; `what` is the part that failed, such as " in routers"."""
        return cls(f"the plug-in {name!r} failed{what}: {type(error).__name__}: {error}")


class Fetcher(Protocol):
    """Makes uploads of the images that a body refers to."""

    def __call__(self, images: "UploadsOrUrls", *, key_bound: "Bound | None", client: str) -> "UploadsOrUrls":
        """Replace each reference that it can fetch by an upload, and pass on all others.

        Bytes that they hold of the upload buffer also count for the request's API key. `client` identifies the sender,
        see gateway.values.clients.
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
    """The owner of a request's key."""

    name: str
    """For the log, the metrics, and observers."""
    admin: bool = False
    """Whether it may load and unload models."""
    caller: Caller = ANYONE
    """The limits of its requests."""


class Authenticator(ABC):
    """Knows the keys of requests. A key is valid if any authenticator knows it."""

    @property
    def admin_only(self) -> bool:
        """Whether only routes for admins need a key."""
        return False

    @property
    def has_admins(self) -> bool:
        """Whether any of its keys may load and unload models over HTTP."""
        return False

    @abstractmethod
    def identify(self, key: bytes) -> Identity | None:
        """The owner of a key, without waiting; None if it is unknown. Raises Unauthorized with the reason of a refusal.

        It is the bearer token of the header Authorization, or the header X-API-Key, and not empty. Open streams ask
        again every few seconds, and end once the key is invalid.
        """


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
"""A response format of POST /predict: how to write each file's result, and the bytes around the results."""


WebSocketProtocolOf = Callable[..., object]
"""Makes the protocol of a WebSocket from a connection; see gateway.server.connection.ProtocolOf."""


@dataclass(slots=True)
class Runtime:
    """The objects of a running service that its requests, its plug-ins and its server share.

    It is `runtime` in the lifespan state. With the server's own protocol, a request's state also has the PoolClient
    that reads its response as `reader`.
    """

    app: "FastAPI"
    settings: Settings
    service: "InferenceService"
    plugins: "Plugins"
    knows_key: Callable[[Sequence[tuple[bytes, bytes]]], bool]
    """Whether a request with these headers has a valid API key, or needs none."""
    upload_bound: "Callable[[Sequence[tuple[bytes, bytes]]], Bound | None]"
    """The share of the upload buffer of the API key in these headers, None without one."""
    draining: "Draining"
    uploads: "Pool"
    """The bytes of uploads that arrive or wait."""
    responses: "Pool"
    """The bytes of responses that are built or not read yet."""
    streams: "Pool"
    error_formats: Sequence[ErrorFormat]
    websockets: Mapping[str, WebSocketProtocolOf]
    body_readers: "Mapping[str, BodyReader]"
    fetchers: Sequence[Fetcher] = ()

    def is_ready(self) -> bool:
        """Whether the default model answered the last probe at any Triton, and the service is not stopping."""
        return any(each.ready for each in self.service.backend.health()) and not self.draining.begun


class Plugin:
    """A plug-in of one application. The hooks do nothing unless they are overridden."""

    settings: ClassVar[type[Section] | None] = None
    """The plug-in's own settings; `Section.of` finds them in the settings of the service."""
    metrics: ClassVar[str | None] = None
    """Name of the module with the plug-in's metrics. It is loaded with the application, whether or not the plug-in is
    used, so that the series exist from the start."""
    errors: ClassVar[str | None] = None
    """Name of the module with the plug-in's errors: subclasses of classes in gateway.errors, each with its own code."""

    name: ClassVar[str] = ""
    """The name of its entry point, or of its class."""

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__

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
    async def examine(cls, settings: Settings) -> Sequence[Finding]:
        """Findings of `gateway doctor` about the services that the settings name."""
        del settings
        return ()

    def authenticators(self) -> Sequence[Authenticator]:
        """Checks of keys; with none of any plug-in the API is open. Raises UserError if a file cannot be read."""
        return ()

    def record_rollout(self, model_name: str, rollout: "Rollout") -> "Rollout | None":
        """Record in a model's repository which of its versions answer; returns the previous record.

        None leaves it to others. Called on a thread. Raises ModelNotFound, InvalidParameter, or LoadFailed if the
        repository cannot be written.
        """
        del model_name, rollout
        return None

    def backend(self) -> "Backend | None":
        """The inference server instead of the Triton servers of the settings.

        Called in the event loop that uses it; the service starts and closes it.
        """
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
        """Readers of more media types, by media type in lower case.

        The core reads forms, image/* and application/octet-stream.
        """
        return {}

    def websockets(self) -> "Mapping[str, WebSocketProtocolOf]":
        """Protocols of WebSockets, by path; on other paths, an offer to upgrade is ignored."""
        return {}

    def error_formats(self) -> Sequence[ErrorFormat]:
        """The formats of error responses below some paths, if they are no problem documents."""
        return ()

    def middleware(self) -> "Sequence[Middleware]":
        """ASGI middleware around the application, the first one outermost.

        It sees every request before its API key is checked, and the final headers of every response, also of errors.
        """
        return ()

    def lifespan(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """A context around the service: entered once it has started, and left before it closes."""
        del runtime
        return nullcontext()

    def steps(self) -> "Sequence[Step]":
        """Steps of each image, once its header is known and before it has a permit; see gateway.predict."""
        return ()

    def expansions(self) -> "Mapping[str, Callable[[str], Expansion]]":
        """Makers of several images of each upload, by the parameter of POST /predict that selects one.

        A maker gets the value of the parameter, raises InvalidParameter, and serves one request.
        """
        return {}

    def observers(self, service: "InferenceService") -> "Sequence[Observer]":
        """Observers of the results of all requests, which may use the service."""
        del service
        return ()

    def fetchers(self) -> Sequence[Fetcher]:
        """Makers of uploads for references; without any, bodies cannot refer to images."""
        return ()


Kind = Plugin | type[Plugin]
HOOKS = tuple(name for name in vars(Plugin) if not name.startswith("_") and callable(getattr(Plugin, name)))


class Plugins(Plugin):
    """Several plug-ins as one, which combines their hooks; either an application's plug-ins, or classes.

    An exception of a hook becomes PluginFailed, with the name of its plug-in.
    """

    def __init__(self, plugins: Sequence[Kind] = ()) -> None:
        self._plugins = tuple(plugins)
        for hook in HOOKS:
            if hook not in vars(Plugins) and (having := self._having(hook)):
                setattr(self, hook, partial(_combine, having, hook))

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._plugins)

    def owner_of(self, modules: Sequence[str]) -> str:
        """The name of the plug-in of the last module that belongs to one; "" if none does."""
        packages = {type(each).__module__.rpartition(".")[0] or type(each).__module__: each.name for each in self}
        parts = [part for module in modules for part in (module, module.rpartition(".")[0])]
        return next((packages[part] for part in reversed(parts) if part in packages), "")

    def blamed(self, error: BaseException) -> str:
        """The name of the plug-in whose code raised an error; "" if none did."""
        return self.owner_of([frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)])

    @contextmanager
    def named(self) -> Iterator[None]:
        """While the service starts: an error that a plug-in's code raises becomes PluginFailed with its name."""
        try:
            yield
        except (UserError, GatewayError):
            raise
        except Exception as error:
            if not (name := self.blamed(error)):
                raise
            raise PluginFailed.of(name, error) from error

    async def examine(self, settings: Settings) -> Sequence[Finding]:  # type: ignore[override]  # of all
        """The findings of all; an exception becomes a finding, and costs the others nothing."""
        findings: list[Finding] = []
        for plugin in self._having("examine"):
            try:
                findings += await _call(plugin, "examine", settings)
            except Exception as error:
                findings.append(fail(f"plug-in {plugin.name}", f"{type(error).__name__}: {error}", "correct it"))
        return findings

    @asynccontextmanager
    async def lifespan(self, runtime: Runtime) -> AsyncIterator[None]:
        """Enter all, and leave them in reverse order, each within CLOSE_SECONDS."""
        async with AsyncExitStack() as stack:
            for plugin in self._having("lifespan"):
                await stack.enter_async_context(_bounded(plugin, runtime))
            yield

    def _having(self, hook: str) -> Sequence[Kind]:
        """The plug-ins that override a hook; a class has class methods only."""
        of_classes = isinstance(vars(Plugin)[hook], classmethod)
        return [each for each in self if hook in hooks_of(each) and (of_classes or isinstance(each, Plugin))]


def hooks_of(plugin: Kind) -> Sequence[str]:
    """The names of the hooks that a plug-in overrides."""
    return [hook for hook in HOOKS if getattr_static(plugin, hook) is not vars(Plugin)[hook]]


@contextmanager
def naming(name: str, what: str = "") -> Iterator[None]:
    """An exception in this block, which calls the code of a plug-in, becomes PluginFailed."""
    try:
        yield
    except (UserError, GatewayError):
        raise
    except Exception as error:
        raise PluginFailed.of(name, error, what) from error


def _call(plugin: Kind, hook: str, *arguments: object) -> Any:  # noqa: ANN401  # of the hook
    """Call a hook of one plug-in, with the arguments that it names."""
    with naming(plugin.name, f" in {hook}"):
        return adapt(getattr(plugin, hook), getattr(Plugin, hook))(*arguments)


def _combine(plugins: Sequence[Kind], hook: str, *arguments: object) -> object:
    """Combine the results of a hook of several plug-ins, as described at the top of this module."""
    several: list[Any] = []
    for plugin in plugins:
        result = _call(plugin, hook, *arguments)
        if isinstance(result, Mapping | list | tuple):
            several.append(result)
        elif result is not None:
            return result
    if not several:
        return None
    if isinstance(several[0], Mapping):
        return {key: value for mapping in reversed(several) for key, value in mapping.items()}
    return [each for sequence in several for each in sequence]


@asynccontextmanager
async def _bounded(plugin: Kind, runtime: Runtime) -> AsyncIterator[None]:
    """The lifespan of one plug-in, whose end takes at most CLOSE_SECONDS and hinders no other."""
    with naming(plugin.name, " in lifespan"):
        span = _call(plugin, "lifespan", runtime)
        await span.__aenter__()
    try:
        yield
    finally:
        try:
            async with interrupted_after(CLOSE_SECONDS):
                await span.__aexit__(None, None, None)
        except Exception:
            log.exception("plugin_not_closed", plugin=plugin.name, most_seconds=CLOSE_SECONDS)
