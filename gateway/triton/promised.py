"""The versions to which a split sends requests: whether one Triton serves them."""

from collections.abc import Mapping

import structlog

from gateway.settings import variable
from gateway.triton.contract import pinned
from gateway.triton.descriptions import READY
from gateway.triton.endpoint import Endpoint

log = structlog.get_logger("gateway")


class Promised:
    """What a Triton lacks of the versions that `split` names, as models and their versions' shares.

    That is no reason to refuse traffic: the other shares are answered, and every gateway would refuse at once.
    """

    def __init__(self, split: Mapping[str, Mapping[str, int]]) -> None:
        self._versions = [(name, version) for name, versions in split.items() for version in versions]
        self.warnings: tuple[str, ...] = ()
        """A sentence for each that is lacking, with what to do."""

    async def look(self, endpoint: Endpoint) -> None:
        """See what is there, and log what has been lacking since; raises GatewayError."""
        if not self._versions:
            return
        ready = {(model.name, model.version) for model in (await endpoint.index()).models if model.state == READY}
        names = {name for name, _ in ready}
        warnings = tuple(
            _warning(name, version)
            for name, version in self._versions
            if (name, version) not in ready and pinned(name, version) not in names
        )
        for warning in warnings:
            if warning not in self.warnings:
                log.warning("contract", triton=endpoint.address, problem=warning)
        self.warnings = warnings


def _warning(name: str, version: str) -> str:
    return (
        f"{name} has no version {version} that is ready, so its share of the requests is answered with 503: add it "
        f"with gateway model add … --version {version} --url …, load it with POST /models/{name}/load, or correct "
        f"{variable('model_split')}"
    )
