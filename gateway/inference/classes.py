"""Finds the class of a model that a client names."""

from gateway.errors import InvalidParameter
from gateway.inference.backend import Backend
from gateway.inference.result import nearest_labels
from gateway.values.validation import NAME_CHARACTERS


async def named_class(
    backend: Backend, model_name: str, version: str, label: str | None, class_id: int | None
) -> tuple[str | None, int | None]:
    """The label and the class that a client names by either; (None, None) if it names none.

    The class is None for a label that several classes share. Raises InvalidParameter if the model does not have it, and
    what `Backend.labels` raises.
    """
    labels = list(await backend.labels(model_name, version))
    if class_id is None and label is None:
        return None, None
    if class_id is not None:
        if class_id >= len(labels):
            raise InvalidParameter(f"'class_id': the model {model_name!r} has the classes 0 to {len(labels) - 1}.")
        return labels[class_id], class_id
    assert label is not None
    count = labels.count(label)
    if not count:
        name = label[:NAME_CHARACTERS]
        suggested = " or ".join(map(repr, nearest_labels(name, set(labels))))
        hint = f"did you mean {suggested}?" if suggested else "GET /models/NAME lists the labels."
        raise InvalidParameter(f"'label': the model {model_name!r} has no label {name!r}; {hint}")
    return label, labels.index(label) if count == 1 else None
