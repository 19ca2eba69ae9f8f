"""Post-processing of a network: calibrated scores and own classes, declared in YAML, or the user's Python function.

A post-processing step belongs to a version of a model. It is a separate Triton model in the same repository, and the
last step of the version's ensemble. `templates/after/declared.py` computes a declared one in Triton, and
`gateway_models.networks.after` completes and tries it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from gateway.errors import UserError
from gateway.values.text_files import read_text
from gateway.values.validation import first_fault, shortened, shown
from gateway.values.yaml_files import YamlError, parse_yaml
from gateway_models.repository.class_names import ClassNames

OTHER = "other"
MAX_YAML_BYTES = 2**20
DECLARATIONS = (".yaml", ".yml", ".json")
"""Suffixes of declared steps; anything else is a Python function."""
KEYS = ("temperature", "bias", "classes", "other", "threshold")


class StepError(UserError):
    """A post-processing step cannot be used; the message names the file, the entry and what to do."""


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
    """A class made of the network's."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    label: Label
    members: tuple[Label, ...]
    """Classes of the network: labels, numbers, or ranges of numbers such as 151-268."""
    numbers: tuple[int, ...] = ()
    """The classes of the network that `members` names, once their labels are known."""


@dataclass(frozen=True, slots=True)
class DeclaredStep:
    """Changes of the network's scores, in this order: calibration, own classes, `other` below a threshold.

    `labels` has the labels of its classes if they are not the network's, once the network's labels are known.
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
    labels: tuple[str, ...] = ()
    takes_embeddings: ClassVar[bool] = False

    def described(self) -> str:
        """The step in a few words."""
        parts = []
        if self.temperature != 1 or self.bias:
            parts.append(f"temperature {self.temperature:.3g}{' and a bias for each class' if self.bias else ''}")
        if self.classes:
            parts.append(f"{len(self.classes)} own class{'es' * (len(self.classes) > 1)}")
        if self.threshold:
            parts.append(f"{self.other!r} below {self.threshold:g}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """A Python function from scores fp32 [N, classes], and if it takes a second argument embeddings fp32 [N, size].

    It returns the scores of its own classes, [N, own classes]. `labels` has their labels if they are not the network's.
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
    """The step that a user names: a YAML or JSON file that declares it, or FILE.py:NAME; raises StepError."""
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
        return _declared(parse_yaml(read_text(path, max_bytes=MAX_YAML_BYTES)))
    except OSError as exc:
        raise StepError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except YamlError as exc:
        raise StepError(f"{path} cannot be read as YAML: {exc}") from exc
    except ValidationError as exc:
        raise StepError(f"{path}: {first_fault(exc)}") from exc
    except ValueError as exc:
        raise StepError(f"{path}: {exc}") from exc


def _declared(document: object) -> DeclaredStep:
    """The step of a document; raises ValueError."""
    given = _entries(document, "the file")
    if wrong := [key for key in given if key not in KEYS]:
        raise ValueError(f"the file has {shown(wrong[0])}; it can have {', '.join(KEYS)}")
    if not given:
        raise ValueError(f"it declares nothing: use {', '.join(KEYS)}")
    if "classes" in given:
        given["classes"] = tuple(_own_classes(given["classes"]))
    step = _DECLARED.validate_python(given)
    if step.threshold and not step.other:
        step = replace(step, other=OTHER)
    if step.other and not step.threshold and not step.classes:
        raise ValueError("other is for images below a threshold, or outside the classes: add threshold or classes")
    return step


def _entries(value: object, where: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must have entries NAME: VALUE, not {shown(value)}")  # noqa: TRY004
    return dict(value)


def _own_classes(value: object) -> Iterator[dict[str, Any]]:
    """The fields of each OwnClass of labels with a list of members, or one member."""
    for label, content in _entries(value, "classes").items():
        inside = f"classes.{shortened(str(label))}"
        if isinstance(content, Mapping) or (not content and content != 0):
            raise ValueError(f"{inside} must be a list of classes of the network")
        yield {"label": label, "members": content if isinstance(content, list) else [content]}


def resolved(step: DeclaredStep, labels: Sequence[str], *, multi_label: bool) -> DeclaredStep:
    """A declared step with the numbers of the network's classes, and its own labels; raises StepError."""
    if step.bias and len(step.bias) != len(labels):
        raise StepError(f"bias has {len(step.bias)} numbers, and the network has {len(labels)} classes")
    if multi_label and step.threshold:
        raise StepError("threshold is for models with one class for each image, and this is multi-label")
    if not step.classes:
        return replace(step, labels=_distinct([*labels, step.other], labels) if step.other else ())
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
    own = [*(each.label for each in classes), *([other] if other else [])]
    return replace(step, classes=tuple(classes), other=other, labels=_distinct(own))


def _distinct(own: list[str], allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """The labels; raises StepError if one occurs twice, unless the network has it twice as well."""
    for label in own[len(allowed) :]:
        if own.count(label) > 1:
            raise StepError(f"the label {shown(label)} occurs twice: name the classes and other differently")
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
