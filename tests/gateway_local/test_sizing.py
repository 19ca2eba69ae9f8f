"""Configurations are changed in place: completed for the machine, and handwritten parts stay."""

import os
import shutil

import httpx
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from gateway.machine.capacity import plan
from gateway.triton.configs import ModelConfig, ModelInstanceGroup, parameters, read_model_config
from gateway.triton.contract import SIZED_FOR
from gateway_local import sizing
from gateway_local.config_text import parse, with_parameter
from gateway_local.sizing import FUSER, SizedRepository, completed, completed_texts, write
from tests.tritons import running_triton

GPU, CPU = plan(16, 1), plan(16, 0)
AUTO, KIND_CPU, KIND_GPU = (getattr(ModelInstanceGroup, f"KIND_{name}") for name in ("AUTO", "CPU", "GPU"))
BATCHED = "max_batch_size: 64 dynamic_batching { }"
ENSEMBLE = """
name: "own" platform: "ensemble" input { name: "RAW_IMAGE" }
ensemble_scheduling { step [
  { model_name: "decoder" model_version: -1 input_map { key: "IMAGE" value: "RAW_IMAGE" } },
  { model_name: 'net' model_version: -1 input_map { key: "x" value: "PIXELS" } }
] }"""


def config_of(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def sized(text: str, chosen=GPU, *, preprocessor: bool = False) -> ModelConfig:
    return config_of(completed(text, preprocessor=preprocessor, chosen=chosen))


def groups(config: ModelConfig) -> list[tuple[int, int, list[int]]]:
    return [(group.kind, group.count, list(group.gpus)) for group in config.instance_group]


def test_shipped_models_are_completed(repository):
    found = {name: config_of(text) for name, text in completed_texts(repository, GPU).items()}
    assert sorted(found) == ["classifier", "preprocessor"]
    assert groups(found["classifier"]) == [(KIND_GPU, 2, [])]
    assert groups(found["preprocessor"]) == [(KIND_CPU, 9, [])]
    batching = found["classifier"].dynamic_batching
    assert (list(batching.preferred_batch_size), batching.max_queue_delay_microseconds) == ([8, 16, 32], 1000)
    # As render.py writes them, and the batches that a GPU gets.
    warmed = found["classifier"].model_warmup
    assert [each.batch_size for each in warmed] == [1, 4, 8, 16, 32]
    assert [each.name for each in warmed][-1] == "batch of 32"
    assert {str(each.inputs) for each in warmed} == {str(warmed[0].inputs)}
    assert parameters(found["classifier"])[SIZED_FOR] == "16 cores, 1 GPU"
    network = repository / "classifier" / "1" / "cpu.onnx"
    network.parent.mkdir(exist_ok=True)
    network.touch()
    on_cpu = {name: config_of(text) for name, text in completed_texts(repository, CPU).items()}
    assert groups(on_cpu["classifier"]) == [(AUTO, 13, [])]
    assert list(on_cpu["classifier"].dynamic_batching.preferred_batch_size) == [4, 8]
    warmed = on_cpu["classifier"].model_warmup
    assert [(each.name, each.batch_size, each.count) for each in warmed] == [("batch of 1", 1, 1)]
    assert [each.count for each in found["classifier"].model_warmup] == [3, 3, 3, 3, 3]
    network.unlink()
    by_torch = config_of(completed_texts(repository, CPU)["classifier"])
    assert [each.count for each in by_torch.model_warmup] == [3, 3, 3]
    assert not on_cpu["classifier"].dynamic_batching.max_queue_delay_microseconds


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("instance_group { kind: KIND_AUTO count: 3 }", [(KIND_GPU, 3, [])]),
        ("instance_group [ { count: 3 gpus: [ 0, 1 ] kind: KIND_GPU } ]", [(KIND_GPU, 3, [0, 1])]),
        (
            "instance_group [ { kind: KIND_GPU gpus: [ 0 ] }, { kind: KIND_CPU count: 1 } ]",
            [(KIND_GPU, 2, [0]), (KIND_CPU, 1, [])],
        ),
        ("instance_group [ { kind: KIND_CPU } ]", [(KIND_CPU, 13, [])]),
        ("instance_group [ { kind: KIND_MODEL } ]", [(ModelInstanceGroup.KIND_MODEL, 0, [])]),
        ("instance_group [ { gpus: 1 } ]", [(AUTO, 2, [1])]),
        ("", [(KIND_GPU, 2, [])]),
        ("# a comment without a line break", [(KIND_GPU, 2, [])]),
    ],
)  # fmt: skip
def test_written_counts_and_devices_stay(text, wanted):
    assert groups(sized(text)) == wanted


def test_preprocessor_stays_on_the_cpu_unless_it_says_otherwise():
    assert groups(sized("", preprocessor=True)) == [(KIND_CPU, 9, [])]
    text = "instance_group [ { kind: KIND_GPU } ]"
    assert groups(sized(text, plan(64, 8), preprocessor=True)) == [(KIND_GPU, 5, [])]


def test_written_batching_stays_and_a_network_without_warm_up_gets_none():
    text = f"{BATCHED[:-1]} preferred_batch_size: 7 max_queue_delay_microseconds: 5 }}"
    batching = sized(text).dynamic_batching
    assert (list(batching.preferred_batch_size), batching.max_queue_delay_microseconds) == ([7], 5)
    batching = sized(f"{BATCHED[:-1]} default_queue_policy {{ max_queue_size: 9 }} }}").dynamic_batching
    assert not batching.max_queue_delay_microseconds
    assert not sized("max_batch_size: 8").HasField("dynamic_batching")
    assert not sized(BATCHED).model_warmup
    assert not sized(f"{BATCHED} model_warmup {{ name: 'own' }}", CPU).model_warmup[1:]


def test_written_warm_ups_of_onnx_stay_on_a_cpu_with_one_call_each():
    first, second = "{ name: 'a' batch_size: 8 count: 3 }", "{ name: 'b' batch_size: 2 count: 2 }"
    text = f"max_batch_size: 8 model_warmup [ {first}, {second} ]"
    config = config_of(completed(text, preprocessor=False, chosen=CPU, in_onnx=True))
    assert [(each.name, each.batch_size, each.count) for each in config.model_warmup] == [("a", 8, 1), ("b", 2, 1)]


@pytest.mark.parametrize(("most", "wanted"), [(64, [8, 16, 32]), (32, [8, 16, 32]), (31, [8, 16]), (7, [])])
def test_preferred_sizes_fit_the_largest_batch(most, wanted):
    text = BATCHED.replace("64", str(most))
    assert list(sized(text).dynamic_batching.preferred_batch_size) == wanted


COMPLETE = "instance_group { kind: KIND_CPU count: 1 } max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }"


@pytest.mark.parametrize(
    ("text", "chosen"),
    [(COMPLETE, GPU), ("instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]", CPU)],
    ids=["complete", "for a GPU that is not there"],
)
def test_configuration_is_left_to_triton(text, chosen):
    assert completed(text, preprocessor=chosen is GPU, chosen=chosen) == text


def test_only_steps_of_ensembles_of_images_are_completed(tmp_path):
    """An own model that keeps state in its one process is none of them."""
    for name, text in {"own": ENSEMBLE, "decoder": "", "net": BATCHED, "other": BATCHED, "broken": "{"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    found = completed_texts(tmp_path, GPU)
    assert sorted(found) == ["decoder", "net"]
    assert groups(config_of(found["decoder"])) == [(KIND_CPU, 9, [])]


@pytest.mark.parametrize("gpus", range(9))
@pytest.mark.parametrize("triton_alone", [False, True])
def test_every_completed_configuration_is_one_of_triton(repository, gpus, triton_alone):
    """Each parses by NVIDIA's model_config.proto, and has the numbers of the plan."""
    for cores in range(1, 65):
        chosen = plan(cores, gpus, triton_alone=triton_alone)
        found = {name: config_of(text) for name, text in completed_texts(repository, chosen).items()}
        assert groups(found["classifier"]) == [(KIND_GPU if gpus else AUTO, chosen.networks, [])]
        assert groups(found["preprocessor"]) == [(KIND_CPU, chosen.preprocessors, [])]
        assert tuple(found["classifier"].dynamic_batching.preferred_batch_size) == chosen.preferred


def test_torchscript_on_a_gpu_is_not_fused():
    """The fuser compiles for each batch size at its second call, while clients wait; a handwritten value stays."""
    torchscript = 'platform: "pytorch_libtorch"'
    assert parameters(sized(torchscript))[FUSER] == "false"
    assert FUSER not in parameters(sized(torchscript, CPU))
    assert FUSER not in parameters(sized('platform: "onnxruntime_onnx"'))
    written = f'{torchscript} parameters {{ key: "{FUSER}" value {{ string_value: "true" }} }}'
    assert parameters(sized(written))[FUSER] == "true"


def test_configurations_for_gpus_load_and_warm_up(runtime, model_repository, tmp_path):
    """The Triton here has no GPU: KIND_GPU is replaced by KIND_CPU.

    One that is edited afterwards is completed while Triton runs.
    """
    chosen = plan(2, 1, triton_alone=True)
    copy = shutil.copytree(model_repository, tmp_path / "models", ignore=shutil.ignore_patterns("configs"))
    for name, text in completed_texts(copy, chosen).items():
        (copy / name / "config.pbtxt").write_text(text.replace("KIND_GPU", "KIND_CPU"))
    with running_triton(runtime, copy) as server:
        loaded = httpx.get(f"{server.http_url}/v2/models/classifier/config", timeout=60).json()
        edited = copy / "classifier" / "configs" / "sized.pbtxt"
        assert not edited.exists()
        shutil.copyfile(model_repository / "classifier" / "config.pbtxt", copy / "classifier" / "config.pbtxt")
        server.update_sizes()
        assert read_model_config(edited).instance_group[0].count > 0
    assert loaded["instance_group"][0]["count"] == chosen.networks
    assert [each["batch_size"] for each in loaded["model_warmup"]] == [1, 4, 8, 16, 32]
    assert loaded["parameters"][FUSER] == {"string_value": "false"}


@pytest.mark.parametrize("text", ["a {", "a: ", "}", "a [ b", 'a: "b', "a: [ 1", "a { b: }"])
@pytest.mark.parametrize("change", [parse, lambda text: with_parameter(text, "runtime", "onnx")])
def test_text_that_is_no_configuration_is_an_error(change, text):
    with pytest.raises(ValueError):  # any reason: Triton reports the errors
        change(text)


@given(st.text(alphabet="ab:{}[]<>,;#\"' \n\\1", max_size=40))
def test_reading_any_text_ends_with_fields_or_an_error(text):
    try:
        parse(text)
    except ValueError:
        return


def test_write_adds_replaces_and_removes(repository):
    path = repository / "classifier" / "configs" / "sized.pbtxt"
    write(repository, CPU)
    assert groups(read_model_config(path)) == [(AUTO, 13, [])]
    before = path.stat().st_mtime_ns
    write(repository, CPU)
    assert path.stat().st_mtime_ns == before
    config = repository / "classifier" / "config.pbtxt"
    text = config.read_text().replace("KIND_AUTO", "KIND_CPU count: 1")
    config.write_text(text.replace("dynamic_batching {", "dynamic_batching { preferred_batch_size: 8"))
    write(repository, CPU)
    assert not path.exists()


def test_repository_follows_edits_and_new_models(repository):
    found = SizedRepository(repository, CPU)
    found.update()
    assert found.path == repository
    config = repository / "preprocessor" / "config.pbtxt"
    config.write_text(config.read_text().replace("kind: KIND_CPU", "kind: KIND_CPU count: 7"))
    os.utime(config, ns=(1, 1))
    found.update()
    assert not (repository / "preprocessor" / "configs" / "sized.pbtxt").exists()


def test_read_only_repository_gets_links_that_follow_it(repository, monkeypatch):
    """The links also follow configurations that the user wrote there.

    Root can write files of any mode, so the test simulates the refusal of a read-only file system.
    """
    real = sizing.write

    def refusing(path, chosen):
        if path == repository:
            raise PermissionError
        real(path, chosen)

    monkeypatch.setattr(sizing, "write", refusing)
    (repository / "classifier" / "configs").mkdir()
    (repository / "classifier" / "configs" / "mine.pbtxt").write_text("# mine")
    found = SizedRepository(repository, CPU)
    found.update()
    assert found.path != repository
    assert not list(repository.glob("*/configs/sized.pbtxt"))
    linked = found.path / "classifier"
    assert (linked / "configs" / "mine.pbtxt").read_text() == "# mine"
    assert (linked / "1").is_symlink()
    assert (linked / "config.pbtxt").read_text() == (repository / "classifier" / "config.pbtxt").read_text()
    assert groups(read_model_config(linked / "configs" / "sized.pbtxt")) == [(AUTO, 13, [])]
    (repository / "classifier" / "2").mkdir()
    shutil.copytree(repository / "classifier", repository / "another")
    shutil.rmtree(repository / "sequence_model")
    found.update()
    assert (linked / "2").is_dir()
    assert {path.name for path in found.path.iterdir()} == {path.name for path in repository.iterdir()}
    shutil.rmtree(repository / "classifier" / "2")
    found.update()
    assert not (linked / "2").is_symlink()
    place = found.path
    found.remove()
    assert not place.exists()
    assert (repository / "classifier" / "config.pbtxt").exists()


CONFIG = """# Kept.
name: "flowers"
parameters { key: "first" value: { string_value: "1" } }  # kept
%s
"""
FORMS = {
    "message": 'parameters { key: "runtime" value: { string_value: "onnx" } }',
    "list": 'parameters: [ { key: "runtime", value: { string_value: "onnx" } } ]',
    "angle brackets": "parameters < key: 'runtime' value < string_value: 'on' 'nx' > >",
    "several lines": 'parameters: {\n  key: "runtime"\n  value: {\n    string_value: "onnx"  # kept\n  }\n}',
}


def read(text: str) -> dict[str, str]:
    return dict(parameters(config_of(text)))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_parameter_is_changed_in_place_or_added(form):
    before = CONFIG % form
    after = with_parameter(before, "runtime", "torchscript")
    assert read(before) == {"first": "1", "runtime": "onnx"}
    assert read(after) == {"first": "1", "runtime": "torchscript"}
    assert after.count("# Kept.") == 1
    assert after.count("# kept") == before.count("# kept")
    assert with_parameter(after, "runtime", "torchscript") == after
    added = with_parameter(CONFIG % "", "runtime", "onnx")
    assert read(added) == {"first": "1", "runtime": "onnx"}
    assert added.startswith("# Kept.")
