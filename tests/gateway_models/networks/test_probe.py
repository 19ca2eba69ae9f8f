"""What a network does is tried, not assumed."""

import pytest
import torch
from torch import nn

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.probe import Ending, Findings, activation, check_classes, probe_batches, probe_network
from tests.gateway_models.networks.builders import Head
from tests.gateway_models.networks.special_networks import Calling


def tried(module: nn.Module, side: int = 32) -> Findings:
    with torch.no_grad():
        return probe_network(module.eval(), side)


@pytest.mark.parametrize(
    ("last", "ending"),
    [
        (None, Ending.LOGITS),
        (nn.Softmax(dim=1), Ending.SOFTMAX),
        (nn.LogSoftmax(dim=1), Ending.LOG_SOFTMAX),
        (nn.Sigmoid(), Ending.SIGMOID),
        (nn.ReLU(), Ending.LOGITS),
    ],
)
def test_ending_is_detected_from_outputs(last, ending):
    assert tried(Head(last=last)) == Findings(32, 5, ending)


@pytest.mark.parametrize("last", [None, nn.Softmax(dim=1), nn.LogSoftmax(dim=1)])
def test_activation_gives_probabilities(last):
    network, plain = Head(last=last).eval(), Head().eval()
    finished = activation(tried(network).ending, multi_label=False)
    with torch.no_grad():
        for batch in probe_batches(32):
            assert torch.allclose(finished(network(batch)), plain(batch).softmax(dim=1), atol=1e-6)


def test_multi_label_model_gets_a_sigmoid_where_it_has_none():
    scores = torch.tensor([[-1.0, 0.0, 2.0]])
    assert torch.equal(activation(Ending.LOGITS, multi_label=True)(scores), scores.sigmoid())
    assert torch.equal(activation(Ending.SIGMOID, multi_label=True)(scores), scores)


@pytest.mark.parametrize(
    ("ending", "multi_label", "reason"),
    [(Ending.SIGMOID, False, "use --multi-label"), (Ending.SOFTMAX, True, "leave out --multi-label")],
)
def test_activation_that_contradicts_the_options_is_refused(ending, multi_label, reason):
    with pytest.raises(ModelFileError, match=reason):
        activation(ending, multi_label=multi_label)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Head(channels=1), "takes 1 channel but images have three.* use --grayscale"),
        (
            Calling(lambda scores, _: (scores, scores)),
            r"a tuple of 2 \(0 \[2, 5\], 1 \[2, 5\]\) but one tensor .* choose it with --output",
        ),
        (Calling(lambda scores, _: {"logits": scores, "hidden": scores}), r"a dict of 2 \(logits \[2, 5\], hidden"),
        (
            Calling(lambda scores, _: nn.functional.normalize(scores)),
            r"has length 1, like embeddings.*nn.Linear\(5, 2\)",
        ),
        (Calling(lambda _, images: images), r"a map of classes.*scores \[N, 3, 32, 32\]"),
        (Calling(lambda scores, _: scores[..., None, None]), r"gives \[2, 5, 1, 1\]"),
        (Calling(lambda scores, _: scores.reshape(2, -1)), "reads the batch's size as a number"),
        (
            Calling(lambda scores, _: scores - scores.mean(dim=0)),
            r"depends on the others in its batch: call model\.eval",
        ),
        (Calling(lambda scores, _: scores + torch.rand_like(scores)), r"differs from call to call: call model\.eval"),
        (Calling(lambda scores, _: scores / 0 * 0), "NaN or infinity"),
        (Calling(lambda scores, images: scores[:, : 1 // 0]), "does not run on a batch of images"),
    ],
)
def test_unservable_network_is_refused_with_reason(module, reason):
    with pytest.raises(ModelFileError, match=reason):
        tried(module)


def test_wrong_size_names_the_right_size():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 5))
    with pytest.raises(ModelFileError, match="does not run on 32×32 but does on 64×64: use --crop 64"):
        tried(flat)


@pytest.mark.parametrize(
    ("classes", "labels", "multi_label", "reason"),
    [
        (5, 1, False, r"there is 1 label and the network has 5 classes"),
        (5, 4, False, r"4 labels and the network has 5 classes.*ImageFolder\)$"),
        (512, 4, False, "a network without its last layer, which outputs 512 features"),
        (1, 1, False, "use --multi-label"),
    ],
)
def test_label_and_class_counts_must_match(classes, labels, multi_label, reason):
    with pytest.raises(ModelFileError, match=reason):
        check_classes(Findings(32, classes, Ending.LOGITS), labels, multi_label=multi_label)
