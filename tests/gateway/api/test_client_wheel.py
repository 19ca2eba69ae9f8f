"""The wheel of the Python client, as the service offers it: pip installs it from the address of the service."""

import io
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import gateway_client
from gateway import __version__
from gateway.errors import NotFound
from gateway_plugins.page import client_build
from gateway_plugins.page import client_wheel as page
from gateway_plugins.page.client_build import build_client
from gateway_plugins.page.client_wheel import client_wheel
from tests.processes import PROJECT
from tests.services import stub_service

WHEEL = f"triton_image_gateway_client-{__version__}-py3-none-any.whl"


def test_wheel_has_every_module_and_equal_files_make_equal_wheels(tmp_path):
    """Each process of a checkout builds its own; pip compares their hashes with the one that the page names."""
    modules = {path.relative_to(PROJECT).as_posix() for path in (PROJECT / "gateway_client").rglob("*.py")}
    with zipfile.ZipFile(io.BytesIO(client_wheel().data)) as archive:
        names = set(archive.namelist())
    assert modules | {"gateway_client/py.typed"} == {name for name in names if ".dist-info/" not in name}
    assert build_client(PROJECT / "gateway_client", tmp_path).read_bytes() == client_wheel().data


def test_wheel_that_the_distribution_brings_is_served(tmp_path, monkeypatch):
    (tmp_path / WHEEL).write_bytes(b"built with the distribution")
    monkeypatch.setattr(page, "BROUGHT", tmp_path)
    assert page.client_wheel.__wrapped__().data == b"built with the distribution"


def test_wheel_has_the_version_of_the_service():
    assert gateway_client.__version__ == __version__
    assert client_wheel().name == WHEEL


def test_checkout_without_setuptools_names_the_folder_to_install(monkeypatch):
    monkeypatch.setattr(client_build, "BUILD", "import no_setuptools")
    with pytest.raises(NotFound, match=r"no setuptools .* install \./gateway_client"):
        page.client_wheel.__wrapped__()


def test_wheel_is_revalidated_and_other_names_are_not_found(client):
    first = client.get(f"/client/{WHEEL}")
    assert first.content == client_wheel().data
    again = client.get(f"/client/{WHEEL}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    missing = client.get("/client/triton_image_gateway_client-0.0.1-py3-none-any.whl")
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
            "index": ["--index-url", f"{url}/client/", "triton-image-gateway-client"],
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
