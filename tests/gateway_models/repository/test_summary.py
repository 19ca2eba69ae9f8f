"""What `gateway model add` prints at its end."""

from gateway_models.repository.summary import added
from tests.gateway_models.repository.entries import entry


def test_without_a_triton_the_service_is_to_be_started(tmp_path, capsys):
    added(entry(), tmp_path, 1, "http://127.0.0.1:8080")
    assert f"GATEWAY_MODEL=head gateway up --model-repository {tmp_path}" in capsys.readouterr().out


def test_a_running_triton_is_not_started_again(tmp_path, capsys):
    added(entry(), tmp_path, 1, "http://127.0.0.1:8080", "gpu:8001")
    printed = capsys.readouterr().out
    assert f"gateway model parity head --model-repository {tmp_path} --triton gpu:8001" in printed
    assert "/predict?model=head'   # with the address of the gateway of that Triton" in printed
    assert "gateway up" not in printed
