"""What a scrubbed object keeps, said as its form: a field that is not named here is not in a dump.

A ``Keep`` copies what may stay of one value. Of a value in another form than the field has, only the form
stays (an empty object, list or text): a parser finds the same flaw, and nothing that it holds gets out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Keep: TypeAlias = Callable[[Any], Any]
Kept: TypeAlias = Mapping[str, Keep]
"""By field."""

LONGEST_MESSAGE = 4096
_LEFT_OUT = "leftOut"
"""A field that no kind has, null: an object of which nothing stays is still not an empty one, and for some
parsers that is the difference between a status that says nothing and none."""


def plain(found: Any) -> Any:
    """Text, a number, true, false or null."""
    return _emptied(found) if isinstance(found, (dict, list)) else found


def texts(found: Any) -> Any:
    """A list of plain values."""
    return [plain(each) for each in found] if isinstance(found, list) else _emptied(found)


def named_values(found: Any) -> Any:
    """Plain values under names that people choose, such as labels and amounts of resources."""
    return by_name(plain)(found)


def fields(*names: str, **below: Keep) -> Keep:
    """An object, of which the plain fields in ``names`` stay, and of those in ``below`` what these keep.

    Without any, only that it is there.
    """
    known = {**dict.fromkeys(names, plain), **below}

    def keep(found: Any) -> Any:
        if not isinstance(found, dict):
            return _emptied(found)
        kept = {name: known[name](value) for name, value in found.items() if name in known}
        return kept or ({_LEFT_OUT: None} if found and known else {})

    return keep


def each(keep: Keep) -> Keep:
    """A list of the same."""
    return lambda found: [keep(one) for one in found] if isinstance(found, list) else _emptied(found)


def by_name(keep: Keep) -> Keep:
    """The same under names that people choose."""

    def kept(found: Any) -> Any:
        if not isinstance(found, dict):
            return _emptied(found)
        return {name: keep(value) for name, value in found.items()}

    return kept


def names_alone(found: Any) -> Any:
    """The names that people chose, without what stands under them."""
    return dict.fromkeys(found) if isinstance(found, dict) else _emptied(found)


def only(names: frozenset[str]) -> Keep:
    """Plain values under some of the names that people choose."""

    def kept(found: Any) -> Any:
        if not isinstance(found, dict):
            return _emptied(found)
        return {name: plain(value) for name, value in found.items() if name in names}

    return kept


def conditions(*shown: str) -> Keep:
    """Conditions; messages, in which controllers quote, only of the types that are ``shown`` to people."""
    silent = fields("type", "status", "reason", "lastTransitionTime")
    speaking = fields("type", "status", "reason", "lastTransitionTime", message=message)

    def keep(found: Any) -> Any:
        is_shown = isinstance(found, dict) and found.get("type") in [*shown]
        return (speaking if is_shown else silent)(found)

    return each(keep)


def message(found: Any) -> Any:
    """Text for people, of which the beginning will do."""
    return found[:LONGEST_MESSAGE] if isinstance(found, str) else plain(found)


def beginning(text: str) -> Keep:
    """Of text that begins with ``text``, this; of other text nothing."""
    return lambda found: text if isinstance(found, str) and found.startswith(text) else _emptied(found)


def _emptied(found: Any) -> Any:
    return type(found)() if isinstance(found, (dict, list, str)) else found
