"""What a test leaves behind: threads, child processes, open sockets and files, temporary files, counts of the service.

A test that leaves something fails, by the fixture `nothing_left_behind`. What fixtures of a wider scope start may stay.
"""

import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway_local.groups import REAPER, kill_group

GRACE_SECONDS = 5
"""How long leftovers may take to end: a connection that its peer has closed, a thread that has been told to stop."""
PROJECT = Path(__file__).resolve().parents[1]
CORE_COUNTS = (
    "IMAGES_IN_FLIGHT",
    "IMAGES_WAITING",
    "BYTES_IN_FLIGHT",
    "BYTES_WAITING",
    "ANSWER_BYTES",
    "CONNECTIONS",
    "DECODING_BYTES",
    "STREAMS",
)
COUNTS = {
    "gateway.metrics": CORE_COUNTS,
    "gateway_plugins.urls.metrics": ("FETCHES",),
    "gateway_predictions.metrics": ("PREDICTION_LOG_QUEUE_ROWS", "PREDICTION_LOG_QUEUE_BYTES"),
}
"""Gauges of what requests hold, by their module: of one process, in which one test follows another."""
FOR_GOOD = ("/dev/urandom", "/dev/null", "/dev/nvidia", "/proc/", "/sys/", "anon_inode:inotify")
"""Files that libraries open once, at their first use, and keep."""
OF_LIBRARIES = ("/matplotlib/mpl-data/fonts/", "/.onnxruntime/onnxruntime.db")
"""Parts of the paths of others: matplotlib's fonts and ONNX Runtime's database of its events."""
OF_EVERY_TEST = {"temporary_files", "quick_starts", "shared_by_all_tests", "anyio_backend"}
"""Fixtures of a wider scope that open no connection later."""
ONCE_FOR_A_PROCESS = ("_poll_wrapper", "fsspecIO", "tqdm_monitor")
"""Names of threads that a library starts at its first use and never ends: grpc.aio's poller, fsspec's and tqdm's."""
Leftover = tuple[str, object]


def _threads() -> set[Leftover]:
    threads = threading.enumerate()
    return {("thread", each) for each in threads if not any(name in each.name for name in ONCE_FOR_A_PROCESS)}


def _children() -> set[Leftover]:
    """The direct children of this process, with those that have ended and that nothing has waited for."""
    found: set[Leftover] = set()
    for task in os.scandir("/proc/self/task"):
        with suppress(OSError), open(f"{task.path}/children") as children:  # noqa: PTH123  # see KINDS
            found.update(("process", int(child)) for child in children.read().split())
    return found


def _open_files() -> set[Leftover]:
    found: set[Leftover] = set()
    for handle in os.scandir("/proc/self/fd"):
        with suppress(OSError):  # the listing itself
            target = os.readlink(handle.path)  # noqa: PTH115  # see KINDS
            if not target.startswith(FOR_GOOD) and not any(part in target for part in OF_LIBRARIES):
                found.add(("open file", (handle.name, target)))
    return found


def _files() -> set[Leftover]:
    """Temporary files, and those in the project's folder but caches of tools."""
    folders = (tempfile.gettempdir(), PROJECT)
    # torch makes a folder for its compiler once, and keeps it.
    kept = (".", "torchinductor_")
    return {("file", each.path) for folder in folders for each in os.scandir(folder) if not each.name.startswith(kept)}


def _counts() -> set[Leftover]:
    loaded = ((sys.modules[module], names) for module, names in COUNTS.items() if module in sys.modules)
    gauges = (getattr(module, name) for module, names in loaded for name in names)
    found = ((sample.name, sample.value) for gauge in gauges for each in gauge.collect() for sample in each.samples)
    return {("count", (name, value)) for name, value in found if value}


KINDS: tuple[Callable[[], set[Leftover]], ...] = (_threads, _children, _open_files, _files, _counts)
"""Called before and after each test, and so without pathlib, which would take three times as long."""


def _present() -> set[Leftover]:
    return set().union(*(kind() for kind in KINDS))


def _words(kind: str, what: object) -> str:
    if isinstance(what, threading.Thread):
        return f"thread {what.name} ({getattr(what, '_target', None)})"
    if kind == "process":
        try:
            command = Path(f"/proc/{what}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            command = ""
        return f"process {what}: {command[:200] or 'ended, and not waited for'}"
    return f"{kind} {what}"


_allowed: set[Leftover] = set()
"""What fixtures of modules, classes and sessions have started."""
_poller: set[Leftover] = set()
"""The open files of grpc.aio's poller."""
_shared: set[tuple[str, str]] = set()
"""Names of these fixtures, with the node that each was defined for; see _of_something_shared."""


@contextmanager
def lasting() -> Iterator[None]:
    """What starts inside may outlive the test: a helper that all tests of a process share."""
    before = _present()
    yield
    _allowed.update(_present() - before)


@contextmanager
def closing_descriptors() -> Iterator[None]:
    """Close what os.dup and os.memfd_create open inside, for code that leaves this to the end of its process."""
    opened: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        for function in (os.dup, os.memfd_create):

            def recorded(*given: Any, open_: Callable[..., int] = function) -> int:
                opened.append(open_(*given))
                return opened[-1]

            patch.setattr(os, function.__name__, recorded)
        yield
    for descriptor in opened:
        os.close(descriptor)


def _of_a_loop(kind: str, what: object) -> bool:
    """Whether an event loop, and the service in it, may have opened this later than it was started itself."""
    if isinstance(what, threading.Thread):
        return what.name.startswith(("asyncio_", "AnyIO worker thread", "lookup_"))
    if kind == "process":
        with suppress(OSError):
            return b"gateway_decoder" in Path(f"/proc/{what}/cmdline").read_bytes()
    return kind == "open file"


def _of_something_shared(kind: str, what: object) -> bool:
    """Whether a client, a server or a service that several tests share may have made this later than it started."""
    if isinstance(what, threading.Thread):
        return what.name.startswith("ThreadPoolExecutor-") or "process_request_thread" in what.name
    return kind == "file" or (kind == "open file" and any(word in str(what) for word in ("socket:", "pipe:")))


def _grpc_polls() -> bool:
    """Whether grpc.aio has started its poller, once for the process, at the first channel."""
    return any("_poll_wrapper" in each.name for each in threading.enumerate())


def _of_a_poller(kind: str, what: object) -> bool:
    return kind == "open file" and any(part in str(what) for part in ("[eventpoll]", "[eventfd]"))


def _left_since(before: set[Leftover], *, shares: bool, browses: bool) -> set[Leftover]:
    present = _present()
    left = present - before - _allowed - _poller
    if shares:
        left = {each for each in left if not _of_something_shared(*each)}
    if browses:  # a shared browser keeps connections for its next requests
        left = {each for each in left if not (each[0] == "count" and "gateway_connections" in str(each[1]))}
    if any(kind == "open file" and "eventpoll" in str(what) for kind, what in present & _allowed):  # a fixture's loop
        left = {each for each in left if not _of_a_loop(*each)}
    return left


@pytest.fixture(scope="session", autouse=True)
def shared_by_all_tests() -> None:
    """Start what lasts as long as a process: libuv's pipe of signals, multiprocessing's tracker, our reaper."""
    uvloop.new_event_loop().close()
    resource_tracker.ensure_running()
    leader = subprocess.Popen(["true"], start_new_session=True)
    REAPER.watch(leader.pid)
    kill_group(leader)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Let what fixtures of a wider scope start outlive the test that needs them first."""
    if fixturedef.scope == "function":
        return (yield)
    if fixturedef.argname not in OF_EVERY_TEST:
        _shared.add((fixturedef.argname, fixturedef.baseid))
    with lasting():
        return (yield)


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Note a failure: what the test then leaves follows from it, and need not be reported."""
    item.stash[_FAILED] = True
    result = yield
    item.stash[_FAILED] = False
    return result


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a process, an open file or socket, a temporary file, or a count above 0.

    Garbage is collected before anything counts as left. To mend a test: `with`, or a fixture that ends what it starts.
    """
    before, polled = _present(), _grpc_polls()
    yield
    if request.node.stash.get(_FAILED, True):
        return
    if _grpc_polls() and not polled:
        _poller.update(each for each in _open_files() - before if _of_a_poller(*each))
    deadline = time.monotonic() + GRACE_SECONDS
    next_collection = 0.0
    node = request.node.nodeid
    shares = any(name in request.fixturenames and node.startswith(where) for name, where in _shared)
    browses = "browser" in request.fixturenames
    while left := _left_since(before, shares=shares, browses=browses):
        now = time.monotonic()
        if now > next_collection:  # more than once, since what a thread holds becomes garbage when it ends
            gc.collect()
            next_collection = time.monotonic() + 1
        elif now > deadline:
            words = "; ".join(sorted(_words(*each) for each in left))
            pytest.fail(f"the test leaves behind: {words}", pytrace=False)
        else:
            time.sleep(0.01)
