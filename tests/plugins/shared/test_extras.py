"""Messages name the command that installs an extra into this environment."""

from gateway_plugins.shared.extras import PROJECT, install


def test_extra_of_a_checkout():
    assert install("log", "s3") == f"pip install -c {PROJECT}/constraints.txt -e '{PROJECT}[log,s3]'"


def test_extra_of_an_installed_wheel(tmp_path):
    assert install("log", project=tmp_path) == "pip install 'triton-image-gateway[log]'"
