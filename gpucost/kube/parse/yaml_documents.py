"""YAML of dumps: only what JSON has too, and nothing that expands while it is read.

Values are made from the parser's events, one after another: PyYAML's own way from events to values calls
itself for each level, in C, and ends the process where a file is nested deep enough; and a few lines of
aliases or merge keys stand for more than any memory holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import yaml

from gpucost.domain.errors import ErrorRemark, InputError, shorten

DEEPEST = 100
MOST_DIRECTIVES = 100
"""Lines such as ``%TAG ! x``: libyaml compares each with all before it, in one step that nothing interrupts.
Those in 256 kB hold the interpreter for half a second, ten times as many for a hundred times as long."""
_ALLOWED = "YAML as kubectl writes it, with neither anchors, aliases, merge keys nor tags"
_LONGEST_PLAIN = 64
_NO_KEY = object()
_READ = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))
_WORDS: Mapping[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_WHOLE = re.compile("[-+]?(0x[0-9a-fA-F]+|0o?[0-7]+|0b[01]+|0|[1-9][0-9]*)")
_OCTAL = re.compile("([-+]?)0o?([0-7]+)")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class _Open:
    """A list or mapping of which not all has been read."""

    __slots__ = ("key", "value")

    def __init__(self, value: dict[Any, Any] | list[Any]) -> None:
        self.value, self.key = value, _NO_KEY


def documents(name: str, text: str, is_strict: bool = False, most_values: int | None = None) -> Iterator[Any]:
    """The value of each document. Times stay text, as in JSON. With ``is_strict`` a key that stands twice in
    a mapping is refused, else the last counts; and text without quotes is read as kubectl does, else as
    PyYAML does, which may have written the dump. ``most_values`` are keys, values, lists and mappings in all.

    Raises InputError naming the file, and what PyYAML raises for text that is not YAML: YAMLError,
    ValueError.
    """
    if text.count("\n%") > MOST_DIRECTIVES:
        raise InputError(name, ErrorRemark("directives (%)"), _ALLOWED)
    above: list[_Open] = []
    values = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        value: Any
        if isinstance(event, yaml.NodeEvent):
            _check(name, event)
            values += 1
            if most_values is not None and values > most_values:
                raise InputError(name, ErrorRemark("too large"), f"at most {most_values:,} keys and values")
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event, is_strict)
            is_key = bool(above) and isinstance(above[-1].value, dict) and above[-1].key is _NO_KEY
            if is_key and value == "<<" and event.implicit[0]:
                raise InputError(name, ErrorRemark("a merge key (<<)"), _ALLOWED)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(above) == DEEPEST:
                raise InputError(name, ErrorRemark(f"nested more than {DEEPEST} deep"), _ALLOWED)
            above.append(_Open({} if isinstance(event, yaml.MappingStartEvent) else []))
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            value = above.pop().value
        else:
            continue
        if above:
            _put(name, above[-1], value, is_strict)
        else:
            yield value


def _check(name: str, event: yaml.NodeEvent) -> None:
    if event.anchor is not None:
        raise InputError(name, ErrorRemark("an anchor or alias (& or *)"), _ALLOWED)
    if getattr(event, "tag", None) is not None:
        raise InputError(name, ErrorRemark("a tag (!)"), _ALLOWED)


def _put(name: str, into: _Open, value: Any, is_strict: bool) -> None:
    if isinstance(into.value, list):
        into.value.append(value)
    elif into.key is not _NO_KEY:
        into.value[into.key] = value
        into.key = _NO_KEY
    elif isinstance(value, (dict, list)):
        raise InputError(name, ErrorRemark("a key that is a list or a mapping"), _ALLOWED)
    elif is_strict and value in into.value:
        raise InputError(name, ErrorRemark(f"{shorten(value, 64)} stands there twice"), "each key once")
    else:
        into.key = value


def _scalar(event: yaml.ScalarEvent, is_strict: bool) -> Any:
    if not event.implicit[0] or len(event.value) > _LONGEST_PLAIN:
        return event.value
    return _as_kubectl(event.value) if is_strict else _plain(event.value)


@lru_cache(maxsize=4096)
def _plain(text: str) -> Any:
    """The value of text without quotes, as PyYAML writes and reads it."""
    loader = yaml.SafeLoader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag not in _READ:
        return text
    return yaml.SafeLoader.yaml_constructors[tag](loader, yaml.ScalarNode(tag, text))


@lru_cache(maxsize=4096)
def _as_kubectl(text: str) -> Any:
    """The value of text without quotes to kubectl (sigs.k8s.io/yaml v1.6.0, goyaml.v2, resolve.go): ``y`` and
    ``on`` are true, ``1e3`` is a number, ``017`` and ``0o17`` are 15, ``08`` is 8, and ``1:30`` is text."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    digits = text.replace("_", "")
    if _WHOLE.fullmatch(digits):
        octal = _OCTAL.fullmatch(digits)
        return int(f"{octal[1]}0o{octal[2]}" if octal else digits, 0)
    if not _NUMBER.fullmatch(digits):
        return text
    number = float(digits)
    return number if math.isfinite(number) else text
