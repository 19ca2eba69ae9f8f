"""What a model sees over a stream of frames: the scores of one frame, steadied by those before it.

Triton's sequence batcher sends each frame with its sequence's id, and says which one is the first and the last. How the
scores are steadied is asked for with each frame, by request parameters:

    smoothing     exponential (the default), majority, hysteresis or none
    alpha         exponential: the weight of the newest frame, above 0 up to 1
    window        majority: how many frames have a vote
    enter, leave  hysteresis: a class is told from a score of `enter` on, until it falls below `leave`

The last request of a sequence (END) brings no frame: it says that the state can go, and its answer is not read. No
torch here: the process starts in a moment and takes little memory.
"""

import ctypes
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

Scores = NDArray[np.float32]

DEFAULTS: dict[str, Any] = {"smoothing": "exponential", "alpha": 0.3, "window": 15, "enter": 0.6, "leave": 0.4}
MAX_WINDOW = 10_000
USED_CAPSULE = b"used_dltensor"
"""DLPack's name of a capsule whose tensor was taken over. Triton gives it another one, which numpy's destructor of the
capsule complains of."""
KEPT_SECONDS = 600.0
"""A state that no frame has come for is dropped after this time: Triton tells nobody that it gave a sequence up."""


@dataclass
class State:
    """What is kept of one sequence of frames with so many classes."""

    classes: int
    frames: int = 0
    used_at: float = field(default_factory=time.monotonic)
    average: Scores | None = None
    """Exponential: fp32 [classes]."""
    best: deque[int] = field(default_factory=deque)
    """Majority: each frame's best class, the newest last."""
    votes: dict[int, int] = field(default_factory=dict)
    """Majority: how often each class is in `best`."""
    told: NDArray[np.bool_] | None = None
    """Hysteresis: bool [classes], the classes that are told now."""

    def add(self, scores: Scores, wanted: dict[str, Any]) -> Scores:
        """Take in a frame's scores, fp32 [classes]; returns the sequence's, of the same shape.

        Every way of smoothing is kept up, so that a change of mind in the midst of a sequence takes effect at once.
        """
        if len(scores) != self.classes:
            raise ValueError(f"a frame of {len(scores)} classes in a sequence of {self.classes}")
        self.frames += 1
        self.used_at = time.monotonic()
        alpha = wanted["alpha"]
        # A copy: Triton has the frame's memory back when it is answered.
        self.average = (
            scores.copy() if self.average is None else self.average + np.float32(alpha) * (scores - self.average)
        )
        self._vote(int(scores.argmax()), wanted["window"])
        told = scores >= wanted["enter"]
        if self.told is not None:
            told |= self.told & (scores >= wanted["leave"])
        self.told = told
        if wanted["smoothing"] == "exponential":
            return self.average
        if wanted["smoothing"] == "majority":
            shares = np.zeros(self.classes, np.float32)
            for class_id, votes in self.votes.items():
                shares[class_id] = votes / len(self.best)
            return shares
        if wanted["smoothing"] == "hysteresis":
            return np.where(self.told, scores, np.float32(0))
        return scores

    def _vote(self, class_id: int, window: int) -> None:
        self.best.append(class_id)
        self.votes[class_id] = self.votes.get(class_id, 0) + 1
        while len(self.best) > window:
            oldest = self.best.popleft()
            self.votes[oldest] -= 1
            if not self.votes[oldest]:
                del self.votes[oldest]


class TritonPythonModel:
    """PREDICTION fp32 [1, classes] of a frame → SEQUENCE_PREDICTION fp32 [1, classes], SEQUENCE_FRAMES int32 [1, 1]."""

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002  # Triton's signature
        """Begin without any sequence."""
        self.states: dict[int, State] = {}
        self.swept_at = time.monotonic()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request on its own: an exception from here would fail all that were batched with it."""
        self._sweep()
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:  # noqa: ANN401  # Triton's
        sequence, scores = value(request, "CORRID"), tensor(request, "PREDICTION").reshape(-1)
        if value(request, "START"):
            self.states[sequence] = State(len(scores))
        try:
            state = self.states[sequence]
            if value(request, "END"):
                del self.states[sequence]
                steadied = np.zeros_like(scores)
            else:
                steadied = state.add(scores, parameters(request.parameters()))
        except KeyError:
            return refusal(f"sequence {sequence} must specify the START flag: it has no state here")
        except (TypeError, ValueError) as exc:
            return refusal(str(exc))
        return pb_utils.InferenceResponse(
            [
                output("SEQUENCE_PREDICTION", steadied.reshape(1, -1)),
                output("SEQUENCE_FRAMES", np.array([[state.frames]], np.int32)),
            ]
        )

    def _sweep(self) -> None:
        """Forget sequences that Triton has given up."""
        now = time.monotonic()
        if now - self.swept_at > KEPT_SECONDS / 10:
            self.swept_at = now
            self.states = {name: state for name, state in self.states.items() if now - state.used_at < KEPT_SECONDS}


def tensor(request: Any, name: str) -> NDArray[Any]:  # noqa: ANN401  # Triton's
    """An input as an array."""
    return np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name))


def output(name: str, array: NDArray[Any]) -> Any:  # noqa: ANN401  # Triton's
    """An output tensor. By DLPack, since the numpy that Triton 2.51 was built for is not the one that is installed."""
    capsule = np.array(array).__dlpack__()
    made = pb_utils.Tensor.from_dlpack(name, capsule)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), ctypes.c_char_p(USED_CAPSULE))
    return made


def refusal(message: str) -> Any:  # noqa: ANN401  # Triton's
    """The answer to one request that cannot be served."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))


def value(request: Any, name: str) -> int:  # noqa: ANN401  # Triton's
    """The one number of a control input."""
    return int(tensor(request, name).reshape(-1)[0])


def parameters(text: str) -> dict[str, Any]:
    """What the request asks for, over the defaults; raises ValueError where it is not allowed."""
    given = {name: value for name, value in json.loads(text or "{}").items() if name in DEFAULTS}
    wanted = {**DEFAULTS, **given}
    if wanted["smoothing"] not in ("exponential", "majority", "hysteresis", "none"):
        raise ValueError(f"smoothing {wanted['smoothing']!r} is none of exponential, majority, hysteresis and none")
    wanted["alpha"], wanted["enter"], wanted["leave"] = (float(wanted[name]) for name in ("alpha", "enter", "leave"))
    wanted["window"] = int(wanted["window"])
    if not 0 < wanted["alpha"] <= 1:
        raise ValueError(f"alpha must be above 0 and at most 1, not {wanted['alpha']:g}")
    if not 1 <= wanted["window"] <= MAX_WINDOW:
        raise ValueError(f"window must be from 1 to {MAX_WINDOW}, not {wanted['window']}")
    if not 0 <= wanted["leave"] <= wanted["enter"]:
        raise ValueError("leave must be from 0 to enter")
    return wanted
