"""The event loop of asynchronous tests."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


class Loop(asyncio.SelectorEventLoop):
    """An event loop that ignores the end of a gRPC call that comes after the loop has closed.

    All loops of a process share the event queue of grpc.aio. Without this, the loop of a later test, which takes such
    an event from the queue, raises that the earlier loop is closed, and the later test fails.
    """

    ignored = 0
    """How many events were ignored because the loop had closed."""

    def call_soon_threadsafe(  # type: ignore[override]  # callbacks of other kinds pass through
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed() and getattr(callback, "__module__", "") == "grpc._cython.cygrpc":
            self.ignored += 1
            return asyncio.Handle(callback, args, self)  # which nothing runs
        return super().call_soon_threadsafe(callback, *args, context=context)
