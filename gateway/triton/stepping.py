"""The gRPC messages of one step of a sequence."""

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import InferenceFailed
from gateway.inference.sequence import SequenceScores, SequenceStep
from gateway.triton.contract import PREDICTION, SEQUENCE_FRAMES, SEQUENCE_PREDICTION


def step_request(step: SequenceStep, timeout_seconds: float) -> pb.ModelInferRequest:
    """The request: PREDICTION fp32 [1, classes], Triton's sequence parameters, and the model's own."""
    request = pb.ModelInferRequest(model_name=step.model_name, id=step.request_id)
    for name, value in step.parameters.items():
        if isinstance(value, str):
            request.parameters[name].string_param = value
        elif isinstance(value, int):
            request.parameters[name].int64_param = value
        else:
            request.parameters[name].double_param = value
    request.parameters["sequence_id"].int64_param = step.sequence_id
    request.parameters["sequence_start"].bool_param = step.start
    request.parameters["sequence_end"].bool_param = step.end
    request.parameters["timeout"].int64_param = max(1, int(timeout_seconds * 1e6))  # microseconds, in Triton's queue
    request.inputs.add(name=PREDICTION, datatype="FP32", shape=[1, len(step.scores)])
    request.raw_input_contents.append(np.ascontiguousarray(step.scores, "<f4").tobytes())
    for name in (SEQUENCE_PREDICTION, SEQUENCE_FRAMES):
        request.outputs.add(name=name)
    return request


def read_step(response: pb.ModelInferResponse, step: SequenceStep) -> SequenceScores:
    """The answer: SEQUENCE_PREDICTION fp32 [1, classes], SEQUENCE_FRAMES int32 [1, 1]; raises InferenceFailed."""
    given = {
        output.name: np.frombuffer(raw, "<f4" if output.datatype == "FP32" else "<i4")
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        if output.datatype in {"FP32", "INT32"}
    }
    scores, frames = given.get(SEQUENCE_PREDICTION), given.get(SEQUENCE_FRAMES)
    if scores is None or frames is None or scores.size != step.scores.size or frames.size != 1:
        raise InferenceFailed from ValueError(
            f"{step.model_name!r} lacks {SEQUENCE_PREDICTION} or {SEQUENCE_FRAMES}, or has other shapes"
        )
    return SequenceScores(scores.astype(np.float32, copy=False), int(frames[0]))
