"""Every error of Triton or gRPC is translated."""

import grpc
import pytest
from tritonclient.utils import InferenceServerException

from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    TritonUnreachable,
)
from gateway.triton.error_table import BY_STATUS, StubDied, translate


@pytest.mark.parametrize("status", grpc.StatusCode)
def test_status_without_known_text_is_translated(status):
    error = translate(InferenceServerException("words never heard", status=str(status)))
    assert type(error) is BY_STATUS.get(status, InferenceFailed)


@pytest.mark.parametrize(
    ("status", "words", "meaning"),
    [
        ("StatusCode.UNAVAILABLE", "failed to connect to all addresses", TritonUnreachable),
        ("StatusCode.UNAVAILABLE", "Exceeds maximum queue size", Overloaded),
        ("StatusCode.UNAVAILABLE", "Request timeout expired", DeadlineExceeded),
        ("StatusCode.NOT_FOUND", "Request for unknown model: 'x' is not found", ModelNotFound),
        ("StatusCode.NOT_FOUND", "Request for unknown model: 'x' has no available versions", ModelUnavailable),
        ("StatusCode.INTERNAL", "Stub process 'a_b_0_1' is not healthy.", StubDied),
    ],
)
def test_known_text_takes_precedence_over_the_status(status: str, words: str, meaning: type[GatewayError]):
    assert type(translate(InferenceServerException(words, status=status))) is meaning


def test_error_of_an_unloaded_model_names_where_the_reason_is():
    error = translate(InferenceServerException("Request for unknown model: 'm' is not ready"))
    assert error.message == "The model is not loaded, or not yet; GET /models says why."


def test_dead_process_error_names_its_model():
    words = "in ensemble 'ensemble_model', Stub process 'my_model_2_0_1' is not healthy."
    error = translate(InferenceServerException(words, status="StatusCode.INTERNAL"))
    assert isinstance(error, StubDied)
    assert error.step == "my_model_2"
    assert error.code == "model_unavailable"


def test_public_message_contains_no_text_of_triton():
    error = translate(InferenceServerException("/srv/secret/path broke", status="StatusCode.INTERNAL"))
    assert "secret" not in error.message
