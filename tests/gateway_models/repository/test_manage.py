"""Changes of a model's versions after it was added."""

import contextlib
import shutil
from dataclasses import replace

import pytest

from gateway.triton.configs import parameters, read_model_config
from gateway.values.rollout import Rollout
from gateway_models.networks.add import add
from gateway_models.repository.after import DeclaredStep
from gateway_models.repository.entry import Entry, EntryError, read_entry
from gateway_models.repository.manage import provide_stateful, remove, remove_version, use
from gateway_models.repository.render import render
from gateway_models.repository.spec import ModelSpec, Serving
from gateway_models.repository.writing import extend, rewrite, staging
from tests.gateway_models.networks.builders import Head, save_torchscript
from tests.gateway_models.repository.entries import entry, with_serving
from tests.processes import PROJECT


def test_full_disk_is_reported(tmp_path):
    """Moving a folder to another file system fails with a list of the files that were not copied, and why."""
    why = "[Errno 28] No space left on device: 'a/model.pt' -> 'b/model.pt'"
    with (
        pytest.raises(EntryError, match=r"cannot write into .*models: No space left on device$"),
        staging(tmp_path / "models"),
    ):
        raise shutil.Error([("a/model.pt", "b/model.pt", why)])


def test_version_is_added_used_rolled_back_and_removed(own_head, tmp_path):
    second = save_torchscript(Head(seed=1), tmp_path / "head.pt")
    made = add(ModelSpec(source=str(second), name="head", version=2), own_head, print)
    assert (made.in_use, sorted(made.versions)) == (1, [1, 2])
    assert made.folders == ("head", "head.v1", "head.v2", "head_preprocessor", "head_classifier")

    def served() -> tuple[list[str], int]:
        step = read_model_config(own_head / "head" / "config.pbtxt").ensemble_scheduling.step[1]
        return [path.name for path in (own_head / "head").iterdir() if path.is_dir()], step.model_version

    assert served() == (["1"], 1)
    use(own_head, "head", Rollout.of(["2"]))
    assert served() == (["2"], 2)
    use(own_head, "head", Rollout.of(["1"]))
    assert served() == (["1"], 1)
    with pytest.raises(EntryError, match=r"version 1 of head answers requests: .*gateway model use head"):
        remove_version(own_head, "head", 1)
    with pytest.raises(EntryError, match=r"head has no version 7; there are 1, 2"):
        use(own_head, "head", Rollout.of(["7"]))
    before = use(own_head, "head", Rollout.of(["1"], ["2"], by="ops"))
    with pytest.raises(EntryError, match="version 2 of head is a shadow"):
        remove_version(own_head, "head", 2)
    written = parameters(read_model_config(own_head / "head" / "config.pbtxt"))["rollout"]
    assert Rollout.read(written) == read_entry(own_head, "head").rollout
    assert "rollout" not in parameters(read_model_config(own_head / "head.v1" / "config.pbtxt"))
    # A change that was prepared before, such as another version, does not take the new record back.
    rewrite(made, own_head)
    assert read_entry(own_head, "head").rollout.by == "ops"
    assert use(own_head, "head", before).by == "ops"
    left, gone = remove_version(own_head, "head", 2)
    assert gone == ("head.v1", "head.v2")
    assert sorted(path.name for path in (own_head / "head_classifier").glob("[0-9]*")) == ["1"]
    assert read_entry(own_head, "head") == left
    remove(left, own_head)
    assert [path.name for path in own_head.iterdir()] == ["retired.json"]


def test_configurations_are_replaced_as_a_whole(tmp_path):
    """Triton may read one at any moment; an open file stays as it was."""
    old = entry()
    paths = [tmp_path / name for name in ("head/config.pbtxt", "head_classifier/config.pbtxt", "head/origin.json")]
    rewrite(old, tmp_path)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(path.open()) for path in paths]
        before = [path.read_text() for path in paths]
        rewrite(with_serving(old, max_batch_size=old.spec.serving.max_batch_size + 1), tmp_path)
        assert [path.read_text() for path in paths] != before
        assert [file.read() for file in opened] == before
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("name", ["missing", "../etc", "stateless"])
def test_only_a_model_that_can_follow_streams_is_used(tmp_path, name):
    (tmp_path / "stateless").mkdir()
    (tmp_path / "stateless" / "config.pbtxt").write_text('name: "stateless"\nbackend: "python"\n')
    with pytest.raises(EntryError):
        provide_stateful(name, tmp_path)
    shutil.copytree(PROJECT / "docs" / "examples" / "object_counter", tmp_path / "object_counter")
    assert not provide_stateful("object_counter", tmp_path)


def test_model_names_its_own_stateful_one_in_every_ensemble(tmp_path):
    version = entry(serving=Serving(sequence_model="object_counter")).versions[1]
    several = Entry("flowers", {1: version, 2: version})
    for ensemble in several.ensembles:
        (tmp_path / "config.pbtxt").write_text(render(several)[ensemble])
        assert parameters(read_model_config(tmp_path / "config.pbtxt"))["sequence_model"] == "object_counter"


def test_folder_in_the_way_of_a_step_is_kept(tmp_path):
    old = entry()
    version = entry(after=DeclaredStep(temperature=2.0)).versions[1]
    new = replace(old, versions={**old.versions, 2: version})
    (kept := tmp_path / new.step_after(2) / "notes.txt").parent.mkdir()
    kept.write_text("somebody's")
    with pytest.raises(EntryError, match="already exists"):
        extend(old, new, None, tmp_path, tmp_path / "step")
    assert kept.read_text() == "somebody's"
