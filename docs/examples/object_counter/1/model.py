"""Counts how often each class has appeared over the frames of a stream."""

import ctypes
import json

import numpy as np
import triton_python_backend_utils as pb_utils

USED_CAPSULE = b"used_dltensor"


class TritonPythonModel:
    """PREDICTION fp32 [1, classes] of a frame → SEQUENCE_PREDICTION fp32 [1, classes], how often each has appeared."""

    def initialize(self, args):
        """Start without sequences."""
        config = json.loads(args["model_config"])
        self.threshold = float(config["parameters"]["threshold"]["string_value"])
        self.sequences = {}

    def execute(self, requests):
        """Count each frame; the last request of a sequence (END) has no frame, and its response is not read."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Process one frame of one sequence."""
        read = {name: tensor(request, name) for name in ("PREDICTION", "START", "END", "CORRID")}
        sequence, in_view = int(read["CORRID"][0]), read["PREDICTION"] >= self.threshold
        if read["START"][0]:
            nothing = np.zeros(len(in_view), bool)
            self.sequences[sequence] = {"frames": 0, "in_view": nothing, "counts": np.zeros(len(in_view), np.float32)}
        if sequence not in self.sequences:
            message = f"sequence {sequence} must specify the START flag: it has no state here"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))
        state = self.sequences[sequence]
        if read["END"][0]:
            del self.sequences[sequence]
        else:
            state["frames"] += 1
            state["counts"] += in_view & ~state["in_view"]
            state["in_view"] = in_view
        counts, frames = state["counts"], np.int32(state["frames"])
        return pb_utils.InferenceResponse(
            [output("SEQUENCE_PREDICTION", counts.reshape(1, -1)), output("SEQUENCE_FRAMES", frames.reshape(1, 1))]
        )


def tensor(request, name):
    """Return an input as a flat array; via DLPack, since Triton 2.51 was built for an older numpy."""
    return np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name)).reshape(-1)


def output(name, array):
    """Create an output tensor; the capsule gets the name that numpy's destructor expects."""
    capsule = np.array(array).__dlpack__()
    made = pb_utils.Tensor.from_dlpack(name, capsule)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), ctypes.c_char_p(USED_CAPSULE))
    return made
