"""Post-processing steps: declarations, their results, and refused functions."""

from pathlib import Path

import numpy as np
import pytest

from gateway.errors import UserError
from gateway.values.rollout import Rollout
from gateway_models.networks.add import add_step
from gateway_models.networks.after import check_step, write_step
from gateway_models.networks.functions import adapter_of
from gateway_models.networks.model_source import labels_of
from gateway_models.repository.after import DeclaredStep, FunctionStep, OwnClass, StepError, read_step
from gateway_models.repository.entry import EntryError, Outcome, read_entry
from gateway_models.repository.manage import remove_version, use
from gateway_models.repository.spec import Format, ModelSpec
from tests.commands import gateway

PETS = ("tabby", "Persian cat", "beagle", "pug", "sports car", "truck")
GROUPS = """
classes:
  cat: [tabby, persian_cat]
  dog: 2-3
  vehicle: [sports car, "5"]
threshold: 0.6
"""
HALVES = "def halves(scores):\n    return scores[:, :2] / 2\n"


def declared(folder: Path, text: str, labels=PETS, *, multi_label=False) -> DeclaredStep:
    path = folder / "step.yaml"
    path.write_text(text)
    found = check_step(read_step(str(path)), labels, None, (), multi_label=multi_label)
    assert isinstance(found, DeclaredStep)
    return found


def computed(folder: Path, text: str, scores, *, multi_label=False):
    """The labels and the scores of a declared step."""
    step = declared(folder, text, multi_label=multi_label)
    spec = ModelSpec("head.pt", "head", after=step, multi_label=multi_label)
    write_step(spec, Outcome(len(PETS), "softmax", 0.0, Format.ONNX), folder / "staged")
    served = adapter_of(folder / "staged").Served(folder / "staged")
    return step.labels, served(np.array(scores, np.float32))


def test_temperature_is_exact_on_probabilities(tmp_path):
    """A softmax of logits divided by the temperature, although only its own softmax is known."""
    logits = np.random.default_rng(0).normal(scale=4, size=(20, 6))
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    bias = [0.5, 0, 0, -1, 0, 0]
    _, found = computed(tmp_path, f"temperature: 2.5\nbias: {bias}", scores)
    wanted = np.exp(logits / 2.5 + bias)
    assert found == pytest.approx(wanted / wanted.sum(axis=1, keepdims=True), abs=1e-5)
    assert found.sum(axis=1) == pytest.approx(1)
    assert declared(tmp_path, "temperature: 2.5").labels == ()


def test_temperature_of_sigmoids_and_of_rounded_scores(tmp_path):
    """Softmax rounds a score of a sure network to 0, which must not become NaN."""
    logits = np.array([[-3.0, 2.0, 0.0, 1.0, -1.0, 5.0]])
    _, found = computed(tmp_path, "temperature: 2", 1 / (1 + np.exp(-logits)), multi_label=True)
    assert found == pytest.approx(1 / (1 + np.exp(-logits / 2)), abs=1e-5)
    folder = tmp_path / "sure"
    folder.mkdir()
    _, found = computed(folder, "temperature: 2", np.eye(6)[:1])
    assert found[0].argmax() == 0
    assert np.isfinite(found).all()


def test_own_classes_add_up_and_fall_back(tmp_path):
    """Without a class that reaches the threshold `other` answers; the sum stays 1."""
    rows = [[0.4, 0.3, 0.1, 0.1, 0.1, 0.0], [0.2, 0.1, 0.1, 0.1, 0.3, 0.2], [0.0, 0.0, 0.0, 0.0, 0.4, 0.6]]
    labels, found = computed(tmp_path, GROUPS, rows)
    assert labels == ("cat", "dog", "vehicle", "other")
    assert found[0] == pytest.approx([0.7, 0.2, 0.1, 0])
    assert found[1] == pytest.approx([0.075, 0.05, 0.125, 0.75])
    assert found[2] == pytest.approx([0, 0, 1, 0])


@pytest.mark.parametrize(
    ("text", "multi_label", "labels", "wanted"),
    [
        ("classes:\n  cat: [tabby, 1]\nother: no cat", False, ("cat", "no cat"), [0.6, 0.4]),
        ("classes:\n  cat: 0-1\n  dog: [pug]", True, ("cat", "dog"), [0.5, 0.1]),
    ],
    ids=["the rest is other", "multi-label takes the largest"],
)
def test_classes_of_the_network_become_own_classes(tmp_path, text, multi_label, labels, wanted):
    found = computed(tmp_path, text, [[0.1, 0.5, 0.1, 0.1, 0.1, 0.1]], multi_label=multi_label)
    assert found == (labels, pytest.approx(np.array([wanted])))


def test_threshold_alone_adds_a_class(tmp_path):
    labels, found = computed(tmp_path, "threshold: 0.5\nother: unsure", [[0.4, 0.3, 0.3, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    assert labels == (*PETS, "unsure")
    assert found.argmax(axis=1).tolist() == [6, 0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file must have entries"),
        ("[]", "the file must have entries"),
        ("temperatur: 2", "has 'temperatur'; it can have temperature, bias, classes"),
        ("temperature: hot", "temperature: must be a number, not 'hot'"),
        ("temperature: 0", "temperature: must be at least 0.01, not 0"),
        ("temperature: .nan", "temperature: must be a number, not '.nan'"),
        ("temperature: yes", "temperature: must be a number, not True"),
        ("threshold: 1.5", "threshold: must be at most 1, not 1.5"),
        ("bias: [1, 2]", "bias has 2 numbers, and the network has 6 classes"),
        ("other: rest", "add threshold or classes"),
        ("classes: {cat: []}", "classes.cat must be a list of classes of the network"),
        ("classes: {cat: [lion]}", "the network has no class 'lion'; it has tabby, Persian cat"),
        ("classes: {cat: [4-9]}", "no class '4-9'"),
        ("classes: {cat: [0], dog: [tabby]}", "'tabby' is in cat and in dog"),
        ("classes: {no: [0]}", "classes.0.label: False is no label"),
        ("classes: {cat: [0], dog: [true]}", "classes.1.members.0: True is no label"),
        ("threshold: 0.5\nother: null", "other: None is no label"),
        ("classes: {pet: {cat: [0]}}", "classes.pet must be a list"),
        ("classes: {other: [0]}", "the label 'other' occurs twice"),
        ("a: [", "cannot be read as YAML: line "),
        ("temperature: " + "9" * 301, "temperature: must be a number, not '99999"),
        ("classes: {" + "long" * 100 + ": []}", "classes.longlong"),
    ],
)
def test_wrong_declaration_is_named(tmp_path, text, reason):
    with pytest.raises(StepError, match=reason.replace("(", r"\(").replace("[", r"\[")):
        declared(tmp_path, text)


def test_multi_label_models_have_no_threshold(tmp_path):
    with pytest.raises(StepError, match="this is multi-label"):
        declared(tmp_path, "threshold: 0.5", multi_label=True)


def test_record_keeps_each_kind_of_step(tmp_path):
    """A record is JSON, in which the kinds are told apart by their members."""
    from pydantic import TypeAdapter

    adapter = TypeAdapter(ModelSpec)
    steps = [
        declared(tmp_path, GROUPS),
        FunctionStep("/a/step.py:f", labels=("a", "b"), takes_embeddings=True),
    ]
    for step in steps:
        spec = ModelSpec("head.pt", "head", after=step)
        assert adapter.validate_json(adapter.dump_json(spec)) == spec


@pytest.fixture
def function(tmp_path: Path):
    """Add a step of a function to `head`; returns its version's number."""

    def added(repository: Path, code: str = HALVES, labels: str = "low\nhigh\n", **options):
        path, name = tmp_path / "my_step.py", "halves" if code.startswith(HALVES[:10]) else "f"
        path.write_text(code)
        (tmp_path / "own.txt").write_text(labels)
        chosen = {"labels": tmp_path / "own.txt", "trust": True, **options}
        return add_step(read_step(f"{path}:{name}"), repository, "head", None, print, **chosen)

    return added


def test_function_is_a_version_of_the_same_network(own_head, function):
    entry, number = function(own_head)
    assert (number, entry.in_use, entry.network_of(2)) == (2, 1, 1)
    assert labels_of(entry, own_head, 2) == ("low", "high")
    assert labels_of(entry, own_head, 1)[0] == "class 0"
    assert sorted(path.name for path in (own_head / "head_classifier").iterdir() if path.name.isdigit()) == ["1"]
    config = (own_head / "head.v2" / "config.pbtxt").read_text()
    assert 'model_name: "head.v2_after"' in config
    assert "dims: [ 2 ]" in config
    assert 'value: { string_value: "halves of my_step.py" }' in config
    # What the version in use answers stays.
    assert "head.v2_after" not in (own_head / "head" / "config.pbtxt").read_text()
    assert read_entry(own_head, "head") == entry


def test_network_stays_as_long_as_a_version_runs_it(own_head):
    add_step(DeclaredStep(1.5), own_head, "head", None, print)
    use(own_head, "head", Rollout.of(["2"]))
    entry, _ = remove_version(own_head, "head", 1)
    assert entry.model_file(own_head, 2).is_file()
    entry, number = add_step(DeclaredStep(2.0), own_head, "head", None, print)
    assert (number, entry.network_of(3)) == (3, 1)
    entry, gone = remove_version(own_head, "head", 3)
    assert "head.v3_after" in gone
    assert not (own_head / "head.v3_after").exists()
    assert entry.model_file(own_head, 2).is_file()


def test_own_classes_keep_the_calibration_below(own_head, function):
    add_step(DeclaredStep(2.0), own_head, "head", None, print)
    groups = DeclaredStep(classes=(OwnClass("first", ("0-1",)),))
    entry, number = add_step(groups, own_head, "head", 2, print)
    step = entry.versions[number].spec.after
    assert isinstance(step, DeclaredStep)
    assert (step.temperature, step.labels) == (2.0, ("first", "other"))
    use(own_head, "head", Rollout.of([str(number)]))
    with pytest.raises(StepError, match="version 3 of head has a step already"):
        function(own_head)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (HALVES, r"my_step\.py:halves is code.*add --trust"),
        ("def f(scores): return scores[0]", r"returned float32 \[5\] for a batch of 3"),
        ("def f(scores): return scores", "returned 5 scores for an image, and there are 2 labels"),
        ("def f(scores): return scores[:, :2] / scores.sum()", "scores depend on the other images of the batch"),
        ("def f(scores): return scores[:, :2] / 0", "not finite"),
        ("def f(scores): return scores.nothing", r"AttributeError: .*\(my_step.py, line 1\)"),
        ("def f(scores, embeddings): return scores[:, :2]", "the network gives none: add it with --embeddings"),
        ("def f(scores, embeddings, more): return scores", "needs 3 arguments"),
        ("import absent_library\ndef f(scores): return scores", "imports 'absent_library'"),
    ],
)
def test_unusable_function_is_refused_with_its_reason(own_head, function, code, reason):
    with pytest.raises(UserError, match=reason):
        function(own_head, code, trust=code != HALVES)
    assert read_entry(own_head, "head").versions.keys() == {1}
    assert not list(own_head.glob("*_after"))


def test_changed_function_is_noticed(own_head, function, tmp_path):
    from gateway_models.networks.originals import original_answers

    entry, number = function(own_head)
    (tmp_path / "my_step.py").write_text(HALVES.replace("2]", "3]"))
    import torch

    with pytest.raises(EntryError, match="has changed since it was added"):
        original_answers(entry.versions[number])(torch.zeros(1, 3, 32, 32))


def test_command_adds_a_version_and_says_how_to_use_it(own_head, tmp_path):
    (tmp_path / "groups.yaml").write_text("classes:\n  first: 0-2\n")
    where = ("--model-repository", own_head)
    output = gateway("model", "postprocess", "head", tmp_path / "groups.yaml", *where).output
    assert "head version 2: the network of version 1, then 1 own class" in output
    assert f"gateway model use head 2 --model-repository {own_head}" in output
    assert "then 1 own class" in gateway("model", "show", "head", *where).output
