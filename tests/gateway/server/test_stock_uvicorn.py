"""The application on uvicorn's own server, alone and behind nginx as docs/guides/behind-a-proxy.md has it.

The last tests are of the bounds that nginx holds instead of the gateway's connection classes.
"""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from websockets.sync.client import connect

from tests.doubles.backend import PNG
from tests.processes import PROJECT, environment, free_port, listens, wait_for

GUIDE = (PROJECT / "docs" / "guides" / "behind-a-proxy.md").read_text()
COMMAND = re.search(r"^uvicorn (.*) --host", GUIDE, re.MULTILINE)
NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/log warn; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {guide}
}}
"""


@pytest.fixture(scope="module")
def uvicorn_port(light_triton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    assert COMMAND is not None
    port, log = free_port(), tmp_path_factory.mktemp("uvicorn") / "log"
    command = [sys.executable, "-m", "uvicorn", *COMMAND[1].split(), "--port", str(port)]
    with log.open("wb") as stderr:
        variables = environment(triton_url=light_triton.url)
        process = subprocess.Popen(command, env=variables, cwd=PROJECT, stdout=stderr, stderr=stderr)
    try:
        wait_for(lambda: listens(port), process=process)
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200, process=process)
        yield port
    finally:
        process.terminate()
        assert process.wait(60) in {0, -signal.SIGTERM}, log.read_text()


@pytest.fixture(scope="module")
def nginx_port(uvicorn_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    server = re.findall(r"```nginx\n(.*?)```", GUIDE, re.DOTALL)[1]
    for shown, used in (
        ("443 ssl", f"127.0.0.1:{port}"),
        ("127.0.0.1:8080", f"127.0.0.1:{uvicorn_port}"),
        (" 20s", " 2s"),
    ):
        assert shown in server
        server = server.replace(shown, used)
    (folder / "configuration").write_text(NGINX.format(folder=folder, guide=server))
    command = [program, "-c", str(folder / "configuration")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: listens(port), process=process)
        yield port
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("through", ["uvicorn_port", "nginx_port"])
def test_images_are_classified(request, through):
    url = f"http://127.0.0.1:{request.getfixturevalue(through)}/predict"
    files = [("files", ("a.png", PNG)), ("files", ("b", b"?"))]
    answer = httpx.post(url, files=files, timeout=60)
    assert answer.json()["summary"] == {"ok": 1, "failed": 1}
    assert answer.headers["x-request-id"]
    lines = httpx.post(url, files=files, headers={"Accept": "application/x-ndjson"}, timeout=60).text.splitlines()
    assert json.loads(lines[-1])["summary"] == {"ok": 1, "failed": 1}
    assert httpx.head(url.replace("predict", "health/live")).status_code == 200
    assert (
        httpx.post(url, content=b"{", headers={"Content-Type": "text/plain"}).json()["code"] == "unsupported_media_type"
    )


def test_frames_are_streamed(uvicorn_port):
    with connect(f"ws://127.0.0.1:{uvicorn_port}/stream") as stream:
        stream.send(PNG)
        assert json.loads(stream.recv(60))["predictions"]


HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 99999\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:", HEAD + PNG], ids=["nothing", "headers", "body"])
def test_client_that_stops_sending_is_disconnected(nginx_port, sent):
    with socket.create_connection(("127.0.0.1", nginx_port), timeout=30) as connection:
        connection.sendall(sent)
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4_096):
                """Read to the end, which nginx makes."""
        assert time.monotonic() - began < 10


def test_connections_of_one_client_are_bounded(nginx_port):
    """Each has a request whose body does not arrive."""
    with contextlib.ExitStack() as stack:
        for _ in range(64):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", nginx_port), timeout=30))
            connection.sendall(HEAD)
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{nginx_port}/health/live").status_code == 503, timeout_seconds=5)
