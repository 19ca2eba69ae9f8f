"""A gateway in front of a real Triton, in this process."""

from contextlib import AbstractContextManager

from gateway.triton.opening import create_backend
from gateway_local.server import EmbeddedTriton
from tests.services import Client, client_of
from tests.settings import Settings


def gateway_of(server: EmbeddedTriton, model: str) -> AbstractContextManager[Client]:
    """A client of a gateway whose default model is `model`."""
    settings = {"triton_url": server.url, "model": model}
    return client_of(create_backend(Settings(_env_file=None, **settings)), **settings)


def results(client: Client, path: str, *pictures: bytes, **parameters: object) -> list[dict]:
    """The answers of /predict or /embed for each picture."""
    files = [("files", (f"{number}.jpg", picture)) for number, picture in enumerate(pictures)]
    answer = client.post(path, files=files, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]
