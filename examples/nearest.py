"""Find the pictures of a folder that look most alike, by the vectors of a running service.

    pip install faiss-cpu ./gateway_client
    python examples/nearest.py index photos --url http://127.0.0.1:8080 --model vectors
    python examples/nearest.py find photos cat.jpg --top 5

`index` asks for the vectors of pictures that the folder's index does not have yet, and keeps them in `.nearest/` there:
FAISS's index (a graph, HNSW) and beside it the pictures' names and the model, since vectors of two models have nothing
to do with each other. `find` prints the nearest ones, each with the cosine of its vector and the picture's.
"""

import argparse
import json
import sys
from pathlib import Path

import faiss
import numpy as np

try:
    from gateway_client import Gateway
except ImportError:  # in this repository, where the client is a room of the gateway
    from gateway_client import Gateway

PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".avif", ".heic", ".tif", ".tiff", ".bmp", ".gif"}
NEIGHBOURS = 32
"""Of each vector in the graph: more find better and take more memory."""


class Index:
    """The vectors of a folder's pictures, and what they are of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ".nearest"
        self.vectors = None
        self.known: dict[str, object] = {"model": None, "version": None, "names": []}
        if (self.folder / "names.json").is_file():
            self.known = json.loads((self.folder / "names.json").read_text())
            self.vectors = faiss.read_index(str(self.folder / "vectors.faiss"))

    def add(self, name: str, vector: np.ndarray, model: str, version: str) -> None:
        """Add one picture's vector, of length 1; exits where the others are of another model."""
        if self.vectors is None:
            self.vectors = faiss.IndexHNSWFlat(len(vector), NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
            self.known.update(model=model, version=version)
        self.check(model, version)
        self.vectors.add(vector[None])
        self.known["names"].append(name)

    def check(self, model: str, version: str) -> None:
        """Exit where vectors of a model cannot be compared with those that are there."""
        if (model, version) != (self.known["model"], self.known["version"]):
            there = f"{self.known['model']} version {self.known['version']}"
            sys.exit(f"{self.folder} has vectors of {there}, not of {model} version {version}: delete it to begin anew")

    def nearest(self, vector: np.ndarray, count: int) -> list[tuple[str, float]]:
        """The names of the nearest pictures, with the cosines."""
        cosines, places = self.vectors.search(vector[None], min(count, self.vectors.ntotal))
        names = [self.known["names"][place] for place in places[0]]
        return list(zip(names, map(float, cosines[0]), strict=True))

    def save(self) -> None:
        """Write both files."""
        if self.vectors is not None:
            self.folder.mkdir(exist_ok=True)
            faiss.write_index(self.vectors, str(self.folder / "vectors.faiss"))
            (self.folder / "names.json").write_text(json.dumps(self.known))


def main() -> None:
    """Read the command line, and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["index", "find"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture", type=Path, nargs="?")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--api-key")
    parser.add_argument("--model", help="one that gives vectors; by default the index's, or the service's")
    parser.add_argument("--top", type=int, default=5)
    asked = parser.parse_args()
    index = Index(asked.folder)
    model, version = asked.model or index.known["model"], None if asked.model else index.known["version"]
    with Gateway(asked.url, asked.api_key) as gateway:
        if asked.command == "find":
            if asked.picture is None or index.vectors is None:
                parser.error("find needs an index and a picture: run index first")
            (result,) = gateway.embed(asked.picture, model=model, version=version, normalize=True)
            if result.error:
                sys.exit(f"{asked.picture}: {result.error.message}")
            index.check(result.model, result.version)
            for name, cosine in index.nearest(np.frombuffer(result.embedding, np.float32), asked.top):
                print(f"{cosine:.3f}  {asked.folder / name}")
            return
        known = set(index.known["names"])
        found = (path for path in sorted(asked.folder.rglob("*")) if path.suffix.lower() in PICTURES)
        new = [path for path in found if str(path.relative_to(asked.folder)) not in known]
        for result in gateway.embed(new, model=model, version=version, normalize=True):
            if result.error:
                print(f"{result.name}: {result.error.message}", file=sys.stderr)
                continue
            name = str(Path(result.name).relative_to(asked.folder))
            index.add(name, np.frombuffer(result.embedding, np.float32), result.model, result.version)
    index.save()
    print(f"{len(index.known['names'])} pictures, {len(index.known['names']) - len(known)} of them new")


if __name__ == "__main__":
    main()
