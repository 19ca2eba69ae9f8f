"""What pyproject.toml cannot say: the folders beside the package that a wheel must bring along."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("triton_models", "triton_backends", "examples")
GENERATED = shutil.ignore_patterns("__pycache__", "model.pt", "labels.txt", "origin.json")


class BuildWithModels(build_py):
    """Copies them to gateway_local/shipped, where `gateway_local.paths` looks when there is no checkout."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if self.editable_mode:
            return
        for name in SHIPPED:
            # An image that only runs the API is built without them.
            if Path(name).is_dir():
                target = Path(self.build_lib, "gateway_local", "shipped", name)
                shutil.copytree(name, target, ignore=GENERATED, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithModels})
