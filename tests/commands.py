"""Commands of the command line, run in this process."""

from typer.testing import CliRunner, Result

from gateway.command_line.main import app


def gateway(*words: object, code: int | None = 0, **variables: str) -> Result:
    """Run `gateway WORDS` with environment variables; it must exit with `code`, which is 1 for an error."""
    done = CliRunner().invoke(app, [str(word) for word in words], env=variables)
    assert code is None or done.exit_code == code, (done.output, done.exception)
    return done


def refusal(*words: object, kind: type[Exception] = Exception) -> str:
    """The message of the error of `gateway WORDS`, which must be of a kind."""
    error = gateway(*words, code=1).exception
    assert isinstance(error, kind), error
    return str(error)


def usage_error(*words: object) -> str:
    """What `gateway WORDS` prints about wrong options, in one line."""
    return " ".join(gateway(*words, code=2).output.replace("│", " ").split())
