"""`python -m deploy.dist`: build the packages of a release into dist/, install them in new environments, and use them.

Each wheel is built from its sdist, so an sdist without a file that it needs fails here. The gateway's wheel and the
resize kernel's go into a new environment, whose SBOM is written, and whose `gateway up` serves; the client's goes into
another one and classifies an image. The network is needed as by pip.
"""

import argparse
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from deploy.generate import CHART, DEPLOY
from deploy.generate.third_party import OWN, extras_of_image
from gateway import __version__

PROJECT = DEPLOY.parent
DISTRIBUTIONS = (PROJECT, PROJECT / "gateway_client", PROJECT / "native")
CONSTRAINTS = PROJECT / "constraints.txt"
SAMPLE = PROJECT / "docs" / "examples" / "cat.jpg"
EXPECTED_LABEL = "Egyptian cat"

say = partial(print, flush=True)

_PACKAGE_CHART = "import sys, helm_python as helm; helm.package(sys.argv[1], destination=sys.argv[2])"
_CLASSIFY = """
import sys
from gateway_client import Gateway

with Gateway(sys.argv[1]) as gateway:
    (result,) = gateway.classify([sys.argv[2]], top_k=1)
    print(result.best.label if result.best else result.error)
"""


class NotAsReleased(Exception):
    """A built package does not work."""


def run(*command: object, cwd: Path = PROJECT) -> None:
    """Run a command that must succeed; its output is shown."""
    subprocess.run([str(word) for word in command], cwd=cwd, check=True)


def build(folder: Path, *, isolated: bool = True) -> None:
    """The sdist and the wheel of each distribution; without isolation by the installed setuptools."""
    options = ["--outdir", folder, *([] if isolated else ["--no-isolation"])]
    for source in DISTRIBUTIONS:
        run(sys.executable, "-m", "build", *options, source)


def package_chart(folder: Path) -> None:
    """The chart's package, in a separate process, since Helm's library contains Go's runtime."""
    run(sys.executable, "-c", _PACKAGE_CHART, CHART, folder)


def write_bom(python: Path, path: Path) -> None:
    """The contents of the gateway's environment, as a CycloneDX document, without the paths of this machine's files."""
    options = ["--short-PURLs", "--output-reproducible", "--output-file", path]
    run(sys.executable, "-m", "cyclonedx_py", "environment", *options, python)
    document = json.loads(path.read_text())
    (subject,) = [each for each in document["components"] if each["name"] == OWN]
    document["components"].remove(subject)
    document["metadata"]["component"] = subject
    for component in (subject, *document["components"]):
        references = component.pop("externalReferences", [])
        if public := [each for each in references if not each["url"].startswith("file:")]:
            component["externalReferences"] = public
    path.write_text(json.dumps(document, indent=2) + "\n")


def write_sums(folder: Path) -> None:
    """SHA256SUMS of the files of a folder, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def environment(folder: Path) -> Path:
    """A new virtual environment; returns its interpreter."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def install(python: Path, *wanted: object) -> None:
    """Install wheels and their pinned requirements, without compiling bytecode."""
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "-c", CONSTRAINTS]
    run(python, "-m", "pip", "install", *options, *wanted)


def wheel(folder: Path, name: str) -> Path:
    """The one wheel of a distribution."""
    (found,) = folder.glob(f"{name}-*.whl")
    return found


@contextmanager
def served(python: Path, home: Path) -> Iterator[str]:
    """`gateway up` of an environment, far from the checkout, with new folders; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    foreign = ("GATEWAY_", "PYTHON", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    variables |= {"XDG_DATA_HOME": str(home / "data"), "XDG_STATE_HOME": str(home / "state")}
    home.mkdir(parents=True, exist_ok=True)
    gateway, of_port = python.with_name("gateway"), f"--port={port}"
    subprocess.run([gateway, "up", "--detach", of_port], cwd=home, env=variables, check=True)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run([gateway, "stop", of_port], cwd=home, env=variables, check=True)


def classify(python: Path, url: str, folder: Path) -> str:
    """The label of the sample, by the client of another environment."""
    command = [python, "-c", _CLASSIFY, url, SAMPLE]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> None:
    """Build, install, classify; ends with a sentence where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tag", default=f"v{__version__}", help="the tag of a release, which must be its version")
    tag = parser.parse_args().tag
    if tag != f"v{__version__}":
        sys.exit(
            f"error: the tag is {tag}, and gateway/__init__.py says {__version__}: the tag of it is v{__version__}"
        )
    try:
        _release(PROJECT / "dist", PROJECT / "build" / "dist")
    except subprocess.CalledProcessError as exc:
        sys.exit(f"error: {' '.join(map(str, exc.cmd[:6]))} … failed with status {exc.returncode}; its output is above")
    except NotAsReleased as exc:
        sys.exit(f"error: {exc}")


def _release(folder: Path, scratch: Path) -> None:
    for each in (folder, scratch):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    build(folder)
    package_chart(folder)
    shutil.copy(CONSTRAINTS, folder)
    service, kernel = wheel(folder, "triton_image_gateway"), wheel(folder, "exact_resize")
    bom = f"triton-image-gateway-{__version__}"
    python = environment(scratch / "service")
    install(python, f"{service}[{extras_of_image()}]", kernel)
    write_bom(python, folder / f"{bom}-image.cdx.json")
    install(python, f"{service}[local]")
    write_bom(python, folder / f"{bom}-local.cdx.json")
    client = environment(scratch / "client")
    install(client, wheel(folder, "triton_image_gateway_client"))
    with served(python, scratch / "home") as url:
        label = classify(client, url, scratch)
    if label != EXPECTED_LABEL:
        raise NotAsReleased(f"{SAMPLE.name} was classified as {label!r} instead of {EXPECTED_LABEL!r}")
    write_sums(folder)
    say(f"{SAMPLE.name} is an {label}, by the wheels of dist/:")
    for path in sorted(folder.iterdir()):
        say(f"  {path.stat().st_size:>12,} {path.name}")


if __name__ == "__main__":
    main()
