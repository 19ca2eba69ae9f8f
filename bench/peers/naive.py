"""A minimal service of FastAPI and torch: one process for each core, one image at a time.

uvicorn bench.peers.naive:app --workers 2
"""

from typing import Annotated

from fastapi import FastAPI, File, UploadFile

from bench.peers.network import Network

app = FastAPI()
network = Network()


@app.get("/health")
def health() -> str:
    """Answers once the service has started."""
    return "ok"


@app.post("/predict")
def predict(files: Annotated[UploadFile, File()]) -> dict[str, object]:
    """Classify the image of a form."""
    return network.answers([network.prepare(files.file.read())])[0]
