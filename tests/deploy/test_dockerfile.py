"""What the Dockerfile promises, read from its text: no engine is needed."""

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
from fnmatch import fnmatch
from pathlib import Path

import pytest

from deploy.default_model import IN_IMAGE, archive_name
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from gateway_local.sizing import ARGUMENT
from gateway_models.repository.tensorrt import TENSORRT_CACHE
from tests.deploy.conftest import Stage, parse_dockerfile
from tests.processes import PROJECT, python
from tests.settings import Settings

IMAGES = ["gateway", "triton", "triton-cpu", "triton-cpu-onnx"]
CPU_TRITONS = ["triton-cpu", "triton-cpu-onnx"]


def installs_torch(stages: list[Stage]) -> bool:
    """Whether a step installs it by its name, or by the extra `local`."""
    runs = [run for stage in stages for run in stage.all("RUN")]
    extras = re.findall(r"whl\)\[([a-z,]+)\]", " ".join(runs))
    return any(re.search(r"install .*\b(torch|torchvision)\b", run) for run in runs) or any(
        "local" in names for names in extras
    )


def test_hadolint_finds_nothing_and_no_rule_is_switched_off_without_a_reason():
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    completed = subprocess.run(
        [hadolint, "--no-color", "--failure-threshold=style", "Dockerfile"], cwd=PROJECT, capture_output=True, text=True
    )
    assert (completed.returncode, completed.stdout) == (0, "")
    lines = (PROJECT / "Dockerfile").read_text().splitlines()
    for line in filter(lambda line: "hadolint" in line, lines):
        assert re.search(r"hadolint ignore=\S+ # \w", line), line


def test_the_gateway_is_built_by_default_and_bases_can_be_chosen(dockerfile):
    """The GPU image is a Triton whose restricted APIs work."""
    assert list(dockerfile.stages)[-1] == "gateway"
    assert dockerfile.arguments["PYTHON_IMAGE"] == "python:3.12-slim"
    assert {dockerfile.image_below(image) for image in ("gateway", *CPU_TRITONS)} == {"python:3.12-slim"}
    name, year, month = re.fullmatch(r"(\S+):(\d+)\.(\d+)-py3", dockerfile.image_below("triton")).groups()
    assert name == "nvcr.io/nvidia/tritonserver"
    assert (int(year), int(month)) >= (26, 11)
    for stage in ("torch", "model-export", "triton-cpu"):
        assert "PIP_EXTRA_INDEX_URL" in dockerfile.stages[stage].all("ARG")


@pytest.mark.parametrize("image", IMAGES)
def test_container_is_not_root_and_installs_nothing_when_it_starts(dockerfile, image):
    stage = dockerfile.stages[image]
    # By number, so that Kubernetes can see for itself that it is not root.
    uid, gid = map(int, stage.last("USER").split(":"))
    assert uid >= 1000
    assert gid >= 1000
    start = [*stage.all("ENTRYPOINT"), *stage.all("CMD")]
    assert not re.search(r"pip|apt|fetch|export|\bsh\b", " ".join(start))


@pytest.mark.parametrize(
    ("image", "asked"), [("gateway", "/health/live"), *((image, ":8000/v2/health/ready") for image in IMAGES[1:])]
)
def test_image_checks_its_health_with_its_own_python(dockerfile, image, asked):
    program, option, code = dockerfile.stages[image].words("HEALTHCHECK")
    assert (program, option) == ("python3", "-c")
    ast.parse(code)
    assert asked in code


def test_the_gateway_image_serves_on_every_interface_and_has_the_chosen_extras(dockerfile):
    stage = dockerfile.stages["gateway"]
    assert (stage.words("ENTRYPOINT"), stage.words("CMD")) == (["gateway"], ["serve"])
    assert "GATEWAY_HOST=0.0.0.0" in stage.last("ENV").split()
    assert "GATEWAY_PORT=8080" in stage.last("ENV").split()
    assert stage.last("EXPOSE") == "8080"
    taken = dockerfile.stages["gateway-build"].last("RUN")
    assert taken.endswith('"$(echo /wheels/triton_image_gateway-*.whl)[${EXTRAS}]" /wheels/exact_resize-*.whl')
    assert dockerfile.stages["gateway-build"] in dockerfile.environment("gateway")


@pytest.mark.parametrize("image", ["gateway", "triton-cpu-onnx"])
def test_debug_information_of_modules_is_left_out(dockerfile, image):
    """Stripped in a stage of its own: what a later step deletes stays in the layer below."""
    (copied,) = re.findall(r"--from=(\S+) /opt/gateway ", " ".join(dockerfile.stages[image].all("COPY")))
    assert "-name '*.cpython-*.so' -exec strip --strip-debug" in dockerfile.stages[copied].last("RUN")
    assert dockerfile.image_below(copied) == dockerfile.arguments["COMPILER_IMAGE"]
    # It loads what was stripped; the other images classify while they are built.
    assert "import gateway.app, gateway_decoder.__main__, uvloop" in dockerfile.stages["gateway"].last("RUN")


def test_everything_that_pip_installs_is_pinned(dockerfile):
    runs = [run for stage in dockerfile.stages.values() for run in stage.all("RUN") if " install " in run]
    runs = [run for run in runs if "pip" in run]
    assert len(runs) == 6
    assert all(re.search(r" install -c \S*constraints\.txt ", run) for run in runs)


@pytest.mark.parametrize("image", ["gateway", "triton", "triton-cpu-onnx"])
def test_image_has_no_torch_and_is_built_without_it(dockerfile, image):
    """Built without torch where the default model comes from the archive of a release."""
    assert not installs_torch(dockerfile.environment(image))
    assert not installs_torch(parse_dockerfile(DEFAULT_MODEL="dist").needed(image))
    assert installs_torch(dockerfile.needed("triton"))


def test_images_carry_the_models_of_one_build(dockerfile, gpu_compose):
    """The default model is exported, unless its archive is wanted, and where the wheel has no Triton.

    The wheel is for x86-64; NVIDIA's image is for arm64 too, and its build needs only the stage `model`.
    """
    assert "/images/export_models.py /app" in dockerfile.stages["model-export"].last("RUN")
    for image, folder in (("triton", "/models"), ("triton-cpu", "/app/triton_models")):
        assert f"--from=model /app/triton_models {folder}" in dockerfile.stages[image].all("COPY")
    assert "--from=model /app/onnx_models /app/triton_models" in dockerfile.stages["triton-cpu-onnx"].all("COPY")
    needed = dockerfile.needed("triton")
    assert dockerfile.stages["model"] in needed
    assert not any("triton fetch" in run for stage in needed for run in stage.all("RUN"))
    assert dockerfile.stages["model"].base == "model-export"
    assert gpu_compose["services"]["triton"]["build"]["args"]["DEFAULT_MODEL"] == "${DEFAULT_MODEL:-export}"
    (pattern, target) = dockerfile.stages["model-dist"].last("ADD").split()
    assert fnmatch(f"dist/{archive_name()}", pattern)
    assert (dockerfile.stages["model-dist"].last("WORKDIR"), target) == (IN_IMAGE.rstrip("/"), "./")


@pytest.mark.parametrize("image", ["triton", *CPU_TRITONS])
def test_triton_images_classify_while_they_are_built(dockerfile, image):
    """The last step that changes the image, as the user that the container runs as."""
    steps = [each for each in dockerfile.stages[image].instructions if each[0] in {"USER", "RUN"}]
    (user, _), (run, command) = steps[-2:]
    assert (user, run) == ("USER", "RUN")
    assert "python3 /checks/try_models.py ensemble_model " in command


def test_compose_has_the_build_arguments_and_volumes_of_the_images(dockerfile, cpu_compose, gpu_compose):
    """TensorRT keeps its engines in a volume; without a GPU, Triton's image can be chosen."""
    (made,) = [run for run in dockerfile.stages["triton"].all("RUN") if "--directory" in run]
    assert f"tensorrt:{made.split()[-1]}" in gpu_compose["services"]["triton"]["volumes"]
    assert made.split()[-1] == TENSORRT_CACHE
    assert "tensorrt" in gpu_compose["volumes"]
    assert cpu_compose["services"]["triton"]["build"]["target"] == "${TRITON_TARGET:-triton-cpu}"


def test_the_gpu_image_has_what_the_preprocessor_imports(dockerfile):
    """All but torch, which `resize_library: torch` and a preprocessor on a GPU need: docs/guides/gpu.md.

    Nor has it this project's backend for PyTorch; and the NumPy of its base is removed first.
    """
    files = (PROJECT / "triton_models/preprocessor/1").glob("*.py")
    trees = [ast.parse(path.read_text()) for path in files if path.name != "on_torch.py"]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0}
    packages = {"PIL": "pillow", "cv2": "opencv-python-headless", "exact_resize": "/wheels/exact_resize-*.whl"}
    packages["numpy"] = "numpy"
    needed = {packages[name] for name in imported & set(packages)}
    # torch for type checkers alone.
    assert imported - set(packages) - sys.stdlib_module_names == {"torch", "triton_python_backend_utils"}
    install, *_ = dockerfile.stages["triton"].all("RUN")
    assert needed <= set(install.split())
    assert install.index("pip uninstall --yes --break-system-packages numpy") < install.index(" install -c ")
    assert not any("triton_backends" in text for _, text in dockerfile.stages["triton"].instructions)
    assert not any(word.startswith("--backend-directory") for word in dockerfile.stages["triton"].words("CMD"))
    # What cannot be imported fails the build, not the first start.
    *_, check = install.split("python3 -c")
    assert {name for name in packages if name in imported} <= set(re.findall(r"\w+", check))


@pytest.mark.parametrize("image", IMAGES)
def test_own_wheels_are_built_in_a_stage_and_installed_from_it(dockerfile, image):
    assert dockerfile.arguments["COMPILER_IMAGE"] == "python:3.12"
    kernel, project = dockerfile.stages["wheels"].all("RUN")
    assert kernel.endswith("pip wheel --no-deps --wheel-dir /wheels /native")
    assert project.endswith("pip wheel --no-deps --wheel-dir /wheels .")
    stage = next(
        each for each in dockerfile.environment(image) if any(" install -c " in run for run in each.all("RUN"))
    )
    (install,) = [run for run in stage.all("RUN") if " install -c " in run]
    assert "--from=wheels /wheels /wheels" in stage.all("COPY")
    assert re.search(r"/wheels/(exact_resize-)?\*\.whl", install)


def test_gpu_image_starts_triton_with_the_options_of_gateway_up(dockerfile, tmp_path):
    of_the_place = re.compile(
        r"--(model-(repository|load-thread-count)|backend-directory|cache-directory|(grpc|http|metrics)-(address|port))=|.*shm-region-prefix"
    )
    runtime = TritonRuntime(tmp_path, tmp_path, tmp_path, ())
    cache_bytes = Settings.model_fields["triton_cache_bytes"].default
    embedded = EmbeddedTriton(runtime, tmp_path, on_log=print, cache_bytes=cache_bytes)
    *start, program = dockerfile.stages["triton"].words("CMD")[:4]
    assert (start, program) == (["python3", "/opt/sized", "--require-gpu"], "tritonserver")
    options = [*dockerfile.stages["triton"].words("CMD")[4:], ARGUMENT]
    assert "--model-repository=/models" in options
    assert {option for option in options if not of_the_place.match(option)} == {
        option for option in embedded._arguments() if not of_the_place.match(option)
    }


def test_gpu_image_has_what_sizes_its_models(dockerfile, tmp_path):
    """Run by an interpreter without packages, as NVIDIA's image has none of the project's dependencies."""
    copies = [copy for copy in dockerfile.stages["triton"].all("COPY") if "/opt/sized" in copy]
    for copy in copies:
        *sources, target = copy.replace("\\", "").split()
        place = tmp_path / target.removeprefix("/opt/sized").lstrip("/")
        for source in sources:
            to = place / Path(source).name if target.endswith("/") else place
            to.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (PROJECT / source).is_dir() else shutil.copyfile)(PROJECT / source, to)
    done = python("-I", "-S", tmp_path, "tritonserver", code=1)
    assert "tritonserver's --model-repository is missing" in done.stderr


def test_build_context_has_the_copied_files_without_weights_and_secrets(dockerfile):
    lines = (PROJECT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    copied = {
        source
        for stage in dockerfile.stages.values()
        for copy in (*stage.all("COPY"), *stage.all("ADD"))
        if not copy.startswith("--from")
        for source in copy.split()[:-1]
    }
    runs = " ".join(run for stage in dockerfile.stages.values() for run in stage.all("RUN"))
    copied |= set(re.findall(r"--mount=type=bind,source=([^,]+)", runs))
    assert patterns[0] == "*"
    # A file of a folder that is copied as a whole elsewhere is in the context too.
    copied -= {source for source in copied if source.partition("/")[0] in copied - {source}}
    assert {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")} == copied
    assert {"triton_models/*/labels.txt", "triton_models/*/[0-9]*/model.pt"} <= set(patterns)
