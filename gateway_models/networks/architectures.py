"""Finds the architecture of torchvision or timm that a state dict fits, by its names and shapes."""

import difflib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gateway_models.networks.hub import TIMM, HubError, import_timm

SEARCH_SECONDS = 30.0
"""The processor time for which architectures are tried."""
REPORT_SECONDS = 5.0
"""Processor time between two lines of progress."""
HEAD_TENSORS = 8
"""The most tensors of last layers, which depend on the number of classes; some networks have several."""
AUXILIARY = ("aux", "AuxLogits")
"""Names of the heads that only training needs."""

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Fit:
    """An architecture as the source of a model, and the number of classes in its last layer; 0 if it is not known."""

    source: str
    classes: int


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The names and shapes of weights."""
    return {name: tuple(value.shape) for name, value in state.items()}


def fitting(state: Shapes, asked: str, report: Callable[[str], None]) -> Fit | None:
    """The architecture that weights fit, up to the number of classes; None if none was found in time.

    `asked` is the source that they do not fit, such as timm:resnet50: its library and names like it are tried first.
    `report` gets lines of progress.
    """
    library, _, name = asked.rpartition(":")
    searches = (_timm, _torchvision) if f"{library}:" == TIMM else (_torchvision, _timm)
    began = reported = time.process_time()
    tried = 0
    for search in searches:
        for source, candidate in search(state, name):
            if (classes := _classes(state, candidate)) is not None:
                return Fit(source, classes)
            tried += 1
            now = time.process_time()
            if now > began + SEARCH_SECONDS:
                return None
            if now > reported + REPORT_SECONDS:
                reported = now
                report(f"{tried} architectures tried in {now - began:.0f} s of {SEARCH_SECONDS:.0f}, the last {source}")
    return None


def _classes(state: Shapes, candidate: Shapes) -> int | None:
    """The number of classes in weights that fit a candidate, 0 if that cannot be said; None if they do not fit."""
    names, own = (
        {name for name in shapes if not name.startswith(AUXILIARY) and not name.endswith("num_batches_tracked")}
        for shapes in (state, candidate)
    )
    if names != own:
        return None
    other = [name for name in names if tuple(state[name]) != tuple(candidate[name])]
    if len(other) > HEAD_TENSORS or any(list(state[name][1:]) != list(candidate[name][1:]) for name in other):
        return None
    counts = {state[name][0] for name in other if state[name]}
    return counts.pop() if len(counts) == 1 else 0


def _torchvision(_: Shapes, asked: str) -> Iterator[tuple[str, Shapes]]:
    from torchvision import models

    for name in _nearest(asked, models.list_models(module=models)):
        if shapes := _built(models.get_model, name, weights=None, num_classes=1):
            yield f"torchvision:{name}", shapes


def _timm(state: Shapes, asked: str) -> Iterator[tuple[str, Shapes]]:
    try:
        timm = import_timm()
    except HubError:
        return
    logging.getLogger("timm").setLevel(logging.ERROR)
    families = {module: names for module in timm.list_modules() if (names := timm.list_models(module=module))}
    own = [module for module, names in families.items() if asked.partition(".")[0] in names]
    for module in dict.fromkeys([*own, *families]):
        # One architecture shows whether its family has most names of the weights, and the others are worth trying.
        first, *others = _nearest(asked, families[module])
        shapes = _built(timm.create_model, first, pretrained=False, num_classes=1)
        yield f"{TIMM}{first}", shapes
        if len(state.keys() & shapes.keys()) > len(state) / 2:
            for name in others:
                yield f"{TIMM}{name}", _built(timm.create_model, name, pretrained=False, num_classes=1)


def _nearest(asked: str, names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: -difflib.SequenceMatcher(None, asked, name).ratio())


class _WithoutMemory(TorchFunctionMode):
    """Creates parameters, by torch.empty, without their memory; other tensors are computed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        options = {**(kwargs or {}), **({"device": "meta"} if func is torch.empty else {})}
        return func(*args, **options)


def _built(build: Callable[..., nn.Module], name: str, **options: Any) -> dict[str, tuple[int, ...]]:  # noqa: ANN401
    """The shapes of a new network; {} if it cannot be built so."""
    try:
        with _WithoutMemory():
            return shapes_of(build(name, **options).state_dict())
    except Exception:  # constructors may raise anything
        return {}
