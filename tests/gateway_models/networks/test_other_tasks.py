"""Networks for segmentation and detection are refused by what they give."""

import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

from gateway_models.networks import jobs
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.onnx_graph import check_signature
from gateway_models.networks.other_tasks import check_task, shapes_of
from tests.gateway_models.networks.builders import job, save_program

MAP, BOXES, PARTS = "a map of classes", "boxes around objects", "as a backbone gives"


@pytest.mark.parametrize(
    ("outputs", "side", "what"),
    [
        ({"out": (2, 21, 224, 224), "aux": (2, 21, 224, 224)}, 224, MAP),
        ({"logits": (2, 150, 56, 56)}, 224, MAP),
        ({"output_0": (None, 128, 128, 3)}, 128, MAP),
        ({"classes": (2, 224, 224)}, 224, MAP),
        ({"boxes": (7, 4), "labels": (7,), "scores": (7,)}, 320, BOXES),
        ({"logits": (2, 100, 92), "pred_boxes": (2, 100, 4)}, 224, BOXES),
        ({"output0": (None, 84, 8400)}, 640, BOXES),
        ({"output0": (1, 25200, 85)}, 640, BOXES),
        ({"output0": (1, 300, 6)}, 640, BOXES),
        ({"output0": (1, 116, 8400), "output1": (1, 32, 160, 160)}, 640, BOXES),
        ({"last_hidden_state": (2, 197, 768)}, 224, PARTS),
        ({"features": (2, 2048, 7, 7)}, 224, PARTS),
    ],
)
def test_other_tasks_are_recognised(outputs, side, what):
    with pytest.raises(ModelFileError, match=what):
        check_task(outputs, side)


@pytest.mark.parametrize(
    "outputs",
    [
        {"logits": (2, 1000)},
        {"logits": (2, 1000), "hidden": (2, 197, 768)},
        {"scores": (None, 1000, 1, 1)},
        {"scores": (None, None, None, None)},
        {"class": (2,)},
        {},
    ],
)
def test_classifiers_and_unknown_outputs_pass(outputs):
    check_task(outputs, 224)


def test_onnx_is_refused_before_its_size():
    """Its side is not the crop's: advice about --crop would only lead to the next refusal."""
    given = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 640, 640])
    result = helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 84, 8400])
    graph = helper.make_graph([helper.make_node("Identity", ["images"], ["output0"])], "g", [given], [result])
    with pytest.raises(ModelFileError, match=rf"{BOXES}.*output0 \[N, 84, 8400\]"):
        check_signature(helper.make_model(graph), 224)


def test_segmentation_of_torchvision_is_refused(tmp_path):
    network = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    path = save_program(network, tmp_path / "map.pt2")
    with pytest.raises(ModelFileError, match=MAP):
        jobs.do(job(path, "exported", tmp_path))


def test_detection_of_torchvision_is_refused():
    network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
    with torch.no_grad(), pytest.raises(ModelFileError, match=BOXES):
        check_task(shapes_of(network(torch.rand(1, 3, 320, 320))), 320)


def test_denoiser_is_refused_as_a_map(tmp_path):
    with pytest.raises(ModelFileError, match=MAP):
        jobs.do(job(save_program(nn.Conv2d(3, 3, 3, padding=1), tmp_path / "same.pt2"), "exported", tmp_path))
