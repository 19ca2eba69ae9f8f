"""Smooths the scores of a stream of frames: combines each frame's scores with the previous frames' scores.

Triton's sequence batcher sends each frame with the id of its sequence, and flags for its start and end. Each frame has
request parameters that select the smoothing:

    smoothing     exponential (the default), majority, hysteresis or none
    alpha         exponential: the weight of the newest frame, above 0 up to 1
    window        majority: how many recent frames vote
    enter, leave  hysteresis: a class is reported once its score reaches `enter`, until it falls below `leave`

The last request of a sequence (END) has no frame: it releases the state, and its response is not read. torch is not
imported, so that the process starts quickly and takes little memory.
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
"""DLPack's name of a capsule whose tensor was taken over. Triton gives it another name, about which numpy's destructor
of the capsule would print an error."""
KEPT_SECONDS = 600.0
"""A state is dropped after this time without a frame: Triton does not notify models of sequences that timed out."""


@dataclass
class State:
    """The state of one sequence of frames whose model has `classes` classes."""

    classes: int
    frames: int = 0
    used_at: float = field(default_factory=time.monotonic)
    average: Scores | None = None
    """Exponential: fp32 [classes]."""
    best: deque[int] = field(default_factory=deque)
    """Majority: each frame's best class, the newest last."""
    votes: dict[int, int] = field(default_factory=dict)
    """Majority: how often each class is in `best`."""
    reported: NDArray[np.bool_] | None = None
    """Hysteresis: bool [classes], the classes reported now."""

    def add(self, scores: Scores, options: dict[str, Any]) -> Scores:
        """Add a frame's scores, fp32 [classes]; returns the smoothed scores, of the same shape.

        The state of every method is updated, so that `smoothing` can change in the middle of a sequence.
        """
        if len(scores) != self.classes:
            raise ValueError(f"a frame of {len(scores)} classes in a sequence of {self.classes}")
        self.frames += 1
        self.used_at = time.monotonic()
        alpha = options["alpha"]
        # A copy: Triton reuses the frame's memory after the response.
        self.average = (
            scores.copy() if self.average is None else self.average + np.float32(alpha) * (scores - self.average)
        )
        self._vote(int(scores.argmax()), options["window"])
        reported = scores >= options["enter"]
        if self.reported is not None:
            reported |= self.reported & (scores >= options["leave"])
        self.reported = reported
        if options["smoothing"] == "exponential":
            return self.average
        if options["smoothing"] == "majority":
            shares = np.zeros(self.classes, np.float32)
            for class_id, votes in self.votes.items():
                shares[class_id] = votes / len(self.best)
            return shares
        if options["smoothing"] == "hysteresis":
            return np.where(self.reported, scores, np.float32(0))
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
        """Start without sequences."""
        self.states: dict[int, State] = {}
        self.swept_at = time.monotonic()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request separately: an exception from here would fail the whole batch of requests."""
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
                smoothed = np.zeros_like(scores)
            else:
                smoothed = state.add(scores, parameters(request.parameters()))
        except KeyError:
            return refusal(f"sequence {sequence} must specify the START flag: it has no state here")
        except (TypeError, ValueError) as exc:
            return refusal(str(exc))
        return pb_utils.InferenceResponse(
            [
                output("SEQUENCE_PREDICTION", smoothed.reshape(1, -1)),
                output("SEQUENCE_FRAMES", np.array([[state.frames]], np.int32)),
            ]
        )

    def _sweep(self) -> None:
        """Drop the states of sequences that Triton has timed out."""
        now = time.monotonic()
        if now - self.swept_at > KEPT_SECONDS / 10:
            self.swept_at = now
            self.states = {name: state for name, state in self.states.items() if now - state.used_at < KEPT_SECONDS}


def tensor(request: Any, name: str) -> NDArray[Any]:  # noqa: ANN401  # Triton's
    """An input as an array."""
    return np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name))


def output(name: str, array: NDArray[Any]) -> Any:  # noqa: ANN401  # Triton's
    """An output tensor, by DLPack, since Triton 2.51's own conversion from numpy is built against numpy 1."""
    capsule = np.array(array).__dlpack__()
    made = pb_utils.Tensor.from_dlpack(name, capsule)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), ctypes.c_char_p(USED_CAPSULE))
    return made


def refusal(message: str) -> Any:  # noqa: ANN401  # Triton's
    """The error response to one request."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))


def value(request: Any, name: str) -> int:  # noqa: ANN401  # Triton's
    """The value of a control input with one element."""
    return int(tensor(request, name).reshape(-1)[0])


def parameters(text: str) -> dict[str, Any]:
    """The request's parameters merged with the defaults; raises ValueError if one is not allowed."""
    given = {name: value for name, value in json.loads(text or "{}").items() if name in DEFAULTS}
    options = {**DEFAULTS, **given}
    if options["smoothing"] not in ("exponential", "majority", "hysteresis", "none"):
        raise ValueError(f"smoothing {options['smoothing']!r} is none of exponential, majority, hysteresis and none")
    options["alpha"], options["enter"], options["leave"] = (
        float(options[name]) for name in ("alpha", "enter", "leave")
    )
    options["window"] = int(options["window"])
    if not 0 < options["alpha"] <= 1:
        raise ValueError(f"alpha must be above 0 and at most 1, not {options['alpha']:g}")
    if not 1 <= options["window"] <= MAX_WINDOW:
        raise ValueError(f"window must be from 1 to {MAX_WINDOW}, not {options['window']}")
    if not 0 <= options["leave"] <= options["enter"]:
        raise ValueError("leave must be from 0 to enter")
    return options
