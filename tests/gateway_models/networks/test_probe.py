"""The properties of a network are tried, not assumed."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from gateway_models.networks import jobs
from gateway_models.networks.errors import ModelError
from gateway_models.networks.job_checks import activation_of
from gateway_models.networks.probe import Ending, Findings, activation, check_classes, probe_network
from gateway_models.repository.preprocessing import AS_PIXELS
from tests.gateway_models.networks.builders import Head, job, save_torchscript
from tests.gateway_models.networks.special_networks import Calling, Scaled


def tried(module: nn.Module, side: int = 32) -> Findings:
    with torch.no_grad():
        return probe_network(module.eval(), side)


def test_relu_is_no_sigmoid():
    assert tried(Head(last=nn.ReLU())).ending is Ending.LOGITS


@pytest.mark.parametrize(
    ("ending", "multi_label", "reason"),
    [(Ending.SIGMOID, False, "use --multi-label"), (Ending.SOFTMAX, True, "leave out --multi-label")],
)
def test_activation_that_contradicts_the_options_is_refused(ending, multi_label, reason):
    with pytest.raises(ModelError, match=reason):
        activation(ending, multi_label=multi_label)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Head(channels=1), "does not run on a batch of images .*3 channels instead.* --grayscale for one channel"),
        (
            Calling(lambda scores, _: nn.functional.normalize(scores)),
            r"has length 1, like embeddings.*nn.Linear\(5, 2\)",
        ),
        (Calling(lambda _, images: images), r"gives \[2, 3, 32, 32\] for a batch .* a classifier of whole images"),
        (Calling(lambda scores, _: scores[..., None, None]), r"gives \[2, 5, 1, 1\]"),
        (Calling(lambda scores, _: scores.reshape(2, -1)), "reads the batch's size as a number"),
        (
            Calling(lambda scores, _: scores - scores.mean(dim=0)),
            r"depends on the others in its batch: call model\.eval",
        ),
        (Calling(lambda scores, _: scores + torch.rand_like(scores)), r"differs from call to call: call model\.eval"),
        (Calling(lambda scores, _: scores / 0 * 0), "NaN or infinity"),
        (Calling(lambda scores, _: scores.softmax(1) * 100), "add up to 100 for every image, as percentages do"),
    ],
)
def test_unservable_network_is_refused_with_reason(module, reason):
    with pytest.raises(ModelError, match=reason):
        tried(module)


@pytest.mark.parametrize(
    ("classes", "labels", "multi_label", "reason"),
    [
        (5, 4, False, r"4 labels and the network has 5 classes.*ImageFolder\)$"),
        (1, 1, False, "use --multi-label"),
    ],
)
def test_label_and_class_counts_must_match(classes, labels, multi_label, reason):
    with pytest.raises(ModelError, match=reason):
        check_classes(Findings(classes, Ending.LOGITS), labels, multi_label=multi_label)


@pytest.mark.parametrize("last", [None, nn.Softmax(dim=1)])
def test_same_scores_for_all_photographs_are_questioned(tmp_path, capsys, last):
    """A division by 255 in a network that gets normalised images. Without a softmax it would pass for a sigmoid."""
    dim = Scaled(lambda images: images / 255, last).eval()
    tried = job(save_torchscript(dim, tmp_path / "dim.pt"), "torchscript", tmp_path)
    if last is None:
        with torch.no_grad(), pytest.raises(ModelError, match=r"18 of 18 photographs get the same scores"):
            activation_of(tried, Findings(5, Ending.SIGMOID), dim)
        return
    jobs.do(tried)
    assert (
        "warning: 18 of 18 photographs get the same scores, within 0.01: are images prepared" in capsys.readouterr().err
    )
    jobs.do(replace(tried, spec=replace(tried.spec, preprocessing=replace(tried.spec.prepared, **AS_PIXELS))))
    assert "warning" not in capsys.readouterr().err
