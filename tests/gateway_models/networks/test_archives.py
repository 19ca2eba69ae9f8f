"""Files of torch.export and TorchScript execute nothing that a stranger put into them, and honest ones answer alike.

Neither by `gateway model add` nor by Triton's backend, for a file that was copied into the repository by hand.
"""

import io
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
from tests.gateway_models.networks.builders import (
    Head,
    Trap,
    outputs,
    probabilities,
    save_program,
    save_torchscript,
    spec_of,
)

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")
GRAPH, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"

Member = bytes | Callable[[bytes], bytes]


class Constants(Head):
    """A classifier with a buffer, a constant and arithmetic of sizes beside its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.linspace(0, 1, 5))
        self.register_buffer("not saved", torch.ones(5), persistent=False)
        self.scale = torch.tensor([2.0])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        batch = images.shape[0]
        scores = super().forward(images) + self.offset + self.get_buffer("not saved") + torch.tensor([1.0, 2, 3, 4, 5])
        return (scores * self.scale).reshape(batch * 5 // 5, 5) + torch.zeros(batch, 1)


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


def members(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return [name.partition("/")[2] for name in archive.namelist()]


def altered(source: Path, target: Path, changes: dict[str, Member]) -> Path:
    """A copy of an archive with other, or further, members."""
    with zipfile.ZipFile(source) as given, zipfile.ZipFile(target, "w") as taken:
        folder = given.namelist()[0].partition("/")[0]
        for name in dict.fromkeys([*members(source), *changes]):
            data = given.read(f"{folder}/{name}") if f"{folder}/{name}" in given.namelist() else b""
            change = changes.get(name, data)
            taken.writestr(f"{folder}/{name}", change if isinstance(change, bytes) else change(data))
    return target


def saved(value: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def edited(edit: Callable[[dict], None]) -> Callable[[bytes], bytes]:
    """A change of a member's JSON."""

    def change(data: bytes) -> bytes:
        values = json.loads(data)
        edit(values)
        return json.dumps(values).encode()

    return change


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


def listed(name: str, **changes: object) -> Callable[[bytes], bytes]:
    """A change of an entry in the list of weights, or of constants; or a new entry."""
    return edited(lambda values: values["config"].setdefault(name, {}).update(changes))


def in_graph(edit: Callable[[dict], None]) -> dict[str, Member]:
    return {GRAPH: edited(lambda values: edit(values["graph_module"]["graph"]))}


def pickled_weight(data: bytes) -> dict[str, Member]:
    change = listed("features.weight", use_pickle=True, path_name="weight_9")
    return {WEIGHTS: change, "data/weights/weight_9": data}


def shared_weight(evidence: Path) -> dict[str, Member]:
    """A member that one weight has as numbers, and another one as a pickle."""

    def edit(values: dict) -> None:
        values["config"]["scores.bias"].update(path_name="weight_9")
        values["config"]["features.weight"].update(path_name="weight_9", use_pickle=True)

    data = saved(Trap(evidence))
    return {WEIGHTS: edited(edit), "data/weights/weight_9": data + bytes(-len(data) % 4)}


def touch(evidence: Path) -> str:
    """Python that creates the file."""
    return f"__import__('pathlib').Path({str(evidence)!r}).touch()"


def size(evidence: Path) -> dict[str, Member]:
    expression = {"as_expr": {"expr_str": touch(evidence), "hint": None}}
    return in_graph(lambda graph: graph["tensor_values"]["images"]["sizes"].insert(0, expression))


def name(evidence: Path) -> dict[str, Member]:
    """The name of an input, which is written into the source of a function."""
    text = f"more={touch(evidence)}"

    def edit(graph: dict) -> None:
        graph["inputs"].append({"as_tensor": {"name": text}})
        graph["tensor_values"][text] = graph["tensor_values"]["images"]

    return in_graph(edit)


def enumeration(evidence: Path) -> dict[str, Member]:
    """A member of an enumeration that is found by importing any module."""
    evidence.with_name("hostile_module.py").write_text(touch(evidence))
    context = json.dumps({"__enum__": True, "fqn": "hostile_module:Any", "name": "any"})
    spec = {"type": "builtins.dict", "context": context, "children_spec": []}

    def edit(values: dict) -> None:
        values["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps([1, spec])

    return {GRAPH: edited(edit)}


HOSTILE: dict[str, Callable[[Path], dict[str, Member]]] = {
    "sample": lambda evidence: {SAMPLES: saved(((torch.ones(1, 3, 32, 32), Trap(evidence)), {}))},
    "opaque constant": lambda evidence: {
        CONSTANTS: listed("opaque", path_name="opaque_obj_0", is_param=False, use_pickle=True, tensor_meta=None),
        "data/constants/opaque_obj_0": pickle.dumps(Trap(evidence)),
    },
    "pickled weight": lambda evidence: pickled_weight(saved(Trap(evidence))),
    "pickled constant": lambda evidence: {
        CONSTANTS: listed("scale", use_pickle=True, path_name="tensor_9"),
        "data/constants/tensor_9": saved(Trap(evidence)),
    },
    "shared weight": shared_weight,
    "all weights": lambda evidence: {"data/weights/model.pt": saved({"features.weight": Trap(evidence)})},
    "all constants": lambda evidence: {"data/constants/model.pt": saved({"scale": Trap(evidence)}, pickle_protocol=4)},
    "size": size,
    "guard": lambda evidence: {GRAPH: edited(lambda values: values.update(guards_code=[f"{touch(evidence)} or True"]))},
    "name": name,
    "enumeration": enumeration,
}
DROPPED = {"sample", "guard"}
"""What no model needs is left out, and the rest answers as ever."""


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("trust", [False, True], ids=["", "trusted"])
def test_hostile_program_executes_nothing_unless_trusted(program, tmp_path, monkeypatch, evidence, hostile, trust):
    monkeypatch.syspath_prepend(tmp_path)
    path = altered(program, tmp_path / "hostile.pt2", HOSTILE[hostile](evidence))
    said = run_whatever_happens(lambda: load_program(path, trust=trust))
    assert evidence.exists() is trust
    if not trust:
        assert (said == "") is (hostile in DROPPED)
        assert not said or ("None of its code was executed" in said and "--trust" in said)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_program_in_a_repository_executes_nothing(backend, program, tmp_path, monkeypatch, evidence, hostile):
    monkeypatch.syspath_prepend(tmp_path)
    path = altered(program, tmp_path / "model.pt2", HOSTILE[hostile](evidence))
    refused = pytest.raises(Exception, match=r"its (member|constant) ")
    with torch.no_grad(), nullcontext() if hostile in DROPPED else refused:
        backend.load(path, CPU)(IMAGES)
    assert not evidence.exists()


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


def test_refusal_names_the_member_and_the_global(program, tmp_path, evidence):
    path = altered(program, tmp_path / "hostile.pt2", HOSTILE["pickled weight"](evidence))
    with pytest.raises(ModelFileError, match=r"data/weights/weight_9.*data\.pkl.* calls pathlib\.Path\.touch|getattr"):
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


class Scripted(Head):
    """With what scripting writes and tracing does not: branches, lists, strings, names that are no identifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Identity()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.dim() != 4:
            raise ValueError("it's no \"batch\", don't save it:\n" + str(images.shape))
        sizes = [images.size(index) for index in range(2)]
        return self.stages(self.scores(torch.relu(self.features(images)).mean((2, 3)))) * (sizes[1] / 3)


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


class Writes(nn.Module):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = str(path)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        torch.save(images, self.path)
        return images


class Maps(Writes):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + torch.from_file(self.path, True, 16).fill_(65).sum()


class WritesWhileLoading(Writes):
    @torch.jit.export
    def __getstate__(self) -> str:
        return self.path

    @torch.jit.export
    def __setstate__(self, path: str) -> None:
        self.path = path
        self.training = False
        torch.save(torch.ones(1), path)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images


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
