"""Messages of Triton in the form of Triton's JSON."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message


def as_document(message: Message) -> dict[str, Any]:
    """A message in the form of Triton's JSON: protobuf's own has texts for 64-bit integers, and other names."""
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: Any, value: Any) -> object:  # noqa: ANN401  # a descriptor, and any field of a message
    if isinstance(value, Mapping):
        kind = field.message_type.fields_by_name["value"]
        return {str(key): _single(kind, value[key]) for key in value}
    return [_single(field, each) for each in value] if field.is_repeated else _single(field, value)


def _single(field: Any, value: Any) -> object:  # noqa: ANN401  # a descriptor, and any field of a message
    if isinstance(value, Message):
        return as_document(value)
    return field.enum_type.values_by_number[value].name if field.enum_type else value
