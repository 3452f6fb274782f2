"""From text to the documents in it. Whoever wrote it may be somebody else: all of it is limited."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from gpucost.domain.errors import InputError, Remark, shorten
from gpucost.kube.dumps import dump_yaml

MOST_BYTES = 3 << 20
"""The most that the API server takes of one request (kubernetes, apiserver/pkg/server/config.go)."""
MOST_DOCUMENTS = 200
MOST_VALUES = 100_000
"""Keys, plain values, lists and mappings in one file."""
DEEPEST = dump_yaml.DEEPEST
_ALLOWED = "manifests in YAML or JSON"


class Placed(NamedTuple):
    """A document, and where it stands, for a person."""

    document: dict[str, Any]
    place: str


def documents(text: str | bytes, place: str, most_values: int = MOST_VALUES) -> list[Placed]:
    """All that are not empty; of a ``kind: List`` its items. Of what has more than ``most_values`` no more is
    read. Raises InputError naming ``place``."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MOST_BYTES:
        raise InputError(place, Remark(f"{size:,} bytes"), f"at most {MOST_BYTES:,} bytes")
    found: list[tuple[Any, int]] = []
    for number, each in enumerate(_parsed(_decoded(text, place), place, most_values), 1):
        if number > MOST_DOCUMENTS:
            raise _too_many(place)
        if each is not None:
            found.append((each, number))
    if not found:
        raise InputError(place, Remark("empty"), _ALLOWED)
    placed = []
    for each, number in found:
        where = place if len(found) == 1 else f"{place}, document {number}"
        placed += list(_items(checked(each, where, most_values), where))
        if len(placed) > MOST_DOCUMENTS:
            raise _too_many(place)
    return placed


def checked(found: object, place: str, most_values: int = MOST_VALUES) -> dict[str, Any]:
    """A mapping of plain values by text, not too deep and not too many. Raises InputError otherwise."""
    if not isinstance(found, Mapping):
        raise InputError(place, found, "a mapping with apiVersion, kind, metadata and spec")
    values, level, depth = 0, [found], 0
    while level:
        depth += 1
        below: list[Any] = []
        for each in level:
            inside = each if isinstance(each, list) else each.values()
            values += len(each) if isinstance(each, list) else 2 * len(each)
            below += (one for one in inside if isinstance(one, (dict, list)))
            for number in inside:
                if isinstance(number, float) and not math.isfinite(number):
                    raise InputError(place, number, "numbers that are finite")
            if not isinstance(each, list) and not all(isinstance(key, str) for key in each):
                key = next(key for key in each if not isinstance(key, str))
                raise InputError(place, Remark(f"the key {shorten(key, 64)}"), "keys that are text")
        if values > most_values:
            raise InputError(place, Remark("too large"), f"at most {most_values:,} keys and values")
        if depth > DEEPEST:
            raise InputError(place, Remark("too deep"), f"at most {DEEPEST} levels")
        level = below
    return dict(found)


def _items(document: dict[str, Any], place: str) -> Iterator[Placed]:
    if not is_list(document):
        yield Placed(document, place)
        return
    items = document.get("items")
    if not isinstance(items, list):
        raise InputError(f"{place}: items", items, "a list of objects")
    for number, each in enumerate(items, 1):
        if not isinstance(each, dict):
            raise InputError(f"{place}: items[{number - 1}]", each, "an object")
        yield Placed(each, f"{place}, item {number}")


def is_list(document: Mapping[str, Any]) -> bool:
    """Whether it holds others, as kubectl writes them."""
    return document.get("kind") == "List" and document.get("apiVersion") == "v1"


def _decoded(text: str | bytes, place: str) -> str:
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(place, Remark("not text in UTF-8"), _ALLOWED) from None


def _parsed(text: str, place: str, most_values: int) -> Iterator[Any]:
    if text.lstrip()[:1] in ("{", "["):
        yield _json(text, place)
        return
    try:
        yield from dump_yaml.documents(place, text, is_strict=True, most_values=most_values)
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        said = f"{problem or 'a character or number that cannot be read'}"
        where = f" in line {mark.line + 1:,}" if mark is not None else ""
        raise InputError(place, Remark(f"no YAML: {shorten(said)}{where}"), _ALLOWED) from None


def _json(text: str, place: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read = dict(pairs)
        if len(read) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1) if len(keys) < 1000 else "a key"
            raise InputError(place, Remark(f"{shorten(twice, 64)} stands there twice"), "each key once")
        return read

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise InputError(place, Remark("too deep"), f"at most {DEEPEST} levels") from None
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise InputError(place, Remark(f"no JSON in line {line:,}"), _ALLOWED) from None


def _too_many(place: str) -> InputError:
    return InputError(place, Remark("too many documents"), f"at most {MOST_DOCUMENTS} in one file")
