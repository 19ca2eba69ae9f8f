"""Quantities and validation errors in messages."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator

from gateway.api.parameters import ModelVersion, PredictParameters
from gateway.plugins.embed.route import EmbeddingParameters
from gateway.plugins.streams.options import StreamParameters
from gateway.values.quantities import size
from gateway.values.validation import fault


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1_000, "1,000 bytes"),
        (2_001, "2,001 bytes"),
        (8 * 2**10, "8 KiB"),
        (20 * 2**20, "20 MiB"),
        (15_000_000, "14.3 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (5_000 * 2**40, "5,000 TiB"),
    ],
)
def test_bytes_have_the_largest_unit_that_fits(nbytes: int, text: str):
    assert size(nbytes) == text


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Named(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _is_not_x(cls, name: str) -> str:
        if name == "x":
            raise ValueError("must not be x")
        return name


def faults(kind: Any, value: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    return [fault(error) for error in caught.value.errors()]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, "cat", "must be a whole number, not 'cat'"),
        (int, 1.5, "must be a whole number, not 1.5"),
        (float, "", "must be a number, not ''"),
        (Annotated[float, Field(allow_inf_nan=False)], "nan", "must be a number, not 'nan'"),
        (bool, "maybe", "must be true or false, not 'maybe'"),
        (str, 7, "must be text, not 7"),
        (Annotated[int, Field(ge=1)], 0, "must be at least 1, not 0"),
        (Annotated[float, Field(le=1)], 1.5, "must be at most 1, not 1.5"),
        (Annotated[float, Field(gt=0)], 0, "must be above 0, not 0"),
        (Annotated[str, Field(min_length=3)], "ab", "must have at least 3 characters"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "must have at most 1 item, not 2"),
        (list[int], 3, "must be a list, not 3"),
        (dict[str, int], 3, "must be an object, not 3"),
        (Colour, "green", "must be 'red' or 'blue', not 'green'"),
        (Literal["a", "b"], "c", "must be 'a' or 'b', not 'c'"),
        (ModelVersion, "v2", "must be the number of a version, such as 2, not 'v2'"),
        (Named, {}, "is missing"),
        (Named, {"name": "x"}, "must not be x"),
    ],
)
def test_message_names_expected_and_given_values(kind, value, words):
    assert faults(kind, value) == [words]


@pytest.mark.parametrize("parameters", [PredictParameters, EmbeddingParameters, StreamParameters])
def test_parameter_errors_never_contain_pydantic_messages(parameters):
    for name in parameters.model_fields:
        for wrong in ("", "?", "-1", [], {}, None, float("nan"), "x" * 1000, ["x"] * 2000):
            try:
                parameters.model_validate({name: wrong})
            except ValidationError as exc:
                for words in map(fault, exc.errors()):
                    assert words.startswith(("must ", "'leave' must ")), (name, wrong, words)
                    assert "should" not in words
