"""Options that have another name now: the former one works until the next release, with a warning."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from gateway_cli.terminal import print_status


def formerly(
    former: str,
    name: str,
    option: str,
    kind: type,
    callback: Callable[[typer.Context, Any], Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command whose parameter `name`, now given by `option`, had the option `former`.

    The former option, of a type `kind`, is hidden; `callback` checks its value, which is None if it is not given.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        key = f"former_{former.removeprefix('--').replace('-', '_')}"

        @wraps(command)
        def run(**values: Any) -> None:  # noqa: ANN401  # of the options
            given = values.pop(key, None)
            if given is not None:
                print_status(f"warning: {former} is now {option}; the old name works until the next release")
                values[name] = given
            command(**values)

        annotation = Annotated[kind | None, typer.Option(former, hidden=True, callback=callback)]  # type: ignore[valid-type]
        signature = inspect.signature(command, eval_str=True)
        parameter = inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
        run.__signature__ = signature.replace(parameters=[*parameters, parameter])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*parameters, parameter)}
        return run

    return decorate
