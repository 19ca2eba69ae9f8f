from gateway.values.extras import PROJECT, install


def test_messages_name_the_command_that_installs_an_extra(tmp_path):
    """Into a checkout, and into an environment with the wheel."""
    assert install("log", "otel") == f"pip install -c {PROJECT}/constraints.txt -e '{PROJECT}[log,otel]'"
    assert install("log", project=tmp_path) == "pip install 'triton-image-gateway[log]'"
