"""What pyproject.toml cannot say: what a wheel must bring along beside its packages."""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = (
    "triton_models/classifier/config.pbtxt",
    "triton_models/ensemble_model/config.pbtxt",
    "triton_models/ensemble_model/1/.gitkeep",
    "triton_models/preprocessor/config.pbtxt",
    "triton_models/preprocessor/1/*.py",
    "triton_models/sequence_model/config.pbtxt",
    "triton_models/sequence_model/1/*.py",
    "docs/examples/*.*",
    "docs/examples/object_counter/config.pbtxt",
    "docs/examples/object_counter/1/*.py",
)
"""As in MANIFEST.in. What a user has added to triton_models is not the project's, so it is not in a wheel."""


class BuildWithModels(build_py):
    """Adds the project's models and examples, in gateway_local/shipped, and the client's wheel, for GET /client/."""

    def run(self) -> None:
        """Build, then add what a checkout has elsewhere."""
        super().run()
        if self.editable_mode:
            return
        page = Path("gateway", "plugins", "page")
        client = Path(self.build_lib, page, "client")
        client.mkdir(parents=True, exist_ok=True)
        runpy.run_path(str(page / "client_build.py"))["build_client"](Path("gateway_client"), client)
        # An image that only runs the API is built without them.
        for path in (path for pattern in SHIPPED for path in Path().glob(pattern)):
            target = Path(self.build_lib, "gateway_local", "shipped", path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


setup(cmdclass={"build_py": BuildWithModels})
