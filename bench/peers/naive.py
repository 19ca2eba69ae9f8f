"""The service that everybody writes first: FastAPI and torch in one process for each core, an image at a time.

uvicorn bench.peers.naive:app --workers 2
"""

from typing import Annotated

from fastapi import FastAPI, File, UploadFile

from bench.peers.network import Network

app = FastAPI()
network = Network()


@app.get("/health")
def health() -> str:
    """It has started."""
    return "ok"


@app.post("/predict")
def predict(files: Annotated[UploadFile, File()]) -> dict[str, object]:
    """One picture."""
    return network.answers([network.prepare(files.file.read())])[0]
