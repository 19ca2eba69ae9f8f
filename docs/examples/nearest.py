"""Find the images of a folder that are most similar to an image, by embeddings from a running service.

    pip install faiss-cpu
    python docs/examples/nearest.py index photos --gateway http://127.0.0.1:8080 --model vectors
    python docs/examples/nearest.py find photos cat.jpg --top 5

`index` computes the embeddings of images that the folder's index does not have yet, and saves them in `.nearest/`:
FAISS's index (a graph, HNSW), the images' names, and the model, since embeddings of different models cannot be
compared. `find` prints the nearest images with the cosine similarity of each.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import faiss
import numpy as np

from gateway_client import Gateway, GatewayError

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".avif", ".heic", ".tif", ".tiff", ".bmp", ".gif"}
NEIGHBOURS = 32
"""Edges of each embedding in the graph: more are more accurate and take more memory."""


class Index:
    """The embeddings of a folder's images, with their names and model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ".nearest"
        self.vectors = None
        self.known: dict[str, object] = {"model": None, "version": None, "names": []}
        if (self.folder / "names.json").is_file():
            self.known = json.loads((self.folder / "names.json").read_text())
            self.vectors = faiss.read_index(str(self.folder / "vectors.faiss"))

    def add(self, name: str, vector: np.ndarray, model: str, version: str) -> None:
        """Add one image's embedding, of length 1; exits if the index is of another model."""
        if self.vectors is None:
            self.vectors = faiss.IndexHNSWFlat(len(vector), NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
            self.known.update(model=model, version=version)
        self.check(model, version)
        self.vectors.add(vector[None])
        self.known["names"].append(name)

    def check(self, model: str, version: str) -> None:
        """Exit if the index is of another model."""
        if (model, version) != (self.known["model"], self.known["version"]):
            there = f"{self.known['model']} version {self.known['version']}"
            sys.exit(
                f"{self.folder} has embeddings of {there}, not of {model} version {version}: delete it to start again"
            )

    def nearest(self, vector: np.ndarray, count: int) -> list[tuple[str, float]]:
        """The names of the nearest images, with their cosine similarities."""
        cosines, positions = self.vectors.search(vector[None], min(count, self.vectors.ntotal))
        names = [self.known["names"][position] for position in positions[0]]
        return list(zip(names, map(float, cosines[0]), strict=True))

    def save(self) -> None:
        """Write the index and the names."""
        if self.vectors is not None:
            self.folder.mkdir(exist_ok=True)
            faiss.write_index(self.vectors, str(self.folder / "vectors.faiss"))
            (self.folder / "names.json").write_text(json.dumps(self.known))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["index", "find"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("image", type=Path, nargs="?")
    parser.add_argument("--gateway", default="http://127.0.0.1:8080")
    parser.add_argument("--api-key")
    parser.add_argument("--model", help="a model with embeddings; by default the index's, or the service's")
    parser.add_argument("--top", type=int, default=5)
    options = parser.parse_args()
    try:
        run(options, parser.error)
    except GatewayError as error:
        sys.exit(f"error: {options.gateway}: {error.message} --gateway URL names another service")


def run(options: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> None:
    """Index or find; raises GatewayError."""
    index = Index(options.folder)
    model, version = options.model or index.known["model"], None if options.model else index.known["version"]
    with Gateway(options.gateway, options.api_key) as gateway:
        if options.command == "find":
            if options.image is None or index.vectors is None:
                refuse("find needs an index and an image: run index first")
            (result,) = gateway.embed(options.image, model=model, version=version, normalize=True)
            if result.error:
                sys.exit(f"{options.image}: {result.error.message}")
            index.check(result.model, result.version)
            for name, cosine in index.nearest(np.frombuffer(result.embedding, np.float32), options.top):
                print(f"{cosine:.3f}  {options.folder / name}")
            return
        known = set(index.known["names"])
        found = (path for path in sorted(options.folder.rglob("*")) if path.suffix.lower() in IMAGES)
        new = [path for path in found if str(path.relative_to(options.folder)) not in known]
        for result in gateway.embed(new, model=model, version=version, normalize=True):
            if result.error:
                print(f"{result.name}: {result.error.message}", file=sys.stderr)
                continue
            name = str(Path(result.name).relative_to(options.folder))
            index.add(name, np.frombuffer(result.embedding, np.float32), result.model, result.version)
    index.save()
    print(f"{len(index.known['names'])} images, {len(index.known['names']) - len(known)} of them new")


if __name__ == "__main__":
    main()
