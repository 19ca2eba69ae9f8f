"""The response schemas of POST /explain, as the OpenAPI page shows them."""

from typing import Literal

from gateway.api.schemas import ModelOut, Schema


class ExplanationOut(Schema):
    """The heat map of one class."""

    filename: str
    width: int | None
    """Pixels across, upright."""
    height: int | None
    """Pixels down, upright."""
    label: str
    class_id: int
    score: float
    """The score of the class for the image itself."""
    masks: int
    """Masked copies that were classified."""
    values: list[list[float]]
    """The map by rows, from the top: the mean score of the class with a cell visible, less that with it hidden."""
    overlay: str
    """The map as a PNG in base64, with transparency and in the image's proportions, to lay over the image."""
    warning: Literal["damaged"] | None = None
    """Present only if the file is a damaged JPEG: some of the pixels that the model saw are wrong."""


class ExplainResponse(Schema):
    """Which parts of an image carry the score of a class."""

    model: ModelOut
    explanation: ExplanationOut
