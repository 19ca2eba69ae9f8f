"""Clients of six languages send a picture under names that are hard to quote.

Each picture is answered, and its name comes back as docs/reference/images.md says. The programs are those of users.
"""

import asyncio
import importlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.processes import PROJECT, Gateway

pytestmark = [pytest.mark.long, pytest.mark.triton]

FOLDER = Path(__file__).parent / "clients"
PICTURE = PROJECT / "docs" / "examples" / "cat.jpg"
LONG = "x" * 196 + ".jpg"
NAMES = (
    "cat.jpg",
    "my cat.jpg",
    'a 5" x.jpg',
    "a;b.jpg",
    "Kätzchen.jpg",
    "猫.jpg",
    "🐈.jpg",
    "100%.jpg",
    "50%20off.jpg",
)
NAMES = (*NAMES, r"C:\cats\cat.jpg", LONG)
Answer = dict[str, Any]


def by_requests(url: str) -> Iterator[Answer]:
    requests = importlib.import_module("requests")
    for name in NAMES:
        yield requests.post(url, files={"files": (name, PICTURE.read_bytes(), "image/jpeg")}).json()


def by_httpx(url: str) -> Iterator[Answer]:
    for name in NAMES:
        yield httpx.post(url, files={"files": (name, PICTURE.read_bytes(), "image/jpeg")}).json()


def by_aiohttp(url: str, **options: bool) -> Iterator[Answer]:
    aiohttp = importlib.import_module("aiohttp")

    async def answers() -> list[Answer]:
        found = []
        async with aiohttp.ClientSession() as session:
            for name in NAMES:
                form = aiohttp.FormData(**options)
                form.add_field("files", PICTURE.read_bytes(), filename=name, content_type="image/jpeg")
                async with session.post(url, data=form) as response:
                    found.append(await response.json())
        return found

    yield from asyncio.run(answers())


def by_curl(url: str) -> Iterator[Answer]:
    for name in NAMES:
        # curl's own quotes, without which a semicolon ends the name.
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        yield from answers_of("curl", "-s", "-F", f'files=@"{PICTURE}";filename="{quoted}"', url)


def program(*command: str) -> Callable[[str], Iterator[Answer]]:
    return lambda url: answers_of(*command, url, str(PICTURE))


def answers_of(*command: str) -> Iterator[Answer]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    names = "".join(f"{name}\n" for name in NAMES).encode()
    done = subprocess.run(command, input=names, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    yield from map(json.loads, done.stdout.splitlines())


CLIENTS: dict[str, Callable[[str], Iterator[Answer]]] = {
    "requests": by_requests,
    "httpx": by_httpx,
    "aiohttp": by_aiohttp,
    "aiohttp, unquoted": partial(by_aiohttp, quote_fields=False),
    "curl": by_curl,
    "Node fetch": program("node", str(FOLDER / "node.js")),
    "Java": program("java", str(FOLDER / "Java.java")),
    "PHP curl": program("php", str(FOLDER / "php.php")),
    "Go": program("go", "run", str(FOLDER / "go.go")),
}


def expected(client: str) -> list[str]:
    """The names that come back: those of the files, without folders; aiohttp encodes them."""
    return [quote(name, safe="") for name in NAMES] if client == "aiohttp" else [*NAMES[:-2], "cat.jpg", LONG]


@pytest.mark.parametrize("client", CLIENTS)
def test_each_picture_is_answered_under_its_name(gateway: Gateway, client: str):
    answers = list(CLIENTS[client](f"{gateway.url}/predict?top_k=1"))
    assert [answer["summary"] for answer in answers] == [{"ok": 1, "failed": 0}] * len(NAMES), answers
    results = [answer["results"][0] for answer in answers]
    assert {result["predictions"][0]["label"] for result in results} == {"Egyptian cat"}
    assert [result["filename"] for result in results] == expected(client)


@pytest.mark.parametrize("image", [str(PICTURE), PICTURE.read_bytes()], ids=["path", "bytes"])
def test_client_of_hugging_face_classifies(gateway: Gateway, image: str | bytes):
    hub = importlib.import_module("huggingface_hub")
    client = hub.InferenceClient(f"{gateway.url}/predict?format=huggingface")
    for options in ({}, {"top_k": 1}):
        assert client.image_classification(image, **options)[0].label == "Egyptian cat"
    plain = hub.InferenceClient(f"{gateway.url}/predict")
    assert len(plain.image_classification(image, top_k=1)) == 1
