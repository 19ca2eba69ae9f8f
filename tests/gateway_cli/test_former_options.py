"""Options that have another name now work until the next release, with a warning."""

import typer
from typer.testing import CliRunner

from gateway_cli.former_options import formerly
from gateway_cli.main import app as gateway

app = typer.Typer()


@app.command()
@formerly("--features", "embeddings", "--embeddings", str)
def show(*, embeddings: str = "") -> None:
    typer.echo(f"embeddings={embeddings}")


def test_former_name_sets_the_option_and_warns():
    result = CliRunner().invoke(app, ["--features", "auto"])
    assert result.stdout == "embeddings=auto\n"
    assert "--features is now --embeddings; the old name works" in " ".join(result.stderr.split())


def test_new_name_does_not_warn():
    result = CliRunner().invoke(app, ["--embeddings", "auto"])
    assert (result.stdout, result.stderr) == ("embeddings=auto\n", "")


def test_former_names_are_not_in_the_help():
    for command in (["classify"], ["model", "add"]):
        text = CliRunner().invoke(gateway, [*command, "--help"]).stdout
        assert "--embeddings" in text
        assert "--features" not in text
