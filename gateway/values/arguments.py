"""Calls of functions that name some of their arguments."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import TypeVar, cast

C = TypeVar("C", bound=Callable[..., object])


def adapt(function: C, model: C) -> C:
    """Wrap `function` to be called as `model` is, with all its positional arguments; it gets the ones that it names.

    So a function with fewer arguments still works when an argument is added. Raises TypeError for an argument that
    `model` does not have.
    """
    offered = [name for name in signature(model).parameters if name not in {"self", "cls"}]
    wanted = signature(function).parameters.values()
    if any(each.kind is Parameter.VAR_POSITIONAL for each in wanted) or [each.name for each in wanted] == offered:
        return function
    named = [each.name for each in wanted if each.name in offered]
    if lacking := [each.name for each in wanted if each.name not in offered and each.default is Parameter.empty]:
        name = f"{function.__module__}.{function.__qualname__}"
        raise TypeError(f"{name} has the argument {lacking[0]!r}, which is none of {', '.join(offered) or 'none'}")

    def call(*arguments: object) -> object:
        given = dict(zip(offered, arguments, strict=False))
        return function(**{name: given[name] for name in named})

    return cast("C", call)
