"""Files of torch.export and TorchScript execute nothing that a stranger put into them, and honest ones answer alike.

Neither by `gateway model add` nor by Triton's backend, for a file that was copied into the repository by hand.
"""

import json
import pickle
import re
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from gateway_local.paths import DEFAULT_BACKENDS
from gateway_models.networks import jobs
from gateway_models.networks.add import add
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.originals import original_probabilities
from gateway_models.networks.programs import load_program
from gateway_models.networks.torchscript import ExportError, load_torchscript, without_deprecations
from gateway_models.repository.entry import read_entry
from tests.doubles.python_backend import imported, python_backend
from tests.gateway_models.networks.archives import (
    GRAPH,
    HOSTILE,
    Trap,
    altered,
    in_graph,
    members,
    pickled_weight,
    saved,
)
from tests.gateway_models.networks.builders import (
    Head,
    outputs,
    probabilities,
    save_program,
    save_torchscript,
    spec_of,
)
from tests.gateway_models.networks.special_networks import Constants, Maps, Scripted, Writes, WritesWhileLoading

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return save_program(Constants(), tmp_path_factory.mktemp("archives") / "model.pt2")


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    return save_torchscript(Head(), tmp_path_factory.mktemp("archives") / "model.pt")


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    """Triton's backend for PyTorch, without a Triton."""
    with pytest.MonkeyPatch.context() as patch:
        python_backend(patch)
        return imported(patch, DEFAULT_BACKENDS / "pytorch" / "on_torch.py")


@pytest.fixture
def evidence(tmp_path) -> Path:
    """The file that exists once something of a hostile file was executed."""
    return tmp_path / "executed"


def run(path: Path, **options) -> torch.Tensor:
    with torch.no_grad():
        return load_program(path, **options)(IMAGES)


def run_whatever_happens(load: Callable[[], nn.Module]) -> str:
    """What loading and running a file raised, as text; "" where it ran."""
    try:
        with torch.no_grad():
            load()(IMAGES)
    except (ModelFileError, ExportError) as exc:
        return str(exc)
    return ""


# What a stranger may have put into an archive. Each is shown to work where everything is trusted.


DROPPED = {"sample", "guard"}
"""What no model needs is left out, and the rest answers as ever."""


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_program_executes_nothing_unless_trusted(backend, program, tmp_path, monkeypatch, evidence, hostile):
    """Triton's backend, which loads it from a repository, executes nothing either."""
    monkeypatch.syspath_prepend(tmp_path)
    path = altered(program, tmp_path / "hostile.pt2", HOSTILE[hostile](evidence))
    said = run_whatever_happens(lambda: load_program(path))
    assert (said == "") is (hostile in DROPPED)
    assert not said or ("None of its code was executed" in said and "--trust" in said)
    if hostile == "pickled weight":
        assert re.search(r"data/weights/weight_9.*data\.pkl.* calls .*getattr", said)
    refused = pytest.raises(Exception, match=r"its (member|constant) ")
    with torch.no_grad(), nullcontext() if hostile in DROPPED else refused:
        backend.load(path, CPU)(IMAGES)
    assert not evidence.exists()
    run_whatever_happens(lambda: load_program(path, trust=True))
    assert evidence.exists(), "the attack works where it is trusted"


@pytest.mark.parametrize(
    "target",
    [
        *("torch.os.system", "torch.hub.load", "torch.load", "os.system", "torch.ops.load_library"),
        *("_operator.methodcaller", "_operator.attrgetter", "torch.ops.aten.__class__.mro", "math.__class__.mro"),
        *("torch.ops.aten.from_file.default", "torch.ops.image.read_file.default"),
        "torch.ops.higher_order.triton_kernel_wrapper_functional",
    ],
)
def test_only_operators_that_compute_are_called(program, tmp_path, target):
    change = in_graph(lambda graph: graph["nodes"][0].update(target=target))
    path = altered(program, tmp_path / "hostile.pt2", change)
    with pytest.raises(ModelFileError, match=f"calls '{re.escape(target)}', which is no operator that computes alone"):
        load_program(path)


@pytest.mark.parametrize("form", [saved, pickle.dumps], ids=["torch.save", "pickle"])
@pytest.mark.parametrize(
    ("archive", "load", "more"),
    [("program", load_program, ()), ("script", load_torchscript, ("extra/evil.pkl", "attributes.pkl"))],
    ids=["program", "TorchScript"],
)
def test_no_member_is_executed(request, tmp_path, evidence, form, archive, load, more):
    """Each member of a genuine archive in turn is another pickle."""
    source = request.getfixturevalue(archive)
    for name in [*members(source), *more]:
        path = altered(source, tmp_path / f"hostile{source.suffix}", {name: form(Trap(evidence))})
        run_whatever_happens(lambda path=path: load(path))
        assert not evidence.exists(), name


def test_machine_code_is_refused(program, tmp_path):
    for name in ("data/aotinductor/model/model.so", "data/weights/libevil.so"):
        path = altered(program, tmp_path / "hostile.pt2", {name: b"\x7fELF"})
        with pytest.raises(ModelFileError, match="is machine code"):
            load_program(path)


# Honest files.


def without_samples(source: Path, target: Path) -> Path:
    exported = torch.export.load(source)
    exported._example_inputs = None
    torch.export.save(exported, target)
    return target


def with_pickled_tensors(source: Path, target: Path) -> Path:
    """As torch.export 2.8 wrote them: one file of torch.save each for weights and constants."""
    exported = torch.export.load(source)
    weights, constants = saved(dict(exported.state_dict)), saved(dict(exported.constants))
    return altered(source, target, {"data/weights/model.pt": weights, "data/constants/model.pt": constants})


def as_before_2_8(source: Path, target: Path) -> Path:
    """As older releases of torch.export wrote them: members in no folder."""
    exported = torch.export.load(source)
    with zipfile.ZipFile(source) as given, zipfile.ZipFile(target, "w") as taken:
        graph = given.read(f"{source.stem}/{GRAPH}")
        version = json.loads(graph)["schema_version"]
        taken.writestr("version", f"{version['major']}.{version['minor']}")
        taken.writestr("serialized_exported_program.json", graph)
        taken.writestr("serialized_state_dict.pt", saved(dict(exported.state_dict)))
        taken.writestr("serialized_constants.pt", saved(dict(exported.constants)))
        taken.writestr("serialized_example_inputs.pt", saved(exported.example_inputs))
    return target


def with_extra_files(source: Path, target: Path) -> Path:
    torch.export.save(torch.export.load(source), target, extra_files={"note": "hello"})
    return target


@pytest.mark.parametrize("form", [None, without_samples, with_pickled_tensors, as_before_2_8, with_extra_files])
def test_valid_program_gives_the_same_results(backend, program, tmp_path, form):
    path = form(program, tmp_path / "honest.pt2") if form else program
    assert torch.equal(run(path), run(path, trust=True))
    with torch.no_grad():
        assert torch.equal(run(path), backend.load(path, CPU)(IMAGES))
    assert torch.allclose(run(path), outputs(Constants(), IMAGES), atol=1e-6)


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_valid_torchscript_gives_the_same_results(backend, script, tmp_path, scripted):
    path = tmp_path / "scripted.pt" if scripted else script
    with torch.no_grad(), without_deprecations():
        if scripted:
            torch.jit.script(Scripted().eval()).save(path)
        expected = torch.jit.load(path).eval()(IMAGES)
        assert torch.equal(load_torchscript(path)(IMAGES), expected)
        assert torch.equal(backend.load(path, CPU)(IMAGES), expected)


def test_trusted_program_is_added_and_loaded_again(program, tmp_path, monkeypatch):
    """Weights in torch's oldest format, which only --trust reads: in the trial, and whenever the original is asked."""
    monkeypatch.setattr("gateway_models.networks.add.work", lambda job, say, *, timeout_seconds: jobs.do(job))
    weight = saved(Constants().features.weight, _use_new_zipfile_serialization=False)
    path = altered(program, tmp_path / "model.pt2", pickled_weight(weight))
    (tmp_path / "models").mkdir()
    spec = spec_of(path, tmp_path, name="trusted")
    with pytest.raises(ModelFileError, match=r"weight_9' is not a file of torch\.save .* add --trust"):
        add(spec, tmp_path / "models", print)
    entry = add(replace(spec, trust=True), tmp_path / "models", print)
    assert read_entry(tmp_path / "models", "trusted") == entry
    assert entry.versions[1].spec.trust
    expected = probabilities(Constants(), IMAGES)
    assert torch.allclose(original_probabilities(entry.versions[1])(IMAGES), expected, atol=1e-6)
    entry = entry.changed(trust=False)
    with pytest.raises(ModelFileError, match="None of its code was executed"):
        original_probabilities(entry.versions[1])


# Code of TorchScript that reaches files.


@pytest.mark.parametrize("kind", [Writes, Maps, WritesWhileLoading])
def test_torchscript_that_reaches_files_is_refused(backend, tmp_path, evidence, kind):
    with without_deprecations():
        torch.jit.script(kind(evidence)).save(tmp_path / "hostile.pt")
    with pytest.raises(ModelFileError, match="which reaches files or other machines"):
        load_torchscript(tmp_path / "hostile.pt")
    with pytest.raises(Exception, match="which reaches files"):
        backend.load(tmp_path / "hostile.pt", CPU)
    assert not evidence.exists()
    with without_deprecations(), torch.no_grad():
        torch.jit.load(tmp_path / "hostile.pt")(IMAGES)
    assert evidence.exists(), "the attack works where nothing is checked"


@pytest.mark.parametrize(
    "line",
    [
        'torch.from_file("f", True, 9)',
        "torch .\\\n  save(images, 'f')",
        "torch. # a comment\n    save(images, 'f')",
        '(images).save("f")',
        r'getattr(images, "s\x61ve")("f")',
        'getattr(images, "sa" "ve")("f")',
        'ops.image.write_file("f", images)',
        "n = ops\n    n.image",
        "__torch__.torch.classes.dist_rpc.Any.x()",
        "'\"'; torch.save(images, 'f'); '\"'",
        '"""\n " """; torch.save(images, "f")',
        r'n = "\x4"',
    ],
)
def test_every_spelling_of_a_file_operator_is_refused(script, tmp_path, line):
    def change(code: bytes) -> bytes:
        return code.replace(b"    last = self.last\n", f"    last = self.last\n    {line}\n".encode())

    # torch numbers the modules of classes that it has seen before.
    code = next(name for name in members(script) if "networks/builders" in name and name.endswith(".py"))
    path = altered(script, tmp_path / "hostile.pt", {code: change})
    assert "last = self.last\n    " + line in zipfile.ZipFile(path).read(f"{script.stem}/{code}").decode()
    with pytest.raises(ModelFileError, match=r"reaches files|operators of|strings that|custom classes|damaged"):
        load_torchscript(path)


# Zips that are not what they seem.


def renamed(*names: str) -> Callable[[Path], None]:
    """Rewrites an archive's central directory, so that its members have other names than before their data."""

    def spoil(path: Path) -> None:
        data = path.read_bytes()
        for old, new in zip(names[::2], names[1::2], strict=True):
            at = data.rindex(old.encode())
            data = data[:at] + new.encode() + data[at + len(old) :]
        path.write_bytes(data)

    return spoil


def twice(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(f"model/{GRAPH}", b"{}")


def encrypted(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 8] |= 1
    path.write_bytes(data)


def inflating(path: Path) -> None:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("model/data/x", "w") as member:
        for _ in range(257):
            member.write(bytes(2**20))


def overlapping(path: Path) -> None:
    """Every member's data are those of the largest one."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
        at = archive.start_dir
    data = bytearray(path.read_bytes())
    while data[at : at + 4] == b"PK\x01\x02":
        data[at + 20 : at + 28] = largest.file_size.to_bytes(4, "little") * 2
        at += 46 + sum(int.from_bytes(data[at + field : at + field + 2], "little") for field in (28, 30, 32))
    path.write_bytes(data)


SWAPPED = ("weight_1", "weight_x", "weight_0", "weight_1", "weight_x", "weight_0")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (twice, "two members of the name"),
        (renamed(*SWAPPED), "File name in directory .* differ"),
        (renamed("model/byteorder", "../../byteorder"), "leads out of the archive"),
        (renamed("model/byteorder", "/odel/byteorder"), "leads out of the archive"),
        (renamed("model/byteorder", "model\\byteorder"), "odd name"),
        (renamed("model/byteorder", "model/byte\0rder"), "odd name"),
        (encrypted, "is encrypted"),
        (overlapping, "its members overlap"),
        (inflating, "inflate to more than"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "it has no models/model.json"),
    ],
)
def test_inconsistent_zip_is_refused(program, tmp_path, spoil, reason):
    path = altered(program, tmp_path / "odd.pt2", {})
    spoil(path)
    with pytest.raises(ModelFileError, match=reason):
        load_program(path)


@pytest.mark.parametrize(
    "change", [b"[" * 100_000, b'{"a": ' + b"9" * 10_000 + b"}", b"[]", b"\xff", b'{"graph_module": 1}']
)
def test_invalid_graph_is_refused(program, tmp_path, change):
    path = altered(program, tmp_path / "odd.pt2", {GRAPH: change})
    with pytest.raises((ModelFileError, ExportError), match=r"odd\.pt2"):
        load_program(path)
