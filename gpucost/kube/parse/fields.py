"""Reading the fields and label selectors of an API object, without trusting any to be present or valid.

Label selectors are those of kubernetes, apimachinery, meta/v1 LabelSelector.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gpucost.cluster.objects.metadata import (
    CPU,
    FieldFlaw,
    ObjectMeta,
    Resources,
    StatusCondition,
    amount,
    parse_quantity,
)
from gpucost.cluster.objects.pods import SelectorRequirement
from gpucost.domain.errors import ErrorRemark, InputError, shorten
from gpucost.domain.jobs import OwnerReference
from gpucost.domain.time import EARLIEST_MS, LATEST_MS
from gpucost.kube.parse.events import Unreadable

_Q = TypeVar("_Q", int, Fraction)
MOST_FLAWS = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = 2**63
_LONGEST_INSTANT = 64
_LONGEST_INTERNED = 64
_LONGEST_MESSAGE = 4096
_EMPTY: Mapping[str, Any] = {}
_STATUS = {"True": True, "False": False}


class ObjectPart:
    """A mapping somewhere in an object, and its path for messages. Flaws are collected at the root.

    A missing or null field is returned as empty; a field of another form is a flaw, and empty too.
    """

    __slots__ = ("_found", "_index", "_key", "_parent", "flaws")

    def __init__(
        self,
        found: Mapping[str, Any],
        key: str = "",
        parent: ObjectPart | None = None,
        index: int | None = None,
    ) -> None:
        self._found, self._key, self._parent, self._index = found, key, parent, index
        self.flaws: list[FieldFlaw] = [] if parent is None else parent.flaws

    def __bool__(self) -> bool:
        return bool(self._found)

    def __contains__(self, key: str) -> bool:
        return self._found.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        """The keys that are text."""
        return (key for key in self._found if isinstance(key, str))

    def raw(self, key: str) -> Any:
        """The raw value; None when missing."""
        return self._found.get(key)

    def part(self, key: str) -> ObjectPart:
        """A mapping below."""
        found = self._found.get(key)
        if found is None:
            return ObjectPart(_EMPTY, key, self)
        if not isinstance(found, dict):
            self.flaw(key, found, "an object")
            return ObjectPart(_EMPTY, key, self)
        return ObjectPart(found, key, self)

    def parts(self, key: str) -> list[ObjectPart]:
        """The mappings of a list below; others in it are flaws."""
        found = self._found.get(key)
        if found is None:
            return []
        if not isinstance(found, list):
            self.flaw(key, found, "a list")
            return []
        read = []
        for index, each in enumerate(found):
            if isinstance(each, dict):
                read.append(ObjectPart(each, key, self, index))
            else:
                self.flaw(f"{key}[{index}]", each, "an object")
        return read

    def text(self, key: str, default: str = "") -> str:
        found = self._found.get(key)
        if isinstance(found, str):
            return sys.intern(found) if len(found) < _LONGEST_INTERNED else found
        if found is not None:
            self.flaw(key, found, "text")
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        """The text in a list below."""
        found = self._found.get(key)
        if found is None:
            return ()
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            self.flaw(key, found, "a list of text")
            return ()
        return tuple(map(sys.intern, found))

    def whole(self, key: str) -> int | None:
        """A whole number of 64 bits; None when missing."""
        found = self._found.get(key)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not -_WHOLE <= found < _WHOLE:
            self.flaw(key, found, "a whole number")
            return None
        return found

    def count(self, key: str, default: int = 0) -> int:
        """A whole number that is not negative."""
        found = self.whole(key)
        if found is not None and found < 0:
            self.flaw(key, found, "a whole number, not negative")
            found = None
        return default if found is None else found

    def flag(self, key: str, default: bool = False) -> bool:
        found = self._found.get(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            self.flaw(key, found, "true or false")
            return default
        return found

    def instant(self, key: str) -> int | None:
        """RFC 3339 -> ms since 1970; None when missing. Fractions of a millisecond are cut off."""
        found = self._found.get(key)
        if found is None:
            return None
        instant_ms = _instant(found) if isinstance(found, str) and len(found) <= _LONGEST_INSTANT else None
        if instant_ms is None:
            self.flaw(key, found, "RFC 3339 with a zone, from 2010 to 2099")
        return instant_ms

    def labels(self, key: str, only: frozenset[str] | None = None) -> dict[str, str]:
        """Text by text; of all that is there, or ``only`` of some names."""
        found = self._found.get(key)
        if found is None:
            return {}
        if not isinstance(found, dict):
            self.flaw(key, found, "an object of text")
            return {}
        read = {}
        for name, value in found.items():
            if only is not None and name not in only:
                continue
            if isinstance(name, str) and isinstance(value, str):
                read[sys.intern(name)] = sys.intern(value)
            else:
                self.flaw(f"{key}.{shorten(name, 64)}", value, "text")
        return read

    def amounts(self, key: str) -> dict[str, int]:
        """Quantities by resource, in the units of ``Resources``."""
        return self._quantities(key, self.amount)

    def exact_amounts(self, key: str) -> dict[str, Fraction]:
        """Quantities by name, as they are written: of what drivers name, half a unit is half a unit."""
        return self._quantities(key, self.exact_amount)

    def _quantities(self, key: str, one: Callable[[str, str, object], _Q | None]) -> dict[str, _Q]:
        found = self._found.get(key)
        if found is None:
            return {}
        if not isinstance(found, dict):
            self.flaw(key, found, "quantities by resource")
            return {}
        read = {}
        for resource in found:
            value = one(key, str(resource), found[resource])
            if value is not None:
                read[sys.intern(str(resource))] = value
        return read

    def amount(self, key: str, resource: str, quantity: object) -> int | None:
        """One quantity of ``resource``; None with a flaw when it is not valid. ``key`` is for the message."""
        # Names are of any length, and only cpu makes a difference.
        unit = CPU if resource == CPU else ""
        return self._quantity(key, resource, quantity, lambda text: _amount(unit, text))

    def exact_amount(self, key: str, name: str, quantity: object) -> Fraction | None:
        """As ``amount``, and not rounded."""
        return self._quantity(key, name, quantity, parse_quantity)

    def _quantity(self, key: str, resource: str, quantity: object, read: Callable[[str], _Q]) -> _Q | None:
        try:
            return read(quantity if isinstance(quantity, str) else _number(quantity))
        except InputError as error:
            self.flaw(f"{key}.{resource}" if resource else key, quantity, error.allowed)
            return None

    def flaw(self, key: str, value: object, allowed: str) -> None:
        """Record that ``key`` is not valid. Only some flaws are kept, enough to see that an object is broken.
        An ErrorRemark is shown as it is."""
        if len(self.flaws) < MOST_FLAWS:
            shown = value if isinstance(value, ErrorRemark) else shorten(value)
            self.flaws.append(FieldFlaw(self.where(key), shown, allowed))

    def where(self, key: str) -> str:
        """The path of ``key`` from the root: ``spec.containers[0].resources``."""
        own = self._key if self._index is None else f"{self._key}[{self._index}]"
        here = f"{own}.{key}" if own and key else own or key
        return here if self._parent is None else self._parent.where(here)


def meta(found: ObjectPart, annotations: frozenset[str] | None = None) -> ObjectMeta:
    """``metadata`` of an object; of its annotations only those in ``annotations`` (None: all but kubectl's
    own).

    Raises Unreadable for an object without a uid or a name.
    """
    part = found.part("metadata")
    uid, name = part.text("uid"), part.text("name")
    if not uid or not name:
        raise Unreadable("bad_object", uid)
    kept = part.labels("annotations", annotations)
    if annotations is None:
        kept = {key: value for key, value in kept.items() if not key.startswith("kubectl.kubernetes.io/")}
    return ObjectMeta(
        uid,
        part.text("namespace"),
        name,
        part.instant("creationTimestamp") or 0,
        part.labels("labels"),
        kept,
        _owner(part.parts("ownerReferences")),
        part.instant("deletionTimestamp"),
    )


def conditions(status: ObjectPart, key: str = "conditions") -> dict[str, StatusCondition]:
    """Conditions by type, the last of each; of messages the first 4096 characters."""
    return {
        type_: StatusCondition(
            _STATUS.get(each.text("status")),
            each.text("reason"),
            each.text("message")[:_LONGEST_MESSAGE],
            each.instant("lastTransitionTime"),
        )
        for each in status.parts(key)
        if (type_ := each.text("type"))
    }


class _Shared(dict[str, int]):
    """A mapping that can be held by a weak reference."""

    __slots__ = ("__weakref__",)


def shared(resources: Resources) -> Resources:
    """One mapping shared by all equal ones for as long as it is used: thousands of pods have equal
    requests."""
    key = tuple(sorted(resources.items()))
    found = _SHARED.get(key)
    if found is None:
        found = _SHARED[key] = _Shared(resources)
    return found


_SHARED: WeakValueDictionary[tuple[tuple[str, int], ...], _Shared] = WeakValueDictionary()


def _owner(references: list[ObjectPart]) -> OwnerReference | None:
    """The controller; the only owner where none is marked as controller."""
    controllers = [each for each in references if each.flag("controller")]
    chosen = controllers or (references if len(references) == 1 else [])
    if not chosen or not chosen[0].text("uid"):
        return None
    first = chosen[0]
    return OwnerReference(first.text("apiVersion"), first.text("kind"), first.text("name"), first.text("uid"))


def _number(value: object) -> str:
    """A number as text; empty if it is not a number."""
    return shorten(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


@lru_cache(maxsize=65536)
def _amount(resource: str, quantity: str) -> int:
    return amount(resource, parse_quantity(quantity))


@lru_cache(maxsize=65536)
def _instant(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    delta = moment - _EPOCH
    instant_ms = (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
    return instant_ms if EARLIEST_MS <= instant_ms < LATEST_MS else None


_WRITTEN = {"In": "{key} in ({values})", "NotIn": "{key} notin ({values})", "DoesNotExist": "!{key}"}
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def label_selector(part: ObjectPart, key: str) -> tuple[SelectorRequirement, ...] | None:
    """Requirements of the selector at ``key`` that must all hold; an empty selector has none, and matches
    all.

    None, which matches nothing, where there is no selector, and with a flaw where any part of it is not
    valid: the rest alone would match more than was meant.
    """
    if key not in part:
        return None
    flaws_before = len(part.flaws)
    selector = part.part(key)
    labels = sorted(selector.labels("matchLabels").items())
    exact = [SelectorRequirement(label, "In", (value,)) for label, value in labels]
    read = (*exact, *(_requirement(each) for each in selector.parts("matchExpressions")))
    return read if len(part.flaws) == flaws_before < MOST_FLAWS else None


def as_text(requirements: tuple[SelectorRequirement, ...]) -> str:
    """As kubectl writes selectors: ``zone=a,rack in (r1,r2),!cordoned``."""
    return ",".join(map(_as_text, requirements))


def _requirement(expression: ObjectPart) -> SelectorRequirement:
    operator = expression.text("operator")
    if operator not in _OPERATORS:
        expression.flaw("operator", expression.raw("operator"), ", ".join(_OPERATORS))
    return SelectorRequirement(expression.text("key"), operator, expression.texts("values"))


def _as_text(requirement: SelectorRequirement) -> str:
    key, operator, values = requirement.key, requirement.operator, requirement.values
    if operator == "In" and len(values) == 1:
        return f"{key}={values[0]}"
    return _WRITTEN.get(operator, "{key}").format(key=key, values=",".join(values))
