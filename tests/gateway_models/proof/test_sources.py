"""Functions on a real Triton, with their errors, and a program that a stranger wrote; see test_round_trips."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_local.server import EmbeddedTriton
from gateway_models.blocking_triton import BlockingTriton, TritonRefused
from gateway_models.networks import jobs
from gateway_models.networks.add import add
from gateway_models.proof.image_files import image_files, read_image_files
from gateway_models.proof.parity import Comparison, Parity, compare
from gateway_models.repository.entry import Entry
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway_models.repository.spec import Format, ModelSpec, Serving
from tests.gateway_models.networks.archives import HOSTILE, altered
from tests.gateway_models.networks.builders import Head, save_program, spec_of
from tests.gateway_models.networks.functions import COLOURS, PYTRITON, own_modules, save_function
from tests.processes import wait_for
from tests.tritons import running_triton

pytestmark = pytest.mark.long

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
