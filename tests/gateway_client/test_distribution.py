"""The client is a separate distribution, which needs only httpx; one that openapi-python-client generates works too."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway.app import create_app
from gateway.errors import ServiceError
from gateway.plugin_loading import errors_of, installed
from gateway_client.errors import SERVICE_CODES
from tests.doubles.backend import PNG
from tests.processes import PROJECT, python
from tests.services import stub_service
from tests.settings import Settings

CLIENT = PROJECT / "gateway_client"


def test_codes_of_service_errors_are_those_of_the_gateway():
    """A code that is not among them is an image's or a request's, and is not tried again."""
    own = {"connection_lost", "unreachable", "unexpected_answer"}
    assert {code: retryable for code, retryable in SERVICE_CODES.items() if code not in own} == {
        kind.code: kind.retry_after_seconds is not None
        for kind in errors_of(installed())
        if issubclass(kind, ServiceError) and kind is not ServiceError
    }


def test_import_needs_only_httpx():
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(PROJECT)!r})\n"
        "import gateway_client\n"
        "print(gateway_client.Gateway.__module__)\n"
        "wrong = {'gateway', 'numpy', 'PIL', 'pydantic', 'fastapi', 'starlette'} & set(sys.modules)\n"
        "assert not wrong, wrong\n"
    )
    assert python("-P", "-c", code, cwd="/").stdout.strip() == "gateway_client.blocking"


def test_metadata_match_the_code():
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["httpx>=0.27"]
    assert (CLIENT / "py.typed").exists()
    for folder in (CLIENT, PROJECT / "native"):
        assert (folder / "LICENSE").read_text() == (PROJECT / "LICENSE").read_text()


GENERATOR = Path(sys.prefix) / "generator" / "bin" / "openapi-python-client"
USER = """
import sys
from io import BytesIO
from pathlib import Path

from generated import Client
from generated.api.classify import predict
from generated.api.models import list_models
from generated.models import ModelsResponse, PredictFilesBody, PredictResponse, Problem
from generated.types import File, Response

with Client(base_url=sys.argv[1]) as client:
    listed = list_models.sync(client=client)
    assert isinstance(listed, ModelsResponse), listed
    print(listed.default)

    image = File(payload=BytesIO(Path(sys.argv[2]).read_bytes()), file_name="cat.png")
    for file in (image, File(payload=BytesIO(b"no image"), file_name="cat.txt")):
        answer = predict.sync_detailed(client=client, body=PredictFilesBody(files=[file]), top_k=1)
        assert isinstance(answer.parsed, PredictResponse), answer
        result = answer.parsed.results[0]
        print(answer.status_code.value, result.filename, [each.label for each in result.predictions])

    answer = predict.sync_detailed(client=client, body=PredictFilesBody(files=[image]), model="none", top_k=0)
    assert isinstance(answer.parsed, Problem), answer
    print(answer.status_code.value, answer.parsed.code)
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package `generated` and a program that uses it."""
    if not GENERATOR.exists():
        pytest.skip("no openapi-python-client: `make test` installs it into .venv/generator")
    folder = tmp_path_factory.mktemp("client")
    document = folder / "openapi.json"
    document.write_text(json.dumps(create_app(Settings(_env_file=None)).openapi()))
    (folder / "config.yaml").write_text("post_hooks: []\n")
    command = [GENERATOR, "generate", "--path", document, "--output-path", folder / "generated", "--meta", "none"]
    made = subprocess.run([*command, "--config", folder / "config.yaml"], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stdout + made.stderr
    # An image as the raw body goes as application/octet-stream, which is what the generator knows.
    warnings = [line for line in (made.stdout + made.stderr).splitlines() if line.startswith("Unsupported")]
    assert warnings == ["Unsupported content type image/*"] * 3  # of /predict, /embed and /explain
    (folder / "user.py").write_text(USER)
    return folder


@pytest.mark.long
def test_generated_client_passes_type_checks(generated: Path):
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", "user.py", "generated"]
    checked = subprocess.run(command, cwd=generated, capture_output=True, text=True, timeout=240)
    faults = [line for line in checked.stdout.splitlines() if ": error: " in line]
    # Its __exit__ passes what it gets, untyped, whatever the document says.
    assert [line for line in faults if not line.startswith("generated/client.py:")] == [], checked.stdout
    assert all("exit__" in line for line in faults), checked.stdout


def test_generated_client_classifies_and_parses_responses(generated: Path):
    (generated / "cat.png").write_bytes(PNG)
    with stub_service() as url:
        run = python("user.py", url, "cat.png", cwd=generated)
    assert run.stdout.splitlines() == [
        "ensemble_model",
        "200 cat.png ['cat']",
        "415 cat.txt []",
        "422 invalid_parameter",
    ]
