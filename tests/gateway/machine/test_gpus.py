"""Usable GPUs, by the CUDA driver and torch, and why others are not usable."""

import pytest

from gateway.machine.gpus import Gpus, gpu_count, read_torch_cuda

OLD_DRIVER = (
    "torch is built for CUDA 13.0, which needs driver R580 or newer, and the driver here runs CUDA 12.4 at most; "
    "update the driver, or install a torch for CUDA 12"
)


@pytest.mark.parametrize(
    ("gpus", "usable", "why_not"),
    [
        (Gpus(2, (13, 1), (13, 0)), 2, ""),
        (Gpus(0), 0, ""),
        (Gpus(1, (12, 4), (13, 0), torch_sees_them=False), 0, OLD_DRIVER),
        (Gpus(1, (13, 0), None, torch_sees_them=False), 0, "built without CUDA"),
        (Gpus(1, (13, 0), (13, 0), torch_sees_them=False), 0, "torch.cuda.init()"),
    ],
)
def test_gpu_that_torch_does_not_see_has_a_reason(gpus, usable, why_not):
    assert gpus.usable == usable
    assert why_not in gpus.why_not
    assert bool(gpus.why_not) == bool(why_not)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = '2.15.0'\ncuda: Optional[str] = '13.0'\nhip = None\n", (13, 0)),
        ("cuda = '12.8'\n", (12, 8)),
        ("__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\n", None),
        ("", None),
    ],
)
def test_cuda_version_is_read_from_the_version_file_of_torch(text, version):
    assert read_torch_cuda(text) == version


def test_counting_gpus_needs_no_driver():
    assert gpu_count() >= 0
