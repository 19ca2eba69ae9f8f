"""The client against a gateway on a port."""

import asyncio
import io
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from PIL import Image

from gateway.errors import ModelUnavailable, Overloaded
from gateway_client import (
    AsyncGateway,
    Gateway,
    ImageError,
    NamedImage,
    RequestError,
    Result,
    ServiceError,
    blocking,
)
from tests.doubles.backend import CAT, MODEL, PNG, VECTOR, StubBackend, with_vector
from tests.processes import environment, python
from tests.services import stub_service


@pytest.fixture(scope="module")
def url():
    with stub_service(max_files=10, max_file_bytes=100_000) as url:
        yield url


@pytest.fixture
def gateway(url):
    with Gateway(url) as gateway:
        yield gateway


def code_of(result: Result) -> str | None:
    return None if result.error is None else result.error.code


def test_each_image_gets_one_result(gateway, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(57)]
    for path in paths:
        path.write_bytes(PNG)
    paths[-1].write_bytes(b"text")
    results = sorted(gateway.classify(paths), key=lambda result: result.index)
    assert [result.source for result in results] == paths
    assert [result.name for result in results] == [str(path) for path in paths]
    assert {(result.best.label, result.width, result.model, result.version) for result in results[:-1]} == {
        ("cat", 4, "ensemble_model", "1")
    }
    assert code_of(results[-1]) == "unsupported_format"


def test_paths_bytes_pil_images_and_arrays_are_accepted(gateway, tmp_path):
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    gray, rgba = np.zeros((3, 5), np.uint8), np.zeros((6, 7, 4), np.uint8)
    given = [str(path), path, PNG, Image.new("RGB", (8, 9)), Image.new("CMYK", (8, 9)), gray, rgba, rgba[::-1, ::2, :3]]
    results = sorted(gateway.classify([*given, NamedImage("mine", lambda: PNG)]), key=lambda result: result.index)
    assert [result.error for result in results] == [None] * 9
    sizes = [(result.width, result.height) for result in results]
    assert sizes == [(4, 4)] * 3 + [(8, 9), (8, 9), (5, 3), (7, 6), (4, 6), (4, 4)]
    assert results[-1].name == "mine"


@pytest.mark.parametrize(
    "wrong",
    [1, io.BytesIO(PNG), np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 2), np.uint8), Image.new("F", (1, 1))],
)
def test_unsupported_input_raises_type_error(gateway, wrong):
    for given in ([PNG, wrong], wrong):
        with pytest.raises(TypeError, match=r"image|must be uint8|mode|iterable"):
            list(gateway.classify(given))


def test_bad_image_affects_no_other_result(gateway, tmp_path):
    huge = b"x" * 100_001
    results = sorted(gateway.classify([PNG, b"text", tmp_path / "none.png", huge, b"", PNG]), key=lambda r: r.index)
    codes = ["unsupported_format", "unreadable_file", "file_too_large", "empty_file"]
    assert list(map(code_of, results)) == [None, *codes, None]
    assert {type(result.error) for result in results[1:5]} == {ImageError}
    assert "No such file" in results[2].error.message
    assert results[3].error.details == {"limit": "max_file_bytes", "value": 100_000}


def test_parameters_reach_the_service_and_refusals_are_typed(gateway):
    """A single image and a single label need no list."""
    with pytest.raises(RequestError, match="top_k") as raised:
        list(gateway.classify([PNG], top_k=10_000))
    error = raised.value
    assert (error.code, error.status, error.details["limit"]) == ("invalid_parameter", 422, "max_top_k")
    (result,) = gateway.classify([PNG], threshold=0.1, labels=["cat"], version=1, timeout=5, model="ensemble_model")
    assert result.best.label == "cat"
    (result,) = gateway.classify(PNG, labels="cat")
    assert [prediction.label for prediction in result.predictions] == ["cat"]
    assert list(gateway.classify([])) == []


def test_generator_is_read_lazily(gateway):
    read = 0

    def images():
        nonlocal read
        while True:
            read += 1
            yield PNG

    for result in gateway.classify(images()):
        assert result.ok
        break
    assert read < 2_000


def test_unfinished_results_end_with_the_client(url):
    with Gateway(url) as gateway:
        results = gateway.classify([PNG] * 200)
        assert next(results).ok
    results.close()  # does nothing: the loop is closed
    assert not gateway._thread.is_alive()


@contextmanager
def interrupted_call() -> Iterator[tuple[Gateway, Iterator[Result]]]:
    """A client whose call waits to try again, when Ctrl-C comes."""
    waiting, main = threading.Event(), threading.get_ident()
    thread = threading.Thread(target=lambda: waiting.wait(30) and signal.pthread_kill(main, signal.SIGINT))
    with stub_service(StubBackend(Overloaded())) as url, Gateway(url) as gateway:
        results = gateway.classify([PNG] * 5, on_wait=lambda *_: waiting.set())
        thread.start()
        yield gateway, results
        thread.join()


def test_second_ctrl_c_is_harmless(monkeypatch):
    interrupted, wait = threading.Event(), blocking._wait

    def impatient(ended, seconds):
        if seconds != blocking.INTERRUPTED_SECONDS:
            return wait(ended, seconds)
        interrupted.set()  # instead of waiting for the tasks that the first Ctrl-C cancelled
        raise KeyboardInterrupt

    with interrupted_call() as (_, results), monkeypatch.context() as patch:
        patch.setattr(blocking, "_wait", impatient)
        with pytest.raises(KeyboardInterrupt):
            next(results)
    assert interrupted.is_set()


def test_ctrl_c_cancels_running_tasks():
    async def others() -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    with interrupted_call() as (gateway, results):
        with pytest.raises(KeyboardInterrupt):
            next(results)
        assert not asyncio.run_coroutine_threadsafe(others(), gateway._loop).result()


def test_ctrl_c_at_any_moment_ends_a_wait():
    """A signal just before the wait begins, or inside a lock of the standard library, is not lost: the call ends."""
    code = (
        "import asyncio, gc, random, signal, socket\n"
        "from gateway_client import Gateway\n"
        "gc.disable()\n"  # Python drops what is raised in a destructor, and so a signal there
        "server = socket.create_server(('127.0.0.1', 0), backlog=1000)\n"  # accepts, and never answers
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "with Gateway(f'http://127.0.0.1:{server.getsockname()[1]}') as gateway:\n"
        "    for _ in range(300):\n"
        "        try:\n"
        "            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 6e-4))\n"
        "            gateway.limits()\n"
        "        except KeyboardInterrupt:\n"
        "            continue\n"
        "        raise SystemExit('no interrupt')\n"
        "    assert not asyncio.all_tasks(gateway._loop)\n"
    )
    python("-c", code, env=environment())


def test_models_can_be_listed(gateway):
    (model,) = gateway.models()
    assert (model.name, model.labels, model.ready) == ("ensemble_model", ("cat", "dog"), True)


def test_async_iterables_are_accepted(url):
    async def images():
        for _ in range(23):
            await asyncio.sleep(0)
            yield PNG

    async def classify():
        async with AsyncGateway(url) as gateway:
            return [result async for result in gateway.classify(images())]

    assert sorted(result.index for result in asyncio.run(classify())) == list(range(23))


def test_blocking_client_works_inside_an_event_loop(url):
    async def cell():
        with Gateway(url) as gateway:
            return len(list(gateway.classify([PNG] * 3)))

    assert asyncio.run(cell()) == 3


@pytest.mark.parametrize("fault", [Overloaded(), ModelUnavailable()])
def test_temporary_failures_are_retried(fault):
    backend = StubBackend(cycle([fault, CAT]))
    with stub_service(backend) as url, Gateway(url) as gateway:
        results = list(gateway.classify([PNG] * 40))
    assert sorted(result.index for result in results) == list(range(40))
    assert all(result.ok for result in results)
    assert len(backend.calls) > 5


def test_one_version_answers_all_images():
    """The split of a model changes after the first answer."""
    versions = iter("123456789")

    def answer(call):
        return replace(CAT, model_version=call.model_version or next(versions))

    with stub_service(StubBackend(answer)) as url, Gateway(url, batch_images=1) as gateway:
        assert {result.version for result in gateway.classify([b"text", *[PNG] * 8])} == {None, "1"}
        assert len({result.version for result in gateway.classify([PNG] * 8, one_version=False)}) == 8


def test_version_in_use_is_that_of_the_model_or_the_default_one():
    infos = [MODEL, replace(MODEL, name="flowers", version="2", versions=("1", "2"))]
    with stub_service(StubBackend(infos=[replace(MODEL, version="1"), *infos[1:]])) as url, Gateway(url) as gateway:
        assert [gateway.version_in_use(name) for name in (None, "ensemble_model", "flowers")] == ["1", "1", "2"]
        with pytest.raises(RequestError, match="no model 'birds'"):
            gateway.version_in_use("birds")


def test_retries_end_after_retry_seconds():
    waits = []
    with stub_service(StubBackend(Overloaded())) as url, Gateway(url, retry_seconds=1) as gateway:
        results = list(gateway.classify([PNG] * 3, on_wait=lambda fault, seconds: waits.append((fault.code, seconds))))
    assert [(type(result.error), result.error.code) for result in results] == [(ServiceError, "overloaded")] * 3
    assert waits
    assert all(code == "overloaded" and 0 < seconds <= 1 for code, seconds in waits)


def test_api_key_is_sent(tmp_path):
    from gateway.plugins.keys.key_file import add_key

    key = add_key(tmp_path / "keys", "me")
    with stub_service(api_keys_file=tmp_path / "keys") as url:
        with Gateway(url) as gateway, pytest.raises(RequestError) as raised:
            list(gateway.classify([PNG]))
        assert raised.value.code == "unauthorized"
        with Gateway(url, key) as gateway:
            assert next(gateway.classify([PNG])).ok
        with Gateway(url.removeprefix("http://"), key) as gateway:
            assert next(gateway.classify([PNG])).ok


def test_embeddings_are_32_bit_floats_beside_classes():
    with stub_service(StubBackend(with_vector)) as url, Gateway(url) as gateway:
        good, bad = sorted(gateway.embed([PNG, b"no image"], top_k=1), key=lambda result: result.index)
        assert np.frombuffer(good.embedding, np.float32).tolist() == VECTOR.tolist()
        assert good.best.label == "cat"
        assert (bad.embedding, bad.error.code) == (None, "unsupported_format")
        (one,) = gateway.embed(PNG, normalize=True)
        assert np.allclose(np.frombuffer(one.embedding, np.float32), VECTOR / 5)
        assert one.best is None
        (classified,) = gateway.classify(PNG)
        assert classified.embedding is None
        with pytest.raises(RequestError, match="--embeddings"):
            list(gateway.embed(PNG, model="plain"))

        async def vectors() -> list[list[float]]:
            async with AsyncGateway(url) as gateway:
                return [result.embedding.tolist() async for result in gateway.embed([PNG, PNG])]

        assert asyncio.run(vectors()) == [VECTOR.tolist()] * 2
