"""What `gateway model parity` says."""

from pathlib import Path

import numpy as np

from gateway_models.proof.parity import Comparison, Parity
from gateway_models.proof.parity_report import report


def parity(*, on_gpu):
    served, expected = np.float32([0.6, 0.4]), np.float32([0.606, 0.394])
    stages = {"decode": served * 0, "resize": served * 0, "model": served - expected}
    return Parity([Comparison(Path("cat.jpg"), served, expected, stages)], [], on_gpu)


def test_differences_on_a_gpu_come_with_tf32_and_its_switch(capsys):
    report(parity(on_gpu=True), ["cat", "dog"], 1e-3)
    output = capsys.readouterr().out
    assert "TF32" in output
    assert "NVIDIA_TF32_OVERRIDE=0" in output


def test_tf32_note_is_omitted_on_a_cpu(capsys):
    report(parity(on_gpu=False), ["cat", "dog"], 1e-3)
    assert "TF32" not in capsys.readouterr().out
