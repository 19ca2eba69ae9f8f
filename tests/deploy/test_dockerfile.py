"""What the Dockerfile promises, read from its text: no engine is needed."""

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.settings import Settings
from gateway_local.runtime import Runtime
from gateway_local.server import EmbeddedTriton
from gateway_local.sizing import ARGUMENT

IMAGES = ["gateway", "triton", "triton-cpu"]


def test_hadolint_finds_nothing(root):
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    completed = subprocess.run(
        [hadolint, "--no-color", "--failure-threshold=style", "Dockerfile"], cwd=root, capture_output=True, text=True
    )
    assert (completed.returncode, completed.stdout) == (0, "")


def test_no_lint_rule_is_switched_off_without_a_reason(root):
    lines = (root / "Dockerfile").read_text().splitlines()
    for line in filter(lambda line: "hadolint" in line, lines):
        assert re.search(r"hadolint ignore=\S+ # \w", line), line


def test_the_file_builds_the_three_images_and_the_gateway_by_default(dockerfile):
    assert set(IMAGES) <= set(dockerfile.stages)
    assert list(dockerfile.stages)[-1] == "gateway"


@pytest.mark.parametrize("image", ["gateway", "triton-cpu"])
def test_base_of_the_python_images_can_be_chosen(dockerfile, image):
    assert dockerfile.arguments["PYTHON_IMAGE"] == "python:3.12-slim"
    assert dockerfile.image_below(image) == "python:3.12-slim"


def test_gpu_image_is_a_triton_with_working_restricted_apis(dockerfile):
    name, year, month = re.fullmatch(r"(\S+):(\d+)\.(\d+)-py3", dockerfile.image_below("triton")).groups()
    assert name == "nvcr.io/nvidia/tritonserver"
    assert (int(year), int(month)) >= (26, 11)


@pytest.mark.parametrize("image", IMAGES)
def test_no_image_runs_as_root(dockerfile, image):
    # By number, so that Kubernetes can see for itself that it is not root.
    uid, gid = map(int, dockerfile.stages[image].last("USER").split(":"))
    assert uid >= 1000
    assert gid >= 1000


@pytest.mark.parametrize(("image", "asked"), [("gateway", "/health/live"), ("triton", ":8000/v2/health/ready")])
def test_image_checks_its_health_with_its_own_python(dockerfile, image, asked):
    program, option, code = dockerfile.stages[image].words("HEALTHCHECK")
    assert (program, option) == ("python3", "-c")
    ast.parse(code)
    assert asked in code


def test_both_triton_images_check_their_health_alike(dockerfile):
    assert dockerfile.stages["triton"].last("HEALTHCHECK") == dockerfile.stages["triton-cpu"].last("HEALTHCHECK")


def test_the_gateway_image_serves_on_every_interface_of_its_container(dockerfile):
    stage = dockerfile.stages["gateway"]
    assert (stage.words("ENTRYPOINT"), stage.words("CMD")) == (["gateway"], ["serve"])
    assert "GATEWAY_HOST=0.0.0.0" in stage.last("ENV").split()
    assert "GATEWAY_PORT=8080" in stage.last("ENV").split()
    assert stage.last("EXPOSE") == "8080"


def test_gateway_image_has_the_requirements_and_otel_but_no_torch(dockerfile):
    taken = dockerfile.stages["gateway-build"].last("RUN")
    assert taken.endswith("install -c constraints.txt '.[heic,otel]' /wheels/*.whl")
    assert re.findall(r"--from=(\S+)", " ".join(dockerfile.stages["gateway"].all("COPY"))) == ["gateway-build"]
    assert needed_by("triton-image-gateway[heic,otel]").isdisjoint({"torch", "torchvision", "triton", "scikit-image"})


@pytest.mark.parametrize("image", IMAGES)
def test_nothing_is_installed_when_a_container_starts(dockerfile, image):
    stage = dockerfile.stages[image]
    start = [*stage.all("ENTRYPOINT"), *stage.all("CMD")]
    assert not re.search(r"pip|apt|fetch|export|\bsh\b", " ".join(start))


def test_everything_that_pip_installs_is_pinned(dockerfile):
    runs = [run for stage in dockerfile.stages.values() for run in stage.all("RUN") if " install " in run]
    assert len(runs) == 4
    assert all(re.search(r"install -c \S*constraints\.txt ", run) for run in runs)


def test_both_triton_images_carry_the_models_of_one_build(dockerfile):
    assert "gateway model export" in dockerfile.stages["local"].last("RUN")
    assert "--from=local /app/triton_models /models" in dockerfile.stages["triton"].all("COPY")
    assert dockerfile.stages["triton-cpu"].base == "local"


def test_gpu_image_has_no_python_based_pytorch_backend(dockerfile):
    stage = dockerfile.stages["triton"]
    assert not any("triton_backends" in text for _, text in stage.instructions)
    assert not any(word.startswith("--backend-directory") for word in stage.words("CMD"))


def test_gpu_image_never_installs_a_cpu_torch(dockerfile):
    assert "PIP_EXTRA_INDEX_URL" in dockerfile.stages["local"].all("ARG")
    assert "PIP_EXTRA_INDEX_URL" not in dockerfile.stages["triton"].all("ARG")


def test_the_gpu_image_has_what_the_preprocessor_imports(root, dockerfile):
    trees = [ast.parse(path.read_text()) for path in (root / "triton_models/preprocessor/1").glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0}
    packages = {"PIL": "pillow", "cv2": "opencv-python-headless", "exact_resize": "/wheels/*.whl"}
    packages |= {name: name for name in ("numpy", "torch", "torchvision")}
    needed = {packages[name] for name in imported & set(packages)}
    assert imported - set(packages) - sys.stdlib_module_names == {"triton_python_backend_utils"}
    install, check = dockerfile.stages["triton"].all("RUN")
    assert needed <= set(install.split())
    # What cannot be imported fails the build, not the first start.
    assert {name for name in packages if name in imported} <= set(re.findall(r"\w+", check))


@pytest.mark.parametrize("image", ["gateway-build", "local", "triton"])
def test_resize_kernel_is_built_in_a_stage_and_copied_as_a_wheel(dockerfile, image):
    assert dockerfile.arguments["COMPILER_IMAGE"] == "python:3.12"
    assert dockerfile.stages["native"].last("RUN").endswith("pip wheel --no-deps --wheel-dir /wheels /native")
    assert "--from=native /wheels /wheels" in dockerfile.stages[image].all("COPY")
    assert any(re.search(r" install .* /wheels/\*\.whl", run) for run in dockerfile.stages[image].all("RUN"))


def test_gpu_image_starts_triton_with_the_options_of_gateway_up(dockerfile, tmp_path):
    of_the_place = re.compile(
        r"--(model-repository|backend-directory|cache-directory|(grpc|http|metrics)-(address|port))=|.*shm-region-prefix"
    )
    runtime = Runtime(tmp_path, tmp_path, tmp_path, ())
    cache_bytes = Settings.model_fields["triton_cache_bytes"].default
    embedded = EmbeddedTriton(runtime, tmp_path, on_log=print, cache_bytes=cache_bytes)
    *start, program = dockerfile.stages["triton"].words("CMD")[:4]
    assert (start, program) == (["python3", "/opt/sized", "--require-gpu"], "tritonserver")
    options = [*dockerfile.stages["triton"].words("CMD")[4:], ARGUMENT]
    assert "--model-repository=/models" in options
    assert {option for option in options if not of_the_place.match(option)} == {
        option for option in embedded._arguments() if not of_the_place.match(option)
    }


def test_gpu_image_has_what_sizes_its_models(root, dockerfile, tmp_path):
    """Run by an interpreter without packages, as NVIDIA's image has none of the project's dependencies."""
    copies = [copy for copy in dockerfile.stages["triton"].all("COPY") if "/opt/sized" in copy]
    for copy in copies:
        *sources, target = copy.replace("\\", "").split()
        place = tmp_path / target.removeprefix("/opt/sized").lstrip("/")
        for source in sources:
            to = place / Path(source).name if target.endswith("/") else place
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / source, to)
    command = [sys.executable, "-I", "-S", tmp_path, "tritonserver"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "tritonserver's --model-repository is missing" in done.stderr


def test_build_context_has_the_copied_files_without_weights_and_secrets(root, dockerfile):
    lines = (root / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    copied = {
        source
        for stage in dockerfile.stages.values()
        for copy in stage.all("COPY")
        if not copy.startswith("--from")
        for source in copy.split()[:-1]
    }
    assert patterns[0] == "*"
    # A file of a folder that is copied as a whole elsewhere is in the context too.
    copied -= {source for source in copied if source.partition("/")[0] in copied - {source}}
    assert {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")} == copied
    assert {"triton_models/*/labels.txt", "triton_models/*/[0-9]*/model.pt"} <= set(patterns)


def needed_by(name: str) -> set[str]:
    """The names of all that pip installs with an installed distribution, without its extras."""
    found: set[str] = set()
    to_see = [Requirement(name)]
    seen: set[str] = set()
    while to_see:
        requirement = to_see.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found.add(canonicalize_name(requirement.name))
        for needed in map(Requirement, requires(requirement.name) or []):
            extras = [{"extra": extra} for extra in ("", *requirement.extras)]
            if needed.marker is None or any(map(needed.marker.evaluate, extras)):
                to_see.append(needed)
    return found
