"""The wheel of the Python client, as the service offers it: pip installs it from the address of the service."""

import re
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import gateway_client
from gateway import __version__
from gateway_plugins.page.client_wheel import client_wheel
from tests.gateway.api.stub import client_of
from tests.processes import PROJECT
from tests.stub_service import stub_service

WHEEL = f"triton_gateway_client-{__version__}-py3-none-any.whl"
BUILD = "import sys, setuptools.build_meta as build; print(build.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def client():
    with client_of() as client:
        yield client


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("ours") / client_wheel().name
    path.write_bytes(client_wheel().data)
    return members(path)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, bytes]:
    """What setuptools builds of the same folder."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "gateway_client"
    for path in (PROJECT / "gateway_client").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = source / path.relative_to(PROJECT / "gateway_client")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=source, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == WHEEL
    return members(wheel)


def test_wheel_equals_what_setuptools_builds(ours, built):
    # setuptools adds the names of the packages, which nothing needs.
    assert set(ours) == {name for name in built if not name.endswith("top_level.txt")}
    generated = ("METADATA", "WHEEL", "RECORD")
    for name, content in ours.items():
        if not name.endswith(generated):
            assert content == built[name], name
    (metadata,) = (name for name in ours if name.endswith("METADATA"))
    found, wanted = (Parser().parsestr(each[metadata].decode()) for each in (ours, built))
    ignored = {"Dynamic"}
    assert sorted(found.items()) == sorted(item for item in wanted.items() if item[0] not in ignored)
    assert found.get_payload() == wanted.get_payload()


def test_wheel_has_the_version_of_the_service():
    assert gateway_client.__version__ == __version__
    assert client_wheel().name == WHEEL


def test_wheel_is_revalidated_and_other_names_are_not_found(client):
    first = client.get(f"/client/{WHEEL}")
    assert first.content == client_wheel().data
    again = client.get(f"/client/{WHEEL}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    missing = client.get("/client/triton_gateway_client-0.0.1-py3-none-any.whl")
    assert missing.status_code == 404
    assert WHEEL in missing.json()["detail"]


def test_folder_links_to_the_wheel_and_is_suggested_without_its_slash(client):
    assert "did you mean '/client/'?" in client.get("/client").json()["detail"]
    assert f'href="{WHEEL}#sha256={client_wheel().sha256}"' in client.get("/client/").text


@pytest.mark.slow
@pytest.mark.parametrize("way", ["address", "index"])
def test_pip_installs_the_client_from_the_service(tmp_path, way):
    """In a new environment, which has httpx from this one."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    with stub_service() as url:
        wanted = {
            "address": [f"{url}/client/{WHEEL}"],
            "index": ["--index-url", f"{url}/client/", "triton-gateway-client"],
        }[way]
        pip = [sys.executable, "-m", "pip", "--isolated", "--python", str(python), "install", "--no-deps", *wanted]
        installing = subprocess.run(pip, capture_output=True, text=True, check=False)
        assert installing.returncode == 0, installing.stderr
        (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
        borrowed = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
        (example,) = re.findall(
            r"```python\n(.*?)```", (PROJECT / "gateway_client" / "README.md").read_text(), re.DOTALL
        )
        code = f"import gateway_client; print(gateway_client.__file__)\n{example.replace('http://127.0.0.1:8080', url)}"
        run = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, cwd=PROJECT, check=False)
    place, *answers = run.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path), run.stderr
    assert sorted(answers) == ["README.md: unsupported_format", "examples/cat.jpg: cat 0.90"]
