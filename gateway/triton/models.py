"""The models of one Triton by the names and versions that clients use, each an ensemble that keeps the contract."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse
from tritonclient.utils import InferenceServerException

from gateway.errors import ContractBroken, GatewayError, LoadFailed, ModelNotFound, ModelUnavailable
from gateway.inference.backend import Call, ModelInfo
from gateway.ingest.resizing import Resize, resize_of, sizes
from gateway.timing import Deadline
from gateway.triton.client import ALL_CLASSES, METADATA_TIMEOUT_SECONDS, NOT_LOADED, TritonEndpoint, pause_seconds
from gateway.triton.configs import image_tensor, network_runtime, network_step, parameters, rollout, steps
from gateway.triton.contract import (
    AFTER_PARAMETER,
    DECODE_PARAMETER,
    DESCRIPTION_PARAMETER,
    EXACT,
    FAST,
    MODEL_PARAMETER,
    PRECISION_PARAMETER,
    SEQUENCE_MODEL,
    SEQUENCE_PARAMETER,
    SEQUENCE_PREDICTION,
    pinned_versions,
)
from gateway.triton.health.state import READY, HealthState
from gateway.triton.model_calls import REMEMBERED_SECONDS, ModelCalls, Remembered
from gateway.triton.wire import Codecs


async def describe(
    endpoint: TritonEndpoint,
    name: str,
    index: RepositoryIndexResponse,
    codecs: Codecs,
    labels_of: Callable[[str, str], Awaitable[tuple[str, ...]]],
) -> ModelInfo | None:
    """A model of Triton's index; None if no version is ready, or if it is not an ensemble of the contract.

    `labels_of` gets the labels of an ensemble and a version.
    """
    versions = [model.version for model in index.models if model.name == name and model.state == READY]
    if not versions:
        return None
    config = await endpoint.config(name, versions[-1])
    values = parameters(config)
    if not codecs.takes_images(config) or values.get(MODEL_PARAMETER, name) != name:
        return None  # a version's own ensemble is listed with its model
    others = pinned_versions(name, (model.name for model in index.models if model.state == READY))
    names = steps(config)
    info = ModelInfo(
        name,
        versions=tuple(sorted({*versions, *others.values()}, key=int)),
        version=versions[-1],
        shares={versions[-1]: 100},
        ready=True,
        classes=0,
        precision=values.get(PRECISION_PARAMETER),
        decode=values.get(DECODE_PARAMETER, EXACT),
        steps=names,
        after=values.get(AFTER_PARAMETER),
        description=values.get(DESCRIPTION_PARAMETER),
    )
    with suppress(ValueError):  # which the health checker reports
        if (recorded := rollout(config)) is not None:
            by, since = recorded.by or None, recorded.since
            info = replace(info, shares=recorded.shares, shadow=recorded.shadow, since=since, by=by)
    try:
        codec = codecs.of(config)
        info = replace(info, classes=codec.classes, embedding_size=codec.embedding_size, multi_label=codec.multi_label)
        last = await endpoint.config(names[-1]) if names else config
        network_name = network_step(config)
        network = await endpoint.config(network_name) if network_name not in {"", *names[-1:]} else last
        info = replace(info, limitations=codec.limitations(last), runtime=network_runtime(network, values))
        preprocessing = parameters(await endpoint.config(names[0])) if names else {}
        labels = await labels_of(name, versions[-1])
    except GatewayError as error:
        # A failed model must not break the list or the descriptions of other models.
        return replace(info, ready=False, reason=error.message)
    height, width, tensor = _input_of(network)
    info = replace(
        info,
        input_height=height,
        input_width=width,
        tensor=tensor,
        resize_size=sizes(preprocessing.get("resize_size", "")),
        crop_size=sizes(preprocessing.get("crop_size", "")),
        labels=labels,
    )
    return codec.completed(info)


async def read_labels(endpoint: TritonEndpoint, codecs: Codecs, ensemble: str, version: str) -> tuple[str, ...]:
    """The labels of an ensemble's classes, by class id."""
    codec = codecs.of(await endpoint.config(ensemble, version))
    # Triton returns labels only with scores, so a probe image is classified with every class.
    call = Call([codec.probe()], ensemble, version, None, Deadline.after(METADATA_TIMEOUT_SECONDS), "labels")
    (row,) = await endpoint.infer(call, class_count=ALL_CLASSES, codec=codec)
    by_id = {prediction.class_id: prediction.label for prediction in row.predictions}
    return tuple(by_id[class_id] for class_id in sorted(by_id))


async def read_resize(endpoint: TritonEndpoint, ensemble: str, version: str) -> Resize | None:
    """How an ensemble's images are resized, by its preprocessor's parameters."""
    config = await endpoint.config(ensemble, version)
    names = steps(config)
    values = parameters(await endpoint.config(names[0])) if names else {}
    return resize_of(values, fast=parameters(config).get(DECODE_PARAMETER) == FAST)


def _input_of(network: ModelConfig) -> tuple[int | None, int | None, str | None]:
    """Height and width in pixels of a model's input, and its type; None for each if it is not an image."""
    image = next(iter(network.input), ModelInput())
    if len(image.dims) != 3:
        return None, None, None
    return int(image.dims[-2]), int(image.dims[-1]), image_tensor(image.data_type)


LABELS_REMEMBERED_SECONDS = 60.0
NOT_SERVED = "Triton has not loaded the model; GET /health/ready shows the reason to clients with a key."
T = TypeVar("T")


class Models(ModelCalls):
    """The models of one Triton: calls, descriptions, loading; every method raises errors of gateway.errors only."""

    def __init__(self, endpoint: TritonEndpoint, health: HealthState, codecs: Codecs | None = None) -> None:
        super().__init__(endpoint, health, codecs)
        self._resizes: Remembered[Resize | None] = Remembered(REMEMBERED_SECONDS)
        self._sequence_models: Remembered[str] = Remembered(REMEMBERED_SECONDS)
        self._labels: Remembered[tuple[str, ...]] = Remembered(LABELS_REMEMBERED_SECONDS)

    async def all(self, only: str | None = None) -> list[ModelInfo]:
        """Every model with a version that is ready, and those that should be, by name; or only one of them."""
        index = await self._endpoint.index()
        names = _names(index)
        wanted = [name for name in sorted(names) if only in {None, name}]
        found = await asyncio.gather(*(self._describe(name, index) for name in wanted))
        described = {info.name: info for info in found if info is not None}
        for name in self._health.lacking():
            if only in {None, name} and not any(name in pinned_versions(other, [name]) for other in names):
                described.setdefault(name, ModelInfo(name, (), ready=False, classes=0, reason=NOT_SERVED))
        return [described[name] for name in sorted(described)]

    async def one(self, name: str) -> ModelInfo | None:
        """One of `all`; None if there is no such model. Makes no calls for other models."""
        return next(iter(await self.all(name)), None)

    async def labels(self, model_name: str, model_version: str) -> tuple[str, ...]:
        """The labels of one version's classes, by class id; see Backend.labels."""
        return await self._first(model_name, model_version, self._ensemble_labels)

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        """How one version's images are resized, by its preprocessor's parameters; see Backend.resize."""
        read = partial(read_resize, self._endpoint)
        return await self._resizes.get(
            (model_name, model_version), lambda name, version: self._first(name, version, read)
        )

    async def sequence_model(self, model_name: str, model_version: str) -> str:
        """The stateful model for the streams of one version of a model; raises ModelNotFound if there is none."""
        return await self._sequence_models.get((model_name, model_version), self._read_sequence_model)

    async def sequence_model_name(self, model_name: str, model_version: str) -> str:
        """The name of the stateful model for the streams of a model, whether or not there is one."""
        config = await self._first(model_name, model_version, self._endpoint.config)
        return parameters(config).get(SEQUENCE_PARAMETER, SEQUENCE_MODEL)

    async def load_sequence_model(self, model_name: str, model_version: str) -> str:
        """Load the stateful model for the streams of a model; returns its name, "" if the repository has none."""
        name = await self.sequence_model_name(model_name, model_version)
        try:
            await self.load(name)
        except ModelNotFound:
            return ""
        return name

    async def _read_sequence_model(self, model_name: str, model_version: str) -> str:
        name = await self.sequence_model_name(model_name, model_version)
        try:
            given = {output.name for output in (await self._endpoint.config(name)).output}
        except ModelNotFound as exc:
            if self._health.lacks(name):
                raise ModelUnavailable(NOT_LOADED) from exc
            raise ModelNotFound(
                f"Triton has no stateful model {name!r} for the streams of {model_name!r}: add it to the model "
                f"repository, or request 'smoothing=none'."
            ) from exc
        if SEQUENCE_PREDICTION not in given:
            raise ContractBroken(f"The model {name!r} gives no {SEQUENCE_PREDICTION}, and so cannot follow a stream.")
        return name

    async def load(self, name: str) -> None:
        """Load a model with all its versions, or reload it if its files have changed.

        The old instances answer meanwhile. Raises ModelNotFound, or LoadFailed with Triton's reason.
        """
        index = await self._index_with(name)
        # The model last: its record may give requests to each of the versions.
        models = (*pinned_versions(name, _names(index)), name)
        self._health.expected.expect(models)
        try:
            # Triton loads the steps with the ensemble, including changed files.
            pause = 0.0
            for model in models:
                await asyncio.sleep(pause)
                began = time.monotonic()
                await self._endpoint.load(model)
                pause = pause_seconds(time.monotonic() - began)
        except GatewayError as exc:
            raise LoadFailed(f"Triton cannot load {name!r}: {_reason(exc)}") from exc
        self._forget(name)

    async def unload(self, name: str) -> set[str]:
        """Unload a model, its versions, and the steps that no other model needs; returns its ensembles.

        Requests in progress are finished first. Raises ModelNotFound, or LoadFailed with Triton's reason.
        """
        index = await self._index_with(name)
        own = {name, *pinned_versions(name, _names(index))}
        try:
            own_steps = steps(await self._endpoint.config(name))
            others = [model.name for model in index.models if model.state == READY and model.name not in own]
            needed = {step for other in others for step in steps(await self._endpoint.config(other))}
            for model in (*own, *(step for step in own_steps if step not in needed)):
                await self._endpoint.unload(model)
        except (ModelNotFound, ModelUnavailable):
            return own  # it is not loaded
        except GatewayError as exc:
            raise LoadFailed(f"Triton cannot unload {name!r}: {_reason(exc)}") from exc
        self._forget(name)
        return own

    async def _describe(self, name: str, index: RepositoryIndexResponse) -> ModelInfo | None:
        return await describe(self._endpoint, name, index, self._codecs, self._ensemble_labels)

    async def _ensemble_labels(self, ensemble: str, version: str) -> tuple[str, ...]:
        return await self._labels.get((ensemble, version), partial(read_labels, self._endpoint, self._codecs))

    async def _first(self, model_name: str, model_version: str, read: Callable[[str, str], Awaitable[T]]) -> T:
        """Call `read` for the first of these ensembles that exists; raises the last ModelNotFound."""
        missing: ModelNotFound | None = None
        for ensemble, version in self._ensembles(model_name, model_version):
            try:
                return await read(ensemble, version)
            except ModelNotFound as exc:
                missing = exc
        raise self._not_served(model_name, model_version, missing)

    async def _index_with(self, name: str) -> RepositoryIndexResponse:
        index = await self._endpoint.index()
        if name not in _names(index):
            raise ModelNotFound(f"There is no model {name!r} in Triton's repository.")
        return index

    def _forget(self, name: str) -> None:
        for remembered in (self._traits, self._resizes, self._sequence_models, self._labels):
            remembered.forget(name)
        for target in self._targets.values():
            if target.ensemble == name:
                target.until = 0.0


def _names(index: RepositoryIndexResponse) -> set[str]:
    return {model.name for model in index.models}


def _reason(error: GatewayError) -> str:
    """Triton's message, without the traceback of a Python model."""
    words = error.__cause__.message() if isinstance(error.__cause__, InferenceServerException) else error.message
    return words.partition("\n\nAt:")[0].strip()
