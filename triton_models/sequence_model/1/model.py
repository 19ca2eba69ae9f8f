"""Smooths the scores of a stream of frames: combines each frame's scores with the previous frames' scores.

Triton's sequence batcher sends each frame with the id of its sequence, and flags for its start and end. The answer is
the exponential moving average; the request's parameter `alpha`, above 0 up to 1, is the weight of the newest frame.

The last request of a sequence (END) has no frame: it releases the state, and its response is not read. torch is not
imported, so that the process starts quickly and takes little memory.
"""

import ctypes
import json
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

Scores = NDArray[np.float32]

ALPHA = 0.3
"""The weight of the newest frame in a request without `alpha`."""
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
    """fp32 [classes]."""

    def add(self, scores: Scores, alpha: float) -> Scores:
        """Add a frame's scores, fp32 [classes]; returns the smoothed scores, of the same shape."""
        if len(scores) != self.classes:
            raise ValueError(f"a frame of {len(scores)} classes in a sequence of {self.classes}")
        self.frames += 1
        self.used_at = time.monotonic()
        # A copy: Triton reuses the frame's memory after the response.
        self.average = (
            scores.copy() if self.average is None else self.average + np.float32(alpha) * (scores - self.average)
        )
        return self.average


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
                smoothed = state.add(scores, alpha_of(request.parameters()))
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


def alpha_of(parameters: str) -> float:
    """The parameter `alpha` of a request; raises ValueError if it is not allowed."""
    alpha = float(json.loads(parameters or "{}").get("alpha", ALPHA))
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be above 0 and at most 1, not {alpha:g}")
    return alpha
