"""YAML that other people and programs write: only mappings, lists, texts, numbers, true, false and null."""

import re
from typing import Any

from gateway.values.validation import shown

MAX_CHARACTERS = 2**20
"""PyYAML reads some 100 kB/s without libyaml."""
MAX_NODES = 100_000
MAX_DEPTH = 32
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE = frozenset({"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
# Decimal, with at most as many digits as people use. 007, 0x1F, 1_000, 1:30 and 2001-01-01 are texts.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"[-+]?(?=\.?[0-9])[0-9]{0,18}(?:\.[0-9]{0,40}(?:[eE][-+]?[0-9]{1,3})?|[eE][-+]?[0-9]{1,3})")


class YamlError(ValueError):
    """The text is not YAML, or is YAML that is not accepted; the message names the line and the reason."""


def parse_yaml(text: str) -> object:
    """The value of one document, None if it is empty; raises YamlError, and ImportError without PyYAML.

    Anchors, aliases, tags and repeated keys are refused. Words such as yes and no are truth values, as in YAML 1.1.
    """
    import yaml

    if len(text) > MAX_CHARACTERS:
        raise YamlError(f"it has more than {MAX_CHARACTERS:,} characters")
    builder = _Builder()
    try:
        # Events, not values: the parser creates no objects by tags, and does not recurse.
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            builder.take(event, type(event).__name__)
    except YamlError as exc:
        raise YamlError(f"line {event.start_mark.line + 1}: {exc}") from None
    except yaml.MarkedYAMLError as exc:
        line = "" if exc.problem_mark is None else f"line {exc.problem_mark.line + 1}: "
        raise YamlError(f"{line}{exc.problem or exc.context}") from exc
    except (yaml.YAMLError, ValueError) as exc:  # a character that YAML does not allow, or a lone surrogate
        raise YamlError(" ".join(str(exc).split())[:80]) from exc
    return builder.roots[0] if builder.roots else None


class _Builder:
    """Makes values from the events of a document."""

    def __init__(self) -> None:
        self.roots: list[object] = []
        self._nodes = 0
        self._open: list[tuple[dict[object, object] | list[object], list[object]]] = []
        """The mappings and lists that have begun, the innermost last; each with its key that has no value yet."""

    def take(self, event: Any, kind: str) -> None:  # noqa: ANN401  # PyYAML has no types
        if kind == "AliasEvent" or getattr(event, "anchor", None) is not None:
            raise YamlError("anchors and aliases (& and *) are not accepted: write the value itself")
        if getattr(event, "tag", None) is not None:
            raise YamlError(f"the tag {shown(event.tag)} is not accepted: write the value in quotes if it is text")
        if kind == "DocumentStartEvent" and self.roots:
            raise YamlError("a second document begins here, and only one is accepted")
        if kind == "ScalarEvent":
            self._add(_scalar(event.value) if event.implicit[0] else event.value)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            container: dict[object, object] | list[object] = {} if kind == "MappingStartEvent" else []
            self._add(container)
            self._open.append((container, []))
            if len(self._open) > MAX_DEPTH:
                raise YamlError(f"it has more than {MAX_DEPTH} levels")
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._open.pop()

    def _add(self, value: object) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise YamlError(f"it has more than {MAX_NODES:,} values")
        if not self._open:
            self.roots.append(value)
            return
        container, pending = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif pending:
            container[pending.pop()] = value
        elif isinstance(value, (dict, list)):
            raise YamlError("the name of an entry must be text or a number")
        elif value in container:
            raise YamlError(f"{shown(value)} occurs twice")
        else:
            pending.append(value)


def _scalar(text: str) -> object:
    """The value of a text without quotes."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
