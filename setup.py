"""What pyproject.toml cannot say: what a wheel must bring along beside its packages."""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("triton_models", "examples")
NETWORK = ("model.pt", "cpu.onnx", "cpu.json", "threads.json")
GENERATED = shutil.ignore_patterns("__pycache__", *NETWORK, "labels.txt", "origin.json")


class BuildWithModels(build_py):
    """Adds the models and examples, in gateway_local/shipped, and the client's wheel, for GET /client/."""

    def run(self) -> None:
        """Build, then add what a checkout has elsewhere."""
        super().run()
        if self.editable_mode:
            return
        page = Path("gateway", "plugins", "page")
        client = Path(self.build_lib, page, "client")
        client.mkdir(parents=True, exist_ok=True)
        runpy.run_path(str(page / "client_build.py"))["build_client"](Path("gateway_client"), client)
        for name in SHIPPED:
            # An image that only runs the API is built without them.
            if Path(name).is_dir():
                target = Path(self.build_lib, "gateway_local", "shipped", name)
                shutil.copytree(name, target, ignore=GENERATED, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithModels})
