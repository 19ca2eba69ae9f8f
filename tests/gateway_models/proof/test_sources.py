"""Every kind of source from its file to served answers, on one real Triton: the answers are the original's."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gateway_local.server import EmbeddedTriton
from gateway_models.blocking_triton import BlockingTriton, TritonRefused
from gateway_models.networks import jobs
from gateway_models.networks.add import add
from gateway_models.networks.originals import original_probabilities
from gateway_models.proof.image_files import image_files, read_image_files
from gateway_models.proof.parity import Comparison, Parity, compare
from gateway_models.repository.entry import Entry
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing, reference_transforms
from gateway_models.repository.spec import Format, ModelSpec, Serving
from tests.gateway_models.networks.archives import HOSTILE, altered
from tests.gateway_models.networks.builders import (
    Head,
    lite,
    lite_preprocessing,
    save_labels,
    save_onnx,
    save_program,
    spec_of,
)
from tests.gateway_models.networks.functions import COLOURS, PYTRITON, own_modules, save_function
from tests.gateway_models.networks.pretrained import timm_network, vit_folder
from tests.processes import wait_for
from tests.tritons import running_triton

pytestmark = pytest.mark.long

LITE = lite_preprocessing(0)
PIXELS = Preprocessing((40,), 32, "bilinear", **AS_PIXELS)
ONE_EACH = Serving(instances=1, preprocessor_instances=1, max_batch_size=8, preferred=(4,))


class Service:
    """A repository, the Triton that serves it, and that Triton's log."""

    def __init__(self, repository: Path, server: EmbeddedTriton, log: list[str], triton: BlockingTriton) -> None:
        self.repository, self.server, self.log, self.triton = repository, server, log, triton

    def serve(self, request: ModelSpec) -> Entry:
        entry = add(request, self.repository, print)
        self.triton.load(entry.name)
        return entry

    def parity(self, entry: Entry, photos: Path) -> Parity:
        files = image_files([photos])[:3]
        found = list(compare(entry, entry.in_use, self.triton, read_image_files(files)))
        assert all(isinstance(each, Comparison) for each in found)
        return Parity(found, [])


@pytest.fixture(scope="module")
def service(runtime, tmp_path_factory) -> Iterator[Service]:
    repository = tmp_path_factory.mktemp("sources") / "models"
    repository.mkdir()
    log: list[str] = []
    serving = running_triton(runtime, repository, on_log=log.append, load_models=())
    with serving as server, BlockingTriton(server.url) as triton:
        yield Service(repository, server, log, triton)


@pytest.fixture
def here(monkeypatch) -> Iterator[None]:
    """Trials run in this process: to import torch for each takes longer than the trial."""
    monkeypatch.setattr("gateway_models.networks.add.work", lambda job, say, *, timeout_seconds: jobs.do(job))
    with own_modules():
        yield


def function(folder: Path, code: str = COLOURS, called: str = "classify", **changes) -> ModelSpec:
    changes = {"name": "colours", "preprocessing": PIXELS, "trust": True, "serving": ONE_EACH, **changes}
    return spec_of(f"{save_function(folder, code)}:{called}", folder, classes=6, **changes)


FAILS = """
import sys
import numpy as np
from helper import weights

def load():
    print("loaded by", __name__)
    return weights()

def classify(images, model):
    if images.shape[0] == 1 and images.max() < 3:
        raise ValueError("a secret of the code")
    colours = images.mean(axis=(1, 2)) / 255
    return np.concatenate([colours, 1 - colours], axis=1) * model
"""


def test_function_gives_original_answers_and_an_error_per_request(service, photos, tmp_path):
    """Added whole, in a process of its own, with a file that it imports."""
    (tmp_path / "helper.py").write_text("def weights():\n    return 7.0\n")
    entry = service.serve(function(tmp_path, FAILS, include=(tmp_path / "helper.py",)))
    assert service.parity(entry, photos).holds(1e-6)
    # Another picture than any that the cache has seen.
    black = b"P6 32 32 255\n" + bytes(3 * 32 * 32)
    with pytest.raises(TritonRefused, match=r"classify of colours\.py failed with ValueError; Triton's log has"):
        service.triton.predict("colours", [black])
    # Triton's log may come after its answer.
    wait_for(lambda: "ValueError: a secret of the code" in "\n".join(service.log))
    assert re.search(r"code/colours\.py.*line \d+, in classify", "\n".join(service.log))
    assert service.parity(entry, photos).holds(1e-6)


def test_changed_function_cannot_be_compared(service, photos, tmp_path, here):
    entry = service.serve(function(tmp_path, PYTRITON, "infer_func", name="pytriton"))
    assert service.parity(entry, photos).holds(1e-6)
    save_function(tmp_path, PYTRITON + "\n# better now\n")
    with pytest.raises(Exception, match=r"colours\.py, or a file that it needs, has changed since it was added"):
        service.parity(entry, photos)


class Answers:
    """What a served network and its original make of the photographs, prepared as in training."""

    def __init__(self, service: Service, entry: Entry, photos: Path) -> None:
        transforms = reference_transforms(entry.preprocessing)
        images = torch.stack([transforms(Image.open(path).convert("RGB")) for path in image_files([photos])[:3]])
        self.original = original_probabilities(entry.versions[1])(images).numpy()
        self.served = service.triton.classify(entry.classifier, images.numpy())

    def agree(self, tolerance: float = 1e-4) -> bool:
        # Answers that are all alike would agree whatever was served.
        assert np.abs(self.original[0] - self.original[1]).max() > 0.01
        return bool(np.abs(self.served - self.original).max() < tolerance)


@pytest.fixture
def agree(service, photos, here, capsys) -> Callable[[ModelSpec], bool]:
    """Whether a source's network, added and loaded without its preprocessor, which is the same for all, agrees."""

    def agree(request: ModelSpec) -> bool:
        entry = add(replace(request, serving=ONE_EACH), service.repository, print)
        service.triton.load(entry.classifier)
        try:
            return Answers(service, entry, photos).agree()
        finally:
            service.triton.unload(entry.classifier)

    return agree


def test_folder_of_hugging_face_is_served(agree, tmp_path):
    assert agree(ModelSpec(str(vit_folder(tmp_path / "vit")), "vit"))


@pytest.mark.parametrize("architecture", ["test_vit", "test_resnet"])
def test_networks_of_timm_are_served_with_weights_of_a_file(architecture, agree, tmp_path):
    weights = tmp_path / "weights.safetensors"
    save_file(timm_network(architecture).state_dict(), weights)
    changes = {"name": architecture, "preprocessing": None, "weights": str(weights)}
    assert agree(spec_of(f"timm:{architecture}", tmp_path, **changes))


def test_graph_for_one_gray_image_at_a_time_is_served_in_batches(agree, tmp_path):
    network = save_onnx(Head(channels=1), tmp_path / "gray.onnx", channels=1, dynamic=False, batch=1)
    gray = Preprocessing((40,), 32, "bilinear", (0.4,) * 3, (0.3,) * 3)
    assert agree(spec_of(network, tmp_path, name="gray", preprocessing=gray, grayscale=True))


LITE_FUNCTION = """
from pathlib import Path
import torch
from efficientnet_lite_pytorch import EfficientNet

def load():
    path = Path(__file__).parent / "weights.pth"
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(path)).eval()

def classify(images: torch.Tensor, network):
    with torch.inference_mode():
        return network(images)
"""


@pytest.fixture(scope="module")
def efficientnet() -> torch.nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights, as it left training."""
    return lite(0)


@pytest.fixture(scope="module")
def lite_program(efficientnet, tmp_path_factory) -> Path:
    return save_program(efficientnet, tmp_path_factory.mktemp("lite") / "lite.pt2", 224)


@pytest.fixture
def lite_as(efficientnet, lite_program, tmp_path) -> Callable[[str], ModelSpec]:
    """EfficientNet-Lite0 as each kind of source that people have it in; as TorchScript and ONNX: test_round_trips."""

    def of_timm() -> ModelSpec:
        # The same network layer by layer, under timm's names.
        names = timm_network("tf_efficientnet_lite0", 1000).state_dict().keys()
        save_file(dict(zip(names, efficientnet.state_dict().values(), strict=True)), tmp_path / "lite.safetensors")
        return ModelSpec("timm:tf_efficientnet_lite0", "", weights=str(tmp_path / "lite.safetensors"))

    def of_function() -> ModelSpec:
        torch.save(efficientnet.state_dict(), tmp_path / "weights.pth")
        path = save_function(tmp_path, LITE_FUNCTION)
        return ModelSpec(f"{path}:classify", "", include=(tmp_path / "weights.pth",), trust=True)

    makers: dict[str, Callable[[], ModelSpec]] = {
        "program": lambda: ModelSpec(str(lite_program), ""),
        "program-to-onnx": lambda: ModelSpec(str(lite_program), "", format=Format.ONNX),
        "program-as-it-is": lambda: ModelSpec(str(lite_program), "", format=Format.EXPORTED),
        "timm-safetensors": of_timm,
        "function": of_function,
    }

    def lite_as(kind: str) -> ModelSpec:
        labels = save_labels(tmp_path / "labels.txt", 1000)
        return replace(makers[kind](), name=f"lite-{kind}", labels=labels, preprocessing=LITE, serving=ONE_EACH)

    return lite_as


@pytest.mark.parametrize(
    ("kind", "written_as"),
    [
        ("program", Format.TORCHSCRIPT),
        ("program-to-onnx", Format.ONNX),
        ("program-as-it-is", Format.EXPORTED),
        ("timm-safetensors", Format.TORCHSCRIPT),
        ("function", Format.FUNCTION),
    ],
)
def test_efficientnet_gives_its_answers_from_every_kind_of_source(
    kind, written_as, lite_as, efficientnet, service, photos, here, capsys
):
    """Each is held to the network in memory, and so to all the others."""
    entry = add(lite_as(kind), service.repository, print)
    assert entry.format is written_as
    transforms = reference_transforms(LITE)
    images = torch.stack([transforms(Image.open(path).convert("RGB")) for path in image_files([photos])[:3]])
    with torch.inference_mode():
        expected = efficientnet(images).softmax(dim=1).numpy()
    service.triton.load(entry.classifier)
    try:
        served = service.triton.classify(entry.classifier, images.numpy())
    finally:
        service.triton.unload(entry.classifier)
    assert np.abs(served - expected).max() < 1e-4
    assert (served.argmax(axis=1) == expected.argmax(axis=1)).all()


def test_hostile_program_in_the_repository_is_not_executed(service, here, tmp_path):
    """A file that was copied into the repository by hand, where nothing but Triton's backend looks at it."""
    program = save_program(Head(), tmp_path / "head.pt2")
    spec = spec_of(program, tmp_path, name="hostile", serving=ONE_EACH, format=Format.EXPORTED)
    entry = add(spec, service.repository, print)
    evidence = tmp_path / "executed"
    altered(program, entry.model_file(service.repository, 1), HOSTILE["opaque constant"](evidence))
    with pytest.raises(TritonRefused, match="opaque_obj_0', is an opaque object, which is a pickle"):
        service.triton.load(entry.classifier)
    assert not evidence.exists()
