"""The settings of models on demand."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from gateway.settings import GIB, KIB, Pairs, Section, Settings, variable
from gateway.values.setting_values import ALL_MODELS


class ModelsLoaded(StrEnum):
    """Which models a Triton has loaded: `all` of its repository, or those that were requested, within a budget."""

    ALL = "all"
    DEMAND = "demand"


class DemandSettings(Section):
    """Models on demand."""

    needs: ClassVar[Pairs] = (("models_gpu_memory_bytes", "models_memory_bytes"),)

    models_loaded: ModelsLoaded = ModelsLoaded.ALL
    """all: each Triton has all models; demand: those of recent requests, within `models_memory_bytes`."""
    models_memory_bytes: int = Field(0, ge=0, le=64 * KIB * GIB)
    """With models_loaded=demand, which needs it: host memory for the models of one Triton, the default one included."""
    models_gpu_memory_bytes: int = Field(0, ge=0, le=KIB * GIB)
    """With models_loaded=demand: memory of each GPU for models; 0 if it is not limited."""
    models_load_seconds: float = Field(60.0, gt=0, le=600)
    """With models_loaded=demand: longest time that a request waits for its model to load, then 503."""
    models_kept_seconds: float = Field(5.0, ge=0, le=3_600)
    """With models_loaded=demand: time for which a loaded model is not unloaded for another one."""
    models_prefetch: bool = True
    """With models_loaded=demand: whether a model with many images in flight is loaded on further Tritons."""

    @property
    def on_demand(self) -> bool:
        """Whether models are loaded on demand."""
        return self.models_loaded is ModelsLoaded.DEMAND

    def faults(self) -> list[str]:
        """Models on demand need a budget, and no list of all models."""
        if not self.on_demand:
            return []
        faults = []
        if not self.models_memory_bytes:
            faults.append(
                f"{variable('models_loaded')}=demand needs {variable('models_memory_bytes')}: set it to the memory "
                "that the models of one Triton may take, such as 16GiB"
            )
        if ALL_MODELS in Settings.of(self).load_models:
            faults.append(
                f"{variable('load_models')}=* loads every model, and {variable('models_loaded')}=demand does not: name "
                "the models that always stay loaded, or leave it empty"
            )
        return faults
