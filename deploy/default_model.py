"""`python -m deploy.default_model`: the default model as an archive in dist/, to build images without torch.

`DEFAULT_MODEL=dist` has the Dockerfile unpack it instead of exporting the model. It has the generated files: the ones
that triton_models/ lacks in a checkout, and onnx_models/ as a whole.
"""

import gzip
import shutil
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

from deploy.generate import DEPLOY
from gateway import __version__

PROJECT = DEPLOY.parent
EXPORT = DEPLOY / "images" / "export_models.py"
GENERATED = (
    "triton_models/classifier/1",
    "triton_models/classifier/labels.txt",
    "triton_models/ensemble_model/origin.json",
)
IN_IMAGE = "/app/"
"""Where the Dockerfile unpacks it; records of models name their source by its path."""
PACKED = (*GENERATED, "onnx_models")
_NOT_PACKED = {"configs", "__pycache__"}
"""Counts for this machine, and the bytecode of this machine's Python."""
_NOT_COPIED = shutil.ignore_patterns("model.pt", "cpu.*", "labels.txt", "origin.json", "configs", "__pycache__")

say = partial(print, flush=True)


def archive_name(version: str = __version__) -> str:
    """Not `.tar.gz`, by which the release finds the sdists."""
    return f"default-model-{version}.tgz"


def export(python: Path, folder: Path) -> None:
    """Write the model repositories into a new folder, by the packages of an environment; raises CalledProcessError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(PROJECT / "triton_models", folder / "triton_models", ignore=_NOT_COPIED)
    subprocess.run([python, EXPORT, folder], check=True)
    for record in folder.rglob("origin.json"):
        record.write_text(record.read_text().replace(f"{folder}/", IN_IMAGE))


def pack(folder: Path, archive: Path) -> None:
    """Pack the files of the exported repositories, reproducibly: the same files make the same archive."""
    paths = sorted(path for each in PACKED for path in _with_what_is_inside(folder / each))
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in paths:
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            if path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
                continue
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as content:
                tar.addfile(entry, content)


def _with_what_is_inside(path: Path) -> list[Path]:
    """Folders too: the version of an ensemble is an empty one."""
    inside = [each for each in path.rglob("*") if not _NOT_PACKED & {*each.relative_to(path).parts}]
    return [path, *inside]


def main() -> None:
    """Export the model by this environment's packages, and pack it into dist/."""
    scratch = PROJECT / "build" / "default-model"
    archive = PROJECT / "dist" / archive_name()
    try:
        export(Path(sys.executable), scratch)
    except subprocess.CalledProcessError as exc:
        sys.exit(f"error: the default model was not exported (status {exc.returncode}); the reason is above")
    archive.parent.mkdir(exist_ok=True)
    pack(scratch, archive)
    say(f"{archive.relative_to(PROJECT)}: {archive.stat().st_size:,} bytes; DEFAULT_MODEL=dist builds images with it")


if __name__ == "__main__":
    main()
