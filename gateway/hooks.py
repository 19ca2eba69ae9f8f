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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

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
    from gateway.inference.tools import Tools
    from gateway.ingest.upload import BodyReader, UploadsOrUrls
    from gateway.limits.bounds import Bound
    from gateway.limits.pools import Pool
    from gateway.values.rollout import Rollout

log = structlog.get_logger("gateway")

CLOSE_SECONDS = 10.0
"""Longest time that a plug-in may take to leave its `lifespan`."""

GROUP = "triton_gateway"
"""The group of entry points that name plug-ins."""


class PluginFailed(UserError):
    """An installed plug-in cannot be loaded, or one of its hooks has failed."""


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

    def observers(self, tools: "Tools") -> "Sequence[Observer]":
        """Observers of the results of all requests, which may use parts of the service."""
        del tools
        return ()

    def fetchers(self) -> Sequence[Fetcher]:
        """Makers of uploads for references; without any, bodies cannot refer to images."""
        return ()


P = TypeVar("P", bound=Plugin)
_NOT_HOOKS = {"name", "settings", "metrics", "errors", "lifespan"}
HOOKS = tuple(name for name in vars(Plugin) if not name.startswith("_") and name not in _NOT_HOOKS)
"""The hooks that are called, and that combine by what they return; `lifespan` is entered."""


class Plugins(Plugin):
    """Several plug-ins as one, which combines their hooks; either an application's plug-ins, or classes.

    An exception of a hook becomes PluginFailed, with the name of its plug-in. Raises PluginFailed for a hook with an
    argument that does not exist.
    """

    def __init__(self, plugins: Sequence[Plugin | type[Plugin]] = ()) -> None:
        self._plugins = tuple(plugins)
        overridden = [(each, hooks_of(each)) for each in plugins]
        for hook in HOOKS:
            callable_on = type | Plugin if isinstance(vars(Plugin)[hook], classmethod) else Plugin
            having = [each for each, hooks in overridden if isinstance(each, callable_on) and hook in hooks]
            if calls := [_Call(plugin, hook) for plugin in having]:
                setattr(self, hook, partial(_COMBINED.get(hook, _combine), calls))

    def __iter__(self) -> Iterator[Plugin | type[Plugin]]:
        return iter(self._plugins)

    def get(self, kind: type[P]) -> P:
        """The plug-in of a class."""
        return next(plugin for plugin in self if isinstance(plugin, kind))

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
            raise PluginFailed(f"the plug-in {name!r} failed: {type(error).__name__}: {error}") from error

    @asynccontextmanager
    async def lifespan(self, runtime: Runtime) -> AsyncIterator[None]:
        """Enter all, and leave them in reverse order, each within CLOSE_SECONDS."""
        async with AsyncExitStack() as stack:
            for plugin in self:
                if "lifespan" in hooks_of(plugin):
                    await stack.enter_async_context(_bounded(plugin, runtime))
            yield


def hooks_of(plugin: Plugin | type[Plugin]) -> Sequence[str]:
    """The names of the hooks that a plug-in overrides."""
    return [hook for hook in (*HOOKS, "lifespan") if getattr_static(plugin, hook) is not vars(Plugin)[hook]]


class _Call:
    """The call of a hook of one plug-in, with the arguments that it names."""

    def __init__(self, plugin: Plugin | type[Plugin], hook: str) -> None:
        self.plugin, self._hook = plugin, hook
        try:
            self._function = adapt(getattr(plugin, hook), getattr(Plugin, hook))
        except TypeError as error:
            raise self.failed(error) from error

    def __call__(self, *arguments: object) -> Any:  # noqa: ANN401  # of the hook
        try:
            return self._function(*arguments)
        except (UserError, GatewayError):
            raise
        except Exception as error:
            raise self.failed(error) from error

    def failed(self, error: Exception) -> PluginFailed:
        """The error of the start."""
        return PluginFailed(f"the plug-in {self.plugin.name!r} failed in {self._hook}: {type(error).__name__}: {error}")


def _combine(calls: Sequence[_Call], *arguments: object) -> object:
    """Combine the results of several plug-ins, as described at the top of this module."""
    several: list[Any] = []
    for call in calls:
        found = call(*arguments)
        if isinstance(found, Mapping | list | tuple):
            several.append(found)
        elif found is not None:
            return found
    if not several:
        return None
    if isinstance(several[0], Mapping):
        return {key: value for mapping in reversed(several) for key, value in mapping.items()}
    return [each for sequence in several for each in sequence]


async def _findings(calls: "Sequence[_Call]", *arguments: object) -> Sequence[Finding]:
    """The findings of several plug-ins; an exception becomes a finding."""
    findings: list[Finding] = []
    for call in calls:
        try:
            work: Awaitable[Sequence[Finding]] = call(*arguments)
            findings += await work
        except Exception as error:  # one check must not cost the others
            findings.append(fail(f"plug-in {call.plugin.name}", f"{type(error).__name__}: {error}", "correct it"))
    return findings


_COMBINED = {"examine": _findings}


@asynccontextmanager
async def _bounded(plugin: Plugin | type[Plugin], runtime: Runtime) -> AsyncIterator[None]:
    """The lifespan of one plug-in, whose end takes at most CLOSE_SECONDS and hinders no other."""
    span = _Call(plugin, "lifespan")(runtime)
    try:
        await span.__aenter__()
    except UserError:
        raise
    except Exception as error:
        raise _Call(plugin, "lifespan").failed(error) from error
    try:
        yield
    finally:
        try:
            async with interrupted_after(CLOSE_SECONDS):
                await span.__aexit__(None, None, None)
        except Exception:
            log.exception("plugin_not_closed", plugin=plugin.name, most_seconds=CLOSE_SECONDS)
