"""The stateful model on the real Triton: its average, sequences apart from each other, and their places."""

import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from gateway.triton.contract import PREDICTION, SEQUENCE_FRAMES, SEQUENCE_MODEL, SEQUENCE_PREDICTION
from gateway_local.paths import SHIPPED_MODELS
from tests.processes import PROJECT, wait_for
from tests.tritons import running_triton

IDLE_SECONDS = 2
COUNTER = "object_counter"
NOISE = np.random.default_rng(0).random((40, 7), np.float32)


@pytest.fixture(scope="module")
def client(runtime, tmp_path_factory) -> Iterator[InferenceServerClient]:
    """A Triton with the stateful model alone, in which two sequences have a place."""
    repository = tmp_path_factory.mktemp("models")
    shutil.copytree(SHIPPED_MODELS / SEQUENCE_MODEL, repository / SEQUENCE_MODEL)
    shutil.copytree(PROJECT / "docs" / "examples" / COUNTER, repository / COUNTER)
    path = repository / SEQUENCE_MODEL / "config.pbtxt"
    text = path.read_text().replace("max_candidate_sequences: 1024", "max_candidate_sequences: 2")
    idle = f"idle_microseconds: {IDLE_SECONDS}000000"
    path.write_text(text.replace("idle_microseconds: 60000000", idle))
    lines: list[str] = []
    serving = running_triton(runtime, repository, on_log=lines.append)
    with serving as server, InferenceServerClient(server.url) as client:
        yield client
    # What numpy's destructors complain of would fill the log.
    assert not [line for line in lines if "PyCapsule" in line or "Traceback" in line]


def ask(client, scores, sequence: int, *, start=False, end=False, model=SEQUENCE_MODEL, **parameters):
    scores = np.asarray(scores, np.float32).reshape(1, -1)
    given = InferInput(PREDICTION, list(scores.shape), "FP32").set_data_from_numpy(scores)
    answer = client.infer(
        model,
        [given],
        sequence_id=sequence,
        sequence_start=start,
        sequence_end=end,
        parameters=parameters,
        client_timeout=60,
    )
    return answer.as_numpy(SEQUENCE_PREDICTION)[0], int(answer.as_numpy(SEQUENCE_FRAMES)[0, 0])


def play(client, frames, sequence: int, **parameters) -> np.ndarray:
    """The answers to all frames of a sequence from its beginning to its end."""
    results = [ask(client, each, sequence, start=number == 0, **parameters)[0] for number, each in enumerate(frames)]
    ask(client, np.zeros_like(frames[0]), sequence, end=True)
    return np.array(results)


def test_exponential_smoothing_is_a_moving_average(client):
    expected = [NOISE[0]]
    for frame in NOISE[1:]:
        expected.append(0.25 * frame + 0.75 * expected[-1])
    results = play(client, NOISE, 1, alpha=0.25)
    assert results == pytest.approx(np.array(expected), abs=1e-6)


def test_interleaved_sequences_have_separate_states(client):
    others = NOISE[::-1, :5].copy()  # and another number of classes
    alone = play(client, NOISE, 1), play(client, others, 2)
    results: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for number, pair in enumerate(zip(NOISE, others, strict=True)):
        for which, frame in enumerate(pair):
            scores, frames = ask(client, frame, which + 1, start=number == 0)
            assert frames == number + 1
            results[which].append(scores)
    for which in (1, 2):
        ask(client, np.zeros(1), which, end=True)
    assert np.array_equal(results[0], alone[0])
    assert np.array_equal(results[1], alone[1])


@pytest.mark.parametrize(
    ("classes", "parameters", "words"),
    [
        (7, {"alpha": 0}, "alpha must be above 0"),
        (3, {}, "a frame of 3 classes in a sequence of 7"),
    ],
)
def test_invalid_frame_is_refused_and_the_sequence_continues(client, classes, parameters, words):
    ask(client, NOISE[0], 1, start=True)
    with pytest.raises(InferenceServerException, match=words):
        ask(client, NOISE[1, :classes], 1, **parameters)
    assert ask(client, NOISE[1], 1)[1] == 2
    ask(client, NOISE[0], 1, end=True)


def test_ended_or_unstarted_sequence_is_unknown(client):
    play(client, NOISE[:2], 1)
    for sequence in (1, 99):
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            ask(client, NOISE[0], sequence)


def test_example_sequence_model_counts_objects(client):
    frames = [[0.9, 0.1], [0.9, 0.6], [0.1, 0.6], [0.8, 0.6], [0.1, 0.1], [0.1, 0.7]]
    results = [ask(client, each, 5, start=number == 0, model=COUNTER) for number, each in enumerate(frames)]
    assert [scores.tolist() for scores, _ in results] == [[1, 0], [1, 1], [1, 1], [2, 1], [2, 1], [2, 2]]
    assert [count for _, count in results] == [1, 2, 3, 4, 5, 6]
    ask(client, [0, 0], 5, end=True, model=COUNTER)


def test_idle_sequence_gives_its_slot_to_a_waiting_one(client):
    for sequence in (1, 2):
        ask(client, NOISE[0], sequence, start=True)
    # Both slots are taken and no sequence is ended, as after a gateway was killed.
    assert ask(client, NOISE[0], 3, start=True)[1] == 1

    def forgotten() -> bool:
        try:
            ask(client, NOISE[0], 3, end=True)
        except InferenceServerException:
            return True
        return False

    wait_for(forgotten)
