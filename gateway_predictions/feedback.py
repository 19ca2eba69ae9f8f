"""What clients know of images of earlier requests."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a client knows of one image of an earlier request."""

    request_id: str
    index: int
    """Position of the file in that request."""
    model_name: str
    label: str | None
    """The true label; None if the client knows only that the answer is wrong."""
    class_id: int | None
    """The class of the label."""
    key: str
    """The name of the client's API key; "" if no key is required."""
    withdrawn: bool = False
    """Whether it takes back the last feedback for the image."""
    drawn: bool = False
    """Whether the image was chosen at random to be labelled."""
