"""The text of a config.pbtxt, read and changed in place: comments, order and fields of other releases of Triton stay.

gateway.triton.configs reads configurations by protobuf's own parser, for their values. That parser knows no positions,
writes a message without its comments, and needs packages that NVIDIA's image lacks, where models are sized when Triton
starts. So this parser uses the standard library alone.
"""

import json
import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<mark>[{}\[\]<>:,;])"""
    r"""|(?P<word>[^\s{}\[\]<>:,;\#"']+)|(?P<wrong>.)"""
)
_CLOSING = {"{": "}", "<": ">"}


@dataclass(slots=True)
class Field:
    """One field of a text-format protobuf: its value, or its fields if it is a message, and its place in the text."""

    name: str
    value: str = ""
    fields: list["Field"] = field(default_factory=list)
    start: int = 0
    end: int = 0
    """The offset behind the value; for a message, the offset of its closing brace."""

    def all(self, *path: str) -> list["Field"]:
        """The fields at a path of names."""
        found = [self]
        for name in path:
            found = [each for message in found for each in message.fields if each.name == name]
        return found

    def first(self, *path: str) -> str:
        """The value of the first field at a path of names, without quotes; "" if there is none."""
        return next((each.value.strip("\"'") for each in self.all(*path)), "")


def parse(text: str) -> Field:
    """The fields of a message in protobuf's text format (protobuf.dev/reference/protobuf/textformat-spec).

    Raises ValueError if the text is not such a message; Triton reports its errors better.
    """
    tokens = [match for match in _TOKEN.finditer(text) if match.lastgroup != "space"]
    message, rest = _message(tokens, 0, "")
    if rest != len(tokens):
        raise ValueError(f"unexpected {tokens[rest][0]!r}")
    message.end = len(text)
    return message


def _message(tokens: list[re.Match[str]], at: int, closing: str) -> tuple[Field, int]:
    """The fields up to the closing brace, and the index of that token."""
    message = Field("")
    while at < len(tokens) and tokens[at][0] != closing:
        if tokens[at].lastgroup != "word":
            raise ValueError(f"unexpected {tokens[at][0]!r}")
        name, at = tokens[at][0], at + 1
        if _is(tokens, at, ":"):
            at += 1
        if _is(tokens, at, "["):
            at += 1
            while not _is(tokens, at, "]"):
                found, at = _value(tokens, at, name)
                message.fields.append(found)
                at += _is(tokens, at, ",")
            at += 1
        else:
            found, at = _value(tokens, at, name)
            message.fields.append(found)
        at += _is(tokens, at, ",") or _is(tokens, at, ";")
    return message, at


def _value(tokens: list[re.Match[str]], at: int, name: str) -> tuple[Field, int]:
    if at >= len(tokens):
        raise ValueError(f"{name} has no value")
    token = tokens[at]
    if token[0] in _CLOSING:
        found, at = _message(tokens, at + 1, _CLOSING[token[0]])
        if at >= len(tokens):
            raise ValueError(f"{name} is not closed")
        found.name, found.start, found.end = name, token.start(), tokens[at].start()
        return found, at + 1
    if token.lastgroup not in {"word", "text"}:
        raise ValueError(f"unexpected {token[0]!r}")
    # Adjacent strings are one value.
    end = at + 1
    while token.lastgroup == "text" and end < len(tokens) and tokens[end].lastgroup == "text":
        end += 1
    return Field(name, token[0], start=token.start(), end=tokens[end - 1].end()), end


def _is(tokens: list[re.Match[str]], at: int, mark: str) -> bool:
    return at < len(tokens) and tokens[at][0] == mark


def edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """A text with the parts from start to end replaced."""
    for start, end, added in sorted(edits, key=lambda edit: edit[0], reverse=True):
        text = text[:start] + added + text[end:]
    return text


def with_parameter(text: str, key: str, value: str) -> str:
    """A configuration in which the parameter `key` has this text; raises ValueError if it is invalid."""
    written = json.dumps(value, ensure_ascii=False)  # protobuf's text format escapes quotes as JSON does
    for parameter in parse(text).all("parameters"):
        if parameter.first("key") == key:
            values = parameter.all("value", "string_value")
            return edited(text, [(each.start, each.end, written) for each in values])
    return f'{text.rstrip()}\n\nparameters {{ key: "{key}" value: {{ string_value: {written} }} }}\n'
