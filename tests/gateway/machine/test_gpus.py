"""Usable GPUs, by the CUDA driver and torch, and why others are not usable."""

import pytest

from gateway.machine.gpus import Gpus, gpu_count, read_torch_cuda


def test_gpus_visible_to_torch_are_usable():
    gpus = Gpus(2, (13, 1), (13, 0))
    assert (gpus.usable, gpus.why_not) == (2, "")


def test_machine_without_gpus_has_no_reason():
    assert (Gpus(0).usable, Gpus(0).why_not) == (0, "")


def test_old_driver_error_names_the_required_version():
    gpus = Gpus(1, (12, 4), (13, 0), torch_sees_them=False)
    assert gpus.usable == 0
    assert gpus.why_not == (
        "torch is built for CUDA 13.0, which needs driver R580 or newer, and the driver here runs CUDA 12.4 at most; "
        "update the driver, or install a torch for CUDA 12"
    )


def test_torch_without_cuda_is_the_reason():
    assert "built without CUDA" in Gpus(1, (13, 0), None, torch_sees_them=False).why_not


def test_other_reasons_are_those_of_torch():
    assert "torch.cuda.init()" in Gpus(1, (13, 0), (13, 0), torch_sees_them=False).why_not


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
