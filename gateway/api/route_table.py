"""Traits of each route, declared at its endpoint, and looked up by path before FastAPI routes a request."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fastapi import APIRouter

from gateway import metrics
from gateway.errors import UserError
from gateway.values import variables

Endpoint = Callable[..., Any]
E = TypeVar("E", bound=Endpoint)
Access = variables.Access
WEBSOCKET = "WEBSOCKET"
"""The method of a WebSocket, here and in the log."""


@dataclass(frozen=True, slots=True)
class RouteTraits:
    """Properties of a route that the middleware needs."""

    access: Access = Access.KEY
    takes_images: bool = False
    """Refused early while the queue is full; the time of its stages is measured."""
    polled: bool = False
    """Requested often: logged at debug level."""
    direct: bool = False
    """The endpoint takes the request alone, and is called without FastAPI's routing and dependencies, which would cost
    a third of the application's processor time for a request with one image."""


@dataclass(frozen=True, slots=True)
class KnownRoute:
    """A path with its methods, and the endpoint and traits of the first of its routes."""

    path: str
    """The template, such as /models/{name}."""
    pattern: re.Pattern[str]
    methods: frozenset[str]
    endpoint: Endpoint
    traits: RouteTraits


_TRAITS: WeakKeyDictionary[Endpoint, RouteTraits] = WeakKeyDictionary()
_DEFAULT = RouteTraits()


def traits(
    *,
    access: Access = Access.KEY,
    takes_images: bool = False,
    polled: bool = False,
    direct: bool = False,
) -> Callable[[E], E]:
    """Declare the traits of an endpoint; apply it below the router's decorator."""

    def declare(endpoint: E) -> E:
        _TRAITS[endpoint] = RouteTraits(access, takes_images, polled, direct)
        return endpoint

    return declare


class RouteTable:
    """The routes of some routers, by path."""

    def __init__(self, routers: Iterable[APIRouter], access: Mapping[str, Access] | None = None) -> None:
        """Find the routes; `access` overrides the declarations of some paths.

        Raises UserError if the routes of one path differ in who may use them.
        """
        access = access or {}
        known: dict[str, KnownRoute] = {}
        for route in (route for router in routers for route in router.routes):
            endpoint, path = route.endpoint, route.path  # type: ignore[attr-defined]  # every route here is a Route
            methods = frozenset(getattr(route, "methods", None) or (WEBSOCKET,))
            declared = _TRAITS.get(endpoint, _DEFAULT)
            own = replace(declared, access=access.get(path, declared.access))
            if (first := known.get(path)) is not None:  # FastAPI chooses the endpoint by the method
                if own.access is not first.traits.access:
                    names = ", ".join(sorted(methods))
                    raise UserError(
                        f"The route {names} {path} of a plug-in has access={own.access.value}, and another route of "
                        f"this path has access={first.traits.access.value}: give it another path."
                    )
                shared = replace(first.traits, direct=False)
                known[path] = replace(first, methods=first.methods | methods, traits=shared)
                continue
            known[path] = KnownRoute(path, route.path_regex, methods, endpoint, own)  # type: ignore[attr-defined]
        self.literal = {path: route for path, route in known.items() if "{" not in path}
        """The routes whose path has no parameter."""
        self._patterns = [route for path, route in known.items() if "{" in path]

    def __iter__(self) -> Iterator[KnownRoute]:
        yield from self.literal.values()
        yield from self._patterns

    def match(self, path: str, method: str) -> KnownRoute | None:
        """The route with parameters of a path: the one that supports the method, or else the first one."""
        matching = [each for each in self._patterns if each.pattern.match(path)]
        return next((each for each in matching if method in each.methods), matching[0] if matching else None)

    def create_series(self) -> None:
        """Create the series that alerts use, since increase() misses the first count of a new series."""
        for route in self:
            if route.traits.takes_images:
                metrics.REQUESTS.labels(route.path, "500", "internal_error")
