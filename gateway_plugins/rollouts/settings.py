"""The settings of roll-outs."""

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from gateway.settings import Section
from gateway.values.setting_values import Shares, if_text
from gateway_plugins.rollouts.shares import shadows_of, split_of


class RolloutSettings(Section):
    """Splits and shadows of versions."""

    model_split: Annotated[Shares, NoDecode, BeforeValidator(if_text(split_of))] = Field({})
    """Shares of a model's requests that go to its versions, such as flowers=1:90,2:10; several with semicolons."""
    model_shadow: Annotated[Shares, NoDecode, BeforeValidator(if_text(shadows_of))] = Field({})
    """Shadow versions: percentages of a model's requests that they also classify, unreturned, such as flowers=2:10."""
