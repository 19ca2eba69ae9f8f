"""The description of a model."""

from dataclasses import dataclass, field

from gateway.values.rollout import Rollout


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that classifies images."""

    name: str
    versions: tuple[str, ...]
    """The versions that clients can request."""
    ready: bool
    classes: int
    version: str = ""
    """The version in use: it answers requests without a version, or has the largest share of them."""
    rollout: Rollout | None = None
    """Which versions answer, if its record says so."""
    precision: str | None = None
    """fp32, bf16 or fp16; None if the model does not specify it."""
    multi_label: bool = False
    """Whether each class has a probability of its own."""
    decode: str = "exact"
    """How large JPEGs are decoded: exact, or fast if the model specifies it."""
    tensor: str | None = None
    """Input type of the network: fp32 (normalised) or uint8 (pixels); None for any other."""
    labels: tuple[str, ...] = ()
    input_height: int | None = None
    input_width: int | None = None
    resize_size: tuple[int, ...] = ()
    """Pixels to which the preprocessor resizes: height and width, or the shorter side; () if not specified."""
    crop_size: tuple[int, ...] = ()
    """Pixels of the centre crop: height and width, or one number for both; () if not specified."""
    reason: str | None = None
    """Why the model is not ready, if Triton gives a reason."""
    embedding_size: int = 0
    """Size of the embeddings in FEATURES; 0 if the model has none."""
    runtime: str | None = None
    """What runs the network, such as onnxruntime or torchscript; None if that is unknown."""
    steps: tuple[str, ...] = field(default=())
    """The models that the ensemble runs, in order."""
    limitations: tuple[str, ...] = ()
    """What the model lacks, and what that costs: one sentence each."""
    after: str | None = None
    """What the step after the network does, in words; None if there is none."""
    description: str | None = None
    """What the model is, in a sentence; None if its record does not say."""
    loaded: bool = True
    """Whether any server has loaded it; if not, a request for it does."""
