"""`gateway model explain`: which parts of an image carry the score of a class.

By masked copies, through a running service, for any model; or by gradients of the original network, in this process.
"""

import io
import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gateway.errors import UserError
from gateway_client.files import MAX_FILE_BYTES, read_file
from gateway_models.proof.explain_method import ExplainMethod
from gateway_models.proof.over_http import TIMEOUT_SECONDS, GatewayRefused
from gateway_models.proof.reference import shown
from gateway_models.repository.entry import Entry
from gateway_models.repository.preprocessing import Preprocessing, reference_transforms
from gateway_plugins.media.masking import OVERLAY_SIDE, RISE_MAP_SIDE

Advance = Callable[[int, int], None]
"""Called with the masked images that have a score, and the number of all."""


class UnknownClass(UserError):
    """The model does not have the class."""


class UnreadableImage(UserError):
    """The image cannot be read here, though the service may."""


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """The heat map of one class: `values` are fp32 [rows, columns] over the whole image, `overlay` is a PNG, RGBA."""

    model: str
    version: str
    label: str
    class_id: int
    score: float
    method: str
    values: NDArray[np.float32]
    overlay: bytes

    def as_json(self) -> str:
        """All but the overlay, as a JSON document."""
        fields = {name: getattr(self, name) for name in ("model", "version", "label", "class_id", "score", "method")}
        return json.dumps({**fields, "values": [[round(each, 6) for each in row] for row in self.values.tolist()]})

    def picture(self, path: Path) -> Image.Image:
        """The image of a file with the map over it; raises UnreadableImage."""
        upright = _upright(path).convert("RGBA")
        overlay = Image.open(io.BytesIO(self.overlay)).convert("RGBA")
        return Image.alpha_composite(upright, overlay.resize(upright.size)).convert("RGB")


def explain_by_masks(
    url: str, path: Path, parameters: Mapping[str, str | int], api_key: str | None, advance: Advance
) -> Explained:
    """Ask the gateway at `url` for an explanation; raises GatewayRefused with its reason."""
    address = f"{url.rstrip('/')}/explain"
    headers = {"Accept": "application/x-ndjson"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        files = {"files": (path.name, read_file(path, MAX_FILE_BYTES))}
    except OSError as exc:
        raise UnreadableImage(f"{path} cannot be read: {exc.strerror or exc}") from exc
    try:
        with httpx.stream(
            "POST", address, params=dict(parameters), files=files, headers=headers, timeout=TIMEOUT_SECONDS
        ) as response:
            if not response.is_success:
                response.read()
                raise GatewayRefused(f"{address}: {response.json()['detail']}")
            for line in response.iter_lines():
                document: dict[str, Any] = json.loads(line)
                if "progress" in document:
                    advance(document["progress"]["done"], document["progress"]["total"])
                elif "error" in document:
                    raise GatewayRefused(f"{address}: {document['error']['detail']}")
                else:
                    return _received(document)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise GatewayRefused(f"{address} does not answer: {exc}") from exc
    except (ValueError, LookupError, TypeError) as exc:
        raise GatewayRefused(f"the answer of {address} does not come from a gateway") from exc
    raise GatewayRefused(f"the answer of {address} ended before its result")


def _received(document: Mapping[str, Any]) -> Explained:
    model, found = document["model"], document["explanation"]
    return Explained(
        model["name"],
        model["version"] or "",
        found["label"],
        found["class_id"],
        found["score"],
        found["method"],
        np.array(found["values"], np.float32),
        b64decode(found["overlay"]),
    )


def explain_by_gradients(
    entry: Entry, number: int, path: Path, method: ExplainMethod, labels: Sequence[str], wanted: str | int | None
) -> Explained:
    """Explain by the original network of a version; `wanted` is a label or a class, None for the likeliest one.

    Raises UnknownClass, UnreadableImage, NoGradients, and what `original_answers` raises.
    """
    import torch

    from gateway_decoder.masking import overlay_of
    from gateway_models.networks.originals import differentiable
    from gateway_models.networks.probe import Ending, activation
    from gateway_models.proof.attributions import grad_cam, integrated_gradients

    version = entry.versions[number]
    network = differentiable(version)
    image = _upright(path)
    tensor = reference_transforms(entry.preprocessing)(image)[None]
    activate = activation(Ending(version.outcome.ending), multi_label=version.spec.multi_label)
    with torch.no_grad():
        scores = activate(network(tensor).float())[0].numpy()
    class_id = int(scores.argmax()) if wanted is None else _class_of(wanted, labels)
    explain = grad_cam if method is ExplainMethod.GRAD_CAM else integrated_gradients
    values = spread(explain(network, tensor, class_id), image.size, entry.preprocessing)
    label = labels[class_id] if class_id < len(labels) else ""
    overlay = overlay_of(values, image.height, image.width)
    side = RISE_MAP_SIDE
    small = np.asarray(Image.fromarray(values).resize((side, side), Image.Resampling.BOX))
    return Explained(entry.name, str(number), label, class_id, float(scores[class_id]), method, small, overlay)


def spread(values: NDArray[np.float32], size: tuple[int, int], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """A map of what the network sees, as one of the whole image of `size` (width, height): 0 where it is cropped."""
    width, height = size
    scale = OVERLAY_SIDE / max(width, height)
    across, down = max(1, round(width * scale)), max(1, round(height * scale))
    if len(preprocessing.resize_size) == 2:
        resized_height, resized_width = map(float, preprocessing.resize_size)
    else:
        shorter = preprocessing.resize_size[0] / min(width, height)
        resized_height, resized_width = height * shorter, width * shorter
    seen_across = max(1, round(across * min(1, preprocessing.crop_size / resized_width)))
    seen_down = max(1, round(down * min(1, preprocessing.crop_size / resized_height)))
    seen = Image.fromarray(np.ascontiguousarray(values, np.float32))
    whole: NDArray[np.float32] = np.zeros((down, across), np.float32)
    top, left = (down - seen_down) // 2, (across - seen_across) // 2
    whole[top : top + seen_down, left : left + seen_across] = np.asarray(
        seen.resize((seen_across, seen_down), Image.Resampling.BILINEAR)
    )
    return whole


def _upright(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return shown(image)
    except OSError as exc:
        raise UnreadableImage(f"{path} cannot be read: {exc}") from exc


def _class_of(wanted: str | int, labels: Sequence[str]) -> int:
    if isinstance(wanted, int):
        if wanted >= len(labels):
            raise UnknownClass(f"there is no class {wanted}: the model has the classes 0 to {len(labels) - 1}")
        return wanted
    if wanted not in labels:
        raise UnknownClass(f"the model has no label {wanted!r}: GET /models/NAME lists the labels")
    return labels.index(wanted)
