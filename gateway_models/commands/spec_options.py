"""The options of `gateway model add`, read from the fields of ModelSpec."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from gateway.triton.contract import ENSEMBLE_MODEL
from gateway_models.networks.functions import is_function
from gateway_models.repository.option import Option
from gateway_models.repository.preprocessing import Preprocessing
from gateway_models.repository.preprocessing_sources import from_file, from_options, processor_in
from gateway_models.repository.spec import DEFAULT, ModelSpec, Serving

_Declared = tuple[type, "Field[Any]", Option, inspect.Parameter]
SHOWN = ("source", "name", "labels", "weights", "like", "resize_size", "crop_size", "mean", "std", "trust", "version")
"""The options of a model that --help has; --help-all has all."""


def _show_all(context: typer.Context, *, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]  # of options and of typer's arguments
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", help="Show all options and exit.", is_eager=True, callback=_show_all)
]


def takes_spec(command: Callable[..., None], *, optional: bool = False) -> Callable[..., None]:
    """Decorate a command `(spec, …)`: its options are ModelSpec's, and the command's other parameters.

    With `optional`, the spec of a command without SOURCE is None.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    options = list(_options(ModelSpec, optional=optional))

    @wraps(command)
    def run(*, context: typer.Context, help_all: bool, **values: Any) -> None:  # noqa: ANN401, ARG001  # of the options
        found: dict[type, dict[str, Any]] = {ModelSpec: {}, Serving: {}, Preprocessing: {}}
        for owner, field, option, parameter in options:
            value = values.pop(parameter.name)
            required = parameter.default is inspect.Parameter.empty
            if required or (value is not None and value is not False and value != parameter.default):
                found[owner][field.name] = option.read(value) if option.read else value
        given, named = found[ModelSpec], list(_named(options, context))
        if optional and "source" not in given:
            if named:
                raise typer.BadParameter(f"--{named[0].replace('_', '-')} describes a model: name its file as well")
            command(None, **values)
            return
        given.setdefault("name", name_of(given["source"]))
        command(_spec(given, found[Serving], found[Preprocessing], named), **values)

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    help_all = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
    parameters = [context, *(parameter for *_, parameter in options), *own, help_all]
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _named(options: Iterable[_Declared], context: typer.Context) -> Iterator[str]:
    """The fields whose options are on the command line, also with their defaults."""
    for _, field, _, parameter in options:
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":
            yield field.name


def name_of(source: str) -> str:
    """A model's name by its source: the last part of a path, without its suffix, or of huggingface:OWNER/NAME."""
    if source == DEFAULT:
        return ENSEMBLE_MODEL
    last = re.split(r"[/:]", re.sub(r"(\.py):\w+$", r"\1", source).rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(last).stem).strip("-_")[:64]


def _options(owner: type, *, optional: bool = False) -> Iterator[_Declared]:
    """The options of a data class and of the data classes in it, in the order of their fields."""
    hints = get_type_hints(owner, include_extras=True)
    for field in fields(owner):
        hint = hints[field.name]
        kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        for inner in (kind, *get_args(kind)):
            if is_dataclass(inner) and isinstance(inner, type):
                yield from _options(inner, optional=optional)
        for option in (each for each in metadata if isinstance(each, Option)):
            yield owner, field, option, _parameter(owner, field, kind, option, optional=optional)


def _parameter(
    owner: type,
    field: "Field[Any]",
    kind: Any,  # noqa: ANN401
    option: Option,
    *,
    optional: bool,
) -> inspect.Parameter:
    kind = option.type or kind
    required = owner is ModelSpec and field.name == "source" and not optional
    default = None if field.default is MISSING or option.type else field.default
    if kind is bool:
        default = False
    if default is None and not required:
        kind |= None
    flag = f"--{field.name.replace('_', '-')}" if option.flag is None else option.flag
    how: dict[str, Any] = {"help": option.help, "show_default": default is not False and default not in {None, ""}}
    if field.name not in SHOWN:
        how["hidden"] = True
    if Path in (kind, *get_args(kind)):
        how["dir_okay"] = False
    declared = typer.Argument(**how) if not flag else typer.Option(flag, rich_help_panel=option.panel, **how)
    return inspect.Parameter(
        flag.removeprefix("--").replace("-", "_") or field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[kind, declared],
    )


def _spec(given: dict[str, Any], serving: dict[str, Any], images: dict[str, Any], named: Iterable[str]) -> ModelSpec:
    pixels, source = given.get("pixels", False), given["source"]
    # A function gets pixels by default; the check on images shows whether that is right.
    implied = is_function(source) and "crop_size" in images and not {"mean", "std"} & images.keys() and not pixels
    file = given.pop("preprocessing", None)
    preprocessing = from_options(
        images,
        like=given.get("like"),
        file=file and from_file(file),
        pixels=pixels or implied,
        gray=given.get("grayscale", False),
    )
    return ModelSpec(
        **given,
        preprocessing=preprocessing,
        processor=processor_in(file) if file and not pixels else "",
        pixels_implied=implied,
        serving=Serving(**serving),
        named=tuple(named),
    )
