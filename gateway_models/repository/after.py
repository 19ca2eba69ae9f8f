"""The step after a network: calibrated scores and own classes, declared in YAML, or a Python function of the user's.

A step belongs to a version of a model. It is a Triton model of its own, a folder beside the others, and the last step
of the version's ensemble.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from gateway.errors import UserError
from gateway.values.text_files import read_text
from gateway.values.validation import first_fault, shortened, shown
from gateway.values.yaml_files import YamlError, parse_yaml
from gateway_models.repository.class_names import ClassNames

OTHER = "other"
UNKNOWN = "unknown"
KEEP = 0.99
MAX_YAML_BYTES = 2**20
DECLARATIONS = (".yaml", ".yml", ".json")
"""Suffixes of declared steps; anything else is a Python function."""
KEYS = ("temperature", "bias", "classes", "other", "threshold", "unknown")
UNKNOWN_KEYS = ("label", "embeddings", "keep")


class StepError(UserError):
    """A step after the network cannot be used; the message names the file, the entry and what to do."""


def _label(value: object) -> str:
    """A label of YAML; raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise ValueError(f"{shown(value)} is no label; YAML reads words such as no and null otherwise, so quote it")
    text = str(value).strip()
    if not text.isprintable():
        raise ValueError(f"the label {shown(text)} has a control character")
    return text


Label = Annotated[str, BeforeValidator(_label)]
Number = Annotated[float, Strict()]


@dataclass(frozen=True, slots=True)
class OwnClass:
    """A class made of the network's, or of other own classes, whose `parent` it is."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    label: Label
    members: tuple[Label, ...] = ()
    """Classes of the network: labels, numbers, or ranges of numbers such as 151-268; () if it has own classes in it."""
    parent: str = ""
    numbers: tuple[int, ...] = ()
    """The classes of the network that `members` names, once their labels are known."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The refusal of images whose embeddings are far from all known ones."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    embeddings: Path
    """An .npy file with the embeddings of known images, fp32 [images, size]."""
    label: Label = UNKNOWN
    keep: Annotated[Number, Field(ge=0.5, le=1)] = KEEP
    """The share of the known images that are not refused."""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class DeclaredStep:
    """Changes of the network's scores, in this order: calibration, own classes, `unknown`, `other` below a threshold.

    `labels` are those of its classes if they are not the network's, once the network's labels are known.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    temperature: Annotated[Number, Field(ge=0.01, le=100)] = 1.0
    """Scores become softmax(log(score) / temperature + bias)."""
    bias: tuple[Annotated[Number, Field(ge=-100, le=100)], ...] = ()
    """One number for each class of the network; () is 0 for all."""
    classes: tuple[OwnClass, ...] = ()
    other: Annotated[str, BeforeValidator(lambda value: value if value == "" else _label(value))] = ""
    """The label of the network's classes that no own class has, and of images below the threshold; "" is none."""
    threshold: Annotated[Number, Field(ge=0, le=1)] = 0.0
    unknown: Unknown | None = None
    labels: tuple[str, ...] = ()

    @property
    def takes_embeddings(self) -> bool:
        """Whether it needs the embeddings of images beside their scores."""
        return self.unknown is not None

    @property
    def leaves(self) -> tuple[OwnClass, ...]:
        """The own classes that are made of the network's, in the order of their scores."""
        return tuple(each for each in self.classes if each.members)

    @property
    def inner(self) -> tuple[OwnClass, ...]:
        """The own classes that are made of other own classes."""
        return tuple(each for each in self.classes if not each.members)

    def described(self) -> str:
        """The step in a few words."""
        parts = []
        if self.temperature != 1 or self.bias:
            parts.append(f"temperature {self.temperature:.3g}{' and a bias for each class' if self.bias else ''}")
        if self.classes:
            parts.append(f"{len(self.classes)} own class{'es' * (len(self.classes) > 1)}")
        if self.threshold:
            parts.append(f"{self.other!r} below {self.threshold:g}")
        if self.unknown:
            parts.append(f"{self.unknown.label!r} by embeddings")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """A Python function from scores fp32 [N, classes], and if it takes a second argument embeddings fp32 [N, size].

    It returns the scores of its own classes, [N, own classes]. `labels` are those of its classes if they are not the
    network's.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: str
    """FILE.py:NAME, with the absolute path once it was found."""
    include: tuple[Path, ...] = ()
    sha256: str = ""
    takes_embeddings: bool = False
    labels: tuple[str, ...] = ()

    def described(self) -> str:
        """The step in a few words."""
        path, _, name = self.source.rpartition(":")
        return f"{name} of {Path(path).name}"


AfterStep = DeclaredStep | FunctionStep
_DECLARED = TypeAdapter(DeclaredStep)


def read_step(text: str) -> AfterStep:
    """The value of --postprocess: a YAML or JSON file with a declared step, or FILE.py:NAME; raises StepError."""
    path = _path(text)
    if path.suffix.lower() in DECLARATIONS:
        return read_declaration(path)
    name = text.rpartition("/")[2]
    if not name.partition(":")[0].endswith(".py"):
        raise StepError(f"{text} is neither a declaration (.yaml) nor a Python function, FILE.py:NAME")
    return FunctionStep(text)


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as exc:
        raise StepError(f"{shown(text)} is in the home folder of a user who has none here") from exc


def read_declaration(path: Path) -> DeclaredStep:
    """Read a declared step; raises StepError that names the entry. The network's labels are not known yet."""
    try:
        document = parse_yaml(read_text(path, max_bytes=MAX_YAML_BYTES))
    except OSError as exc:
        raise StepError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except YamlError as exc:
        raise StepError(f"{path} cannot be read as YAML: {exc}") from exc
    try:
        return _declared(document, path.absolute().parent)
    except ValidationError as exc:
        raise StepError(f"{path}: {first_fault(exc)}") from exc
    except (StepError, ValueError) as exc:
        raise StepError(f"{path}: {exc}") from exc


def _declared(document: Any, folder: Path) -> DeclaredStep:  # noqa: ANN401  # YAML
    """The step of a document; raises ValueError."""
    given = _entries(document, "the file", KEYS)
    if not given:
        raise ValueError(f"it declares nothing: use {', '.join(KEYS)}")
    if "classes" in given:
        given["classes"] = tuple(_own_classes(given["classes"], "", "classes"))
    if "unknown" in given:
        given["unknown"] = unknown = _entries(given["unknown"], "unknown", UNKNOWN_KEYS)
        if "embeddings" in unknown:
            unknown["embeddings"] = folder / _path(_label(unknown["embeddings"]))
    step = _DECLARED.validate_python(given)
    if step.threshold and not step.other:
        step = replace(step, other=OTHER)
    if step.other and not step.threshold and not step.classes:
        raise ValueError("other is for images below a threshold, or beside own classes: add threshold or classes")
    if step.inner and not step.threshold:
        raise ValueError(
            f"{shortened(step.inner[0].label)} has classes in it, which needs a threshold: the answer is the innermost "
            "class whose score reaches it"
        )
    return step


def _entries(value: Any, where: str, keys: Sequence[str] = ()) -> dict[Any, Any]:  # noqa: ANN401  # YAML
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must have entries NAME: VALUE, not {shown(value)}")  # noqa: TRY004
    if keys and (wrong := [key for key in value if key not in keys]):
        raise ValueError(f"{where} has {shown(wrong[0])}; it can have {', '.join(keys)}")
    return dict(value)


def _own_classes(value: Any, parent: str, where: str) -> Iterator[dict[str, Any]]:  # noqa: ANN401  # YAML
    """The fields of each OwnClass of a tree of labels; the innermost ones have a list of members, or one member."""
    for label, content in _entries(value, where).items():
        inside = f"{where}.{shortened(str(label))}"
        if not content and content != 0:
            raise ValueError(f"{inside} has no classes of the network")
        if isinstance(content, Mapping):
            yield {"label": label, "parent": parent}
            yield from _own_classes(content, str(label).strip(), inside)
        else:
            yield {"label": label, "parent": parent, "members": content if isinstance(content, list) else [content]}


def resolved(step: DeclaredStep, labels: Sequence[str], *, multi_label: bool) -> DeclaredStep:
    """A declared step with the numbers of the network's classes, and its own labels; raises StepError."""
    if step.bias and len(step.bias) != len(labels):
        raise StepError(f"bias has {len(step.bias)} numbers, and the network has {len(labels)} classes")
    if multi_label and (step.threshold or step.unknown):
        raise StepError("threshold and unknown are for models with one class for each image, and this is multi-label")
    if not step.classes:
        added = [step.other] if step.other else []
        own = [*labels, *added, *([step.unknown.label] if step.unknown else [])]
        return replace(step, labels=_distinct(own, labels) if len(own) > len(labels) else ())
    names, taken = ClassNames(labels), dict[int, str]()
    classes = []
    for each in step.classes:
        numbers = tuple(dict.fromkeys(number for member in each.members for number in _numbers(member, each, names)))
        for number in numbers:
            if number in taken:
                both = f"{shortened(taken[number])} and in {shortened(each.label)}"
                raise StepError(f"{shown(labels[number])} is in {both}: it can be in one class")
            taken[number] = each.label
        classes.append(replace(each, numbers=numbers))
    # The scores of classes that no own class has must be somewhere: they add up to the rest.
    rest = not multi_label and len(taken) < len(labels)
    other = step.other or (OTHER if rest else "")
    step = replace(step, classes=tuple(classes), other=other)
    own = [each.label for each in (*step.leaves, *step.inner)]
    own += [other] if other else []
    own += [step.unknown.label] if step.unknown else []
    return replace(step, labels=_distinct(own))


def _distinct(own: list[str], allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """The labels; raises StepError if one occurs twice, unless the network has it twice as well."""
    for label in own[len(allowed) :]:
        if own.count(label) > 1:
            raise StepError(f"the label {shown(label)} occurs twice: name the classes, other and unknown differently")
    return tuple(own)


def _numbers(member: str, own: OwnClass, names: ClassNames) -> Iterator[int]:
    first, dash, last = member.partition("-")
    start, end = (names.find(each) if each.strip().isdecimal() else None for each in (first, last))
    if names.find(member) is None and dash and start is not None and end is not None and start <= end:
        yield from range(start, end + 1)
        return
    number = names.find(member)
    if number is None:
        own_class = f"classes.{shortened(own.label)}"
        raise StepError(f"{own_class}: the network has no class {shown(member)}; it has {names.some}")
    yield number


def own_labels(step: AfterStep | None) -> tuple[str, ...]:
    """The labels of a step's classes; () if they are the network's."""
    return step.labels if step else ()
