"""Write the default model of the images into FOLDER: as TorchScript into triton_models/, as ONNX into onnx_models/.

python3 export_models.py FOLDER

Runs in an environment with this project and its extra `local`.
"""

import subprocess
import sys
from pathlib import Path

from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL
from gateway_models.networks.export import EFFICIENTNET_LITE0


def commands() -> list[list[str]]:
    """The arguments of `gateway` for each repository."""
    values = EFFICIENTNET_LITE0.preprocessing.parameters()
    return [
        ["model", "add", "default", "--model-repository=triton_models"],
        [
            *("model", "add", f"triton_models/{CLASSIFIER}/1/model.pt", f"--name={ENSEMBLE_MODEL}"),
            f"--labels=triton_models/{CLASSIFIER}/labels.txt",
            f"--resize={values['resize_size']}",
            f"--crop={values['crop_size']}",
            *(f"--{name}={values[name]}" for name in ("interpolation", "mean", "std")),
            *("--format=onnx", "--model-repository=onnx_models"),
        ],
    ]


def main() -> None:
    """Run them; ends with the status of the first that fails."""
    folder = Path(sys.argv[1])
    for arguments in commands():
        done = subprocess.run([sys.executable, "-m", "gateway", *arguments], cwd=folder, check=False)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
