"""Traits of each route, declared at its endpoint, and looked up by path before FastAPI routes a request."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fastapi import APIRouter

from gateway import metrics

Endpoint = Callable[..., Any]
E = TypeVar("E", bound=Endpoint)


class Access(Enum):
    """Which API key a route needs, if keys are required."""

    OPEN = "no key"
    KEY = "any key"
    ADMIN = "an admin key"


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
    """A path with its methods (none for a WebSocket), its endpoint and its traits."""

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
    """The routes of some routers, by path; two routes of one path share the traits of the first."""

    def __init__(self, routers: Iterable[APIRouter], access: Mapping[str, Access] | None = None) -> None:
        """Find the routes; `access` overrides the declarations of some paths."""
        access = access or {}
        self.literal: dict[str, KnownRoute] = {}
        """The routes whose path has no parameter."""
        self._patterns: list[KnownRoute] = []
        for route in (route for router in routers for route in router.routes):
            endpoint, path = route.endpoint, route.path  # type: ignore[attr-defined]  # every route here is a Route
            methods = frozenset(getattr(route, "methods", None) or ())
            pattern = route.path_regex  # type: ignore[attr-defined]
            declared = _TRAITS.get(endpoint, _DEFAULT)
            own = replace(declared, access=access.get(path, declared.access))
            known = KnownRoute(path, pattern, methods, endpoint, own)
            if "{" in path:
                self._patterns.append(known)
            else:
                self.literal.setdefault(path, known)
        admin = [route.path.partition("{")[0] for route in self._patterns if route.traits.access is Access.ADMIN]
        self._admin_folders = tuple(set(admin))

    def __iter__(self) -> Iterator[KnownRoute]:
        yield from self.literal.values()
        yield from self._patterns

    def match(self, path: str) -> KnownRoute | None:
        """The route of a path, also if it does not support the request's method."""
        return self.literal.get(path) or next((each for each in self._patterns if each.pattern.match(path)), None)

    def access(self, path: str, route: KnownRoute | None) -> Access:
        """The key that a path needs, whether or not it has a route; all below a model is for admins."""
        if route is not None:
            return route.traits.access
        folder = next(filter(path.startswith, self._admin_folders), None)
        return Access.ADMIN if folder is not None and "/" in path.removeprefix(folder) else Access.KEY

    def create_series(self) -> None:
        """Create the series that alerts use, since increase() misses the first count of a new series."""
        for route in self:
            if route.traits.takes_images:
                metrics.REQUESTS.labels(route.path, "500", "internal_error")
