"""YAML of dumps: what JSON has too, and nothing that grows while it is read.

Values are made from the parser's events, one after another: PyYAML's own way from events to values calls
itself for each level, in C, and ends the process where a file is nested deep enough; and a few lines of
aliases or merge keys stand for more than any memory holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml

from gpucost.domain.errors import InputError, Remark, shorten

DEEPEST = 100
_ALLOWED = "YAML as kubectl writes it, with neither anchors, aliases, merge keys nor tags"
_LONGEST_PLAIN = 64
_NO_KEY = object()
_PREFIX = "tag:yaml.org,2002:"
_READ = frozenset(f"{_PREFIX}{name}" for name in ("null", "bool", "int", "float"))


class _Open:
    """A list or mapping of which not all has been read."""

    __slots__ = ("key", "value")

    def __init__(self, value: dict[Any, Any] | list[Any]) -> None:
        self.value, self.key = value, _NO_KEY


def documents(name: str, text: str, is_strict: bool = False, most_values: int | None = None) -> Iterator[Any]:
    """The value of each document. Times stay text, as in JSON. With ``is_strict`` a key that stands twice in
    a mapping is refused; else the last counts. ``most_values`` are keys, values, lists and mappings in all.

    Raises InputError naming the file, and what PyYAML raises for what is no YAML: YAMLError, ValueError.
    """
    above: list[_Open] = []
    values = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        value: Any
        if isinstance(event, yaml.NodeEvent):
            _check(name, event)
            values += 1
            if most_values is not None and values > most_values:
                raise InputError(name, Remark("too large"), f"at most {most_values:,} keys and values")
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
            is_key = bool(above) and isinstance(above[-1].value, dict) and above[-1].key is _NO_KEY
            if is_key and value == "<<" and event.implicit[0]:
                raise InputError(name, Remark("a merge key (<<)"), _ALLOWED)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(above) == DEEPEST:
                raise InputError(name, Remark(f"nested more than {DEEPEST} deep"), _ALLOWED)
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
        raise InputError(name, Remark("an anchor or alias (& or *)"), _ALLOWED)
    if getattr(event, "tag", None) is not None:
        raise InputError(name, Remark("a tag (!)"), _ALLOWED)


def _put(name: str, into: _Open, value: Any, is_strict: bool) -> None:
    if isinstance(into.value, list):
        into.value.append(value)
    elif into.key is not _NO_KEY:
        into.value[into.key] = value
        into.key = _NO_KEY
    elif isinstance(value, (dict, list)):
        raise InputError(name, Remark("a key that is a list or a mapping"), _ALLOWED)
    elif is_strict and value in into.value:
        raise InputError(name, Remark(f"{shorten(value, 64)} stands there twice"), "each key once")
    else:
        into.key = value


def _scalar(event: yaml.ScalarEvent) -> Any:
    is_plain = event.implicit[0] and len(event.value) <= _LONGEST_PLAIN
    return _plain(event.value) if is_plain else event.value


@lru_cache(maxsize=4096)
def _plain(text: str) -> Any:
    """What text without quotes stands for."""
    loader = yaml.SafeLoader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag not in _READ:
        return text
    return yaml.SafeLoader.yaml_constructors[tag](loader, yaml.ScalarNode(tag, text))
