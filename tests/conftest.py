"""Fixtures of the whole suite: one real Triton with the default model, a small model, photographs."""

import atexit
import functools
import gc
import io
import itertools
import multiprocessing.util
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, settings
from pydantic import ConfigDict, TypeAdapter
from tritonclient.grpc import InferenceServerClient

from gateway.values.files import locked
from gateway_local.json_child import ChildFailed, ask
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, default_cache_dir
from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.wheel import ensure_runtime
from gateway_local.server import EmbeddedTriton
from gateway_models.networks import isolation, served_memory
from gateway_models.networks.export import export_default
from gateway_models.repository.entry import Entry
from tests import counts, postponed, workers
from tests.gateway_models.networks.warm_jobs import WarmProcess
from tests.light_models import lightened
from tests.loops import Loop
from tests.photos import PHOTOS, photo
from tests.processes import Gateway, running_gateway
from tests.services import decoders_on_demand
from tests.shipped import copy_models
from tests.tritons import running_triton

# No deadline: how long an example takes depends on the machine.
ON_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", ON_ANY_MACHINE, derandomize=True, database=None, max_examples=30)
settings.register_profile("thorough", ON_ANY_MACHINE, derandomize=True, database=None, max_examples=300)
settings.register_profile("random", ON_ANY_MACHINE)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C end the processes of tests: a shell ignores it for its background jobs, and children inherit that.

    It also makes tracebacks of applications without configured logs fast: structlog's own take a second.
    """
    # A separate plug-in, since the hooks of a conftest.py are not called for fixtures of the session.
    for plugin in (counts, postponed, workers):
        config.pluginmanager.register(plugin)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    *processors, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, plain])


def unmeasured(*_: object) -> None:
    """In place of `json_child.ask`, which imports torch."""
    raise ChildFailed("tests measure it on demand")


STARTS_TRITON = {"runtime", "triton", "start_triton"}
"""The fixtures behind every Triton that a test starts."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start a Triton or a browser, so that `make check` skips them; the longest come first."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if STARTS_TRITON & fixtures:
            item.add_marker(pytest.mark.triton)
        if "browser" in fixtures:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: workers.position(item.nodeid))


def pytest_collectstart() -> None:
    """Disable garbage collection during the imports, which it would double in time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection, which would take seconds."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # some libraries report uncollected objects at the exit
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put temporary files into pytest's folder, so that pytest removes the ones of killed processes."""
    # Multiprocessing's folder is made before: its sockets need short paths, and it removes the folder itself.
    multiprocessing.util.get_temp_dir()
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_starts() -> Iterator[None]:
    """Start what most tests need in a fraction of the time; see `measured_memory`.

    `tests/gateway_models/commands/test_models.py` runs commands as processes, which start everything as usual.
    """
    adapters: dict[object, TypeAdapter[Any]] = {}

    def adapter(annotated: Any, *, config: ConfigDict | None) -> TypeAdapter[Any]:
        key = (annotated.__origin__, repr(annotated.__metadata__), repr(config))
        if key not in adapters:
            adapters[key] = TypeAdapter(annotated, config=config)
        return adapters[key]

    with pytest.MonkeyPatch.context() as patch, decoders_on_demand():
        # An application has 200 checks of parameters, whose preparation takes two thirds of its start.
        patch.setattr("fastapi._compat.v2.TypeAdapter", adapter)
        # Every httpx client would load certificates for 20 ms, several times the time of a request.
        patch.setattr("httpx._transports.default.create_ssl_context", functools.cache(httpx.create_ssl_context))
        # In processes that tests start, torch's threads sleep instead of spin while they wait for each other.
        patch.setenv("OMP_WAIT_POLICY", "passive")
        # `gateway model add` uses processes that have already imported torch.
        patch.setattr(isolation, "start_process", WarmProcess)
        patch.setattr(served_memory, "ask", unmeasured)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """The event loop of asynchronous tests."""
    return "asyncio", {"loop_factory": Loop}


@pytest.fixture
def measured_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the memory of models that are added, as outside of tests."""
    monkeypatch.setattr(served_memory, "ask", ask)


@pytest.fixture(scope="session")
def runtime() -> TritonRuntime:
    """Triton's runtime in the user's cache: fetched by the first run, reused by later runs."""
    return ensure_runtime(default_cache_dir(), print)


@pytest.fixture(scope="session")
def model_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's models, with the default model, which is exported into the checkout."""
    with locked(DEFAULT_MODEL_REPOSITORY):  # the first of several workers exports it
        export_default(DEFAULT_MODEL_REPOSITORY, print)
    return copy_models(tmp_path_factory.mktemp("shipped") / "triton_models")


@pytest.fixture(scope="session")
def lean_repository(model_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model with one process for each step: each takes seconds to import torch."""
    folder = Path(shutil.copytree(model_repository, tmp_path_factory.mktemp("lean") / "triton_models"))
    for model in ("preprocessor", "classifier"):
        path = folder / model / "config.pbtxt"
        text = re.sub(r"(instance_group \[ \{ kind: KIND_\w+) ", r"\1 count: 1 ", path.read_text())
        assert text != path.read_text()
        path.write_text(text)
    return folder


@pytest.fixture(scope="session")
def light_repository(lean_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's contract without its network: each image is a cat, and no process imports torch."""
    return lightened(lean_repository, tmp_path_factory.mktemp("light") / "triton_models")


@pytest.fixture(scope="session")
def triton(runtime: TritonRuntime, model_repository: Path) -> Iterator[EmbeddedTriton]:
    """A ready Triton on free ports, with its response cache on."""
    with running_triton(runtime, model_repository) as server:
        yield server


@pytest.fixture(scope="session")
def light_triton(runtime: TritonRuntime, light_repository: Path) -> Iterator[EmbeddedTriton]:
    """A ready Triton with `light_repository`, for tests that leave its models unchanged or recovered."""
    with running_triton(runtime, light_repository) as server:
        yield server


@pytest.fixture(scope="session")
def start_gateway(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[Gateway]]:
    """Starts a gateway in a separate process, with the settings of a test."""
    folder, number = tmp_path_factory.mktemp("gateways"), itertools.count()

    def start(**settings: object) -> AbstractContextManager[Gateway]:
        own = folder / str(next(number))
        own.mkdir()
        return running_gateway(own / "log", **settings)

    return start


@pytest.fixture(scope="session")
def triton_client(triton: EmbeddedTriton) -> Iterator[InferenceServerClient]:
    """A blocking gRPC client of `triton`."""
    with InferenceServerClient(triton.url) as connection:
        yield connection


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the photographs as JPEG files."""
    folder = tmp_path_factory.mktemp("photos")
    for name in PHOTOS:
        (folder / f"{name}.jpg").write_bytes(photo(name))
    return folder


@pytest.fixture(scope="session")
def added_head(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Entry]:
    """A repository with a small model `head` of five classes in it; not to be changed."""
    # Torch takes seconds to import, and most tests do without it.
    from gateway_models.networks.add import add
    from gateway_models.repository.spec import ModelSpec
    from tests.gateway_models.networks.builders import Head, save_labels, save_torchscript
    from tests.gateway_models.repository.entries import SMALL

    folder = tmp_path_factory.mktemp("head")
    request = ModelSpec(
        source=str(save_torchscript(Head(), folder / "head.pt")),
        name="head",
        labels=save_labels(folder / "labels.txt"),
        preprocessing=SMALL,
    )
    with redirect_stdout(io.StringIO()):
        return folder / "models", add(request, folder / "models", print)


@pytest.fixture
def own_head(added_head: tuple[Path, Entry], tmp_path: Path) -> Path:
    """A copy of the repository with `head`, to be changed."""
    return Path(shutil.copytree(added_head[0], tmp_path / "models"))
