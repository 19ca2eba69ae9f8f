"""Descriptions of a Triton's models: what clients see of them in GET /models, from their configurations."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.errors import GatewayError
from gateway.inference.backend import Call, ModelInfo
from gateway.ingest.resizing import sizes
from gateway.timing import Deadline
from gateway.triton.client import ALL_CLASSES, METADATA_TIMEOUT_SECONDS, TritonEndpoint
from gateway.triton.codecs import Codecs
from gateway.triton.configs import image_tensor, network_runtime, network_step, parameters, rollout, steps
from gateway.triton.contract import (
    AFTER_PARAMETER,
    DECODE_PARAMETER,
    DESCRIPTION_PARAMETER,
    EXACT,
    MODEL_PARAMETER,
    PRECISION_PARAMETER,
    pinned_versions,
)
from gateway.triton.health.state import READY


async def describe(
    endpoint: TritonEndpoint,
    codecs: Codecs,
    labels_of: Callable[[str, str], Awaitable[tuple[str, ...]]],
    index: RepositoryIndexResponse,
    name: str,
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


def _input_of(network: ModelConfig) -> tuple[int | None, int | None, str | None]:
    """Height and width in pixels of a model's input, and its type; None for each if it is not an image."""
    image = next(iter(network.input), ModelInput())
    if len(image.dims) != 3:
        return None, None, None
    return int(image.dims[-2]), int(image.dims[-1]), image_tensor(image.data_type)
