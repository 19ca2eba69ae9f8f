"""Converts a model of another framework to ONNX, and compares its answers with the framework's own."""

import tempfile
from pathlib import Path

from gateway_models.networks.frameworks import Framework
from gateway_models.networks.isolation import Job
from gateway_models.networks.job_checks import report
from gateway_models.networks.onnx_job import serve_onnx
from gateway_models.networks.onnx_runner import import_onnx
from gateway_models.repository.entry import Outcome


def do_framework(job: Job, framework: Framework) -> Outcome:
    """Probe a model of another framework and write it as ONNX; raises UserError."""
    import_onnx()
    report(f"loading {job.spec.source}, {framework.content}")
    network = framework.open(job.spec)
    report("converting it to ONNX")
    with tempfile.TemporaryDirectory(prefix="converted-") as folder:
        file = Path(folder) / "model.onnx"
        network.write_onnx(file, job.side)
        return serve_onnx(job, file, network)
