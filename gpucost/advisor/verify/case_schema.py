"""The types of a recorded case (a cluster, what was asked of its scheduler, what it did), and the fields of
its JSON objects: each is taken once and by name, and fields that are not taken are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

from gpucost.advisor.model.cycle_results import PodSetFlavors
from gpucost.cluster.objects.metadata import amount, parse_quantity
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.errors import ErrorRemark, InputError, shorten

T = TypeVar("T")

MOST_TEXT = 4_096
"""Characters of one text."""
MOST_NUMBER = 2**63 - 1
_MISSING = ErrorRemark("missing")
SCHEMA_VERSION = 1
NOW_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the now of every case."""
VERSION = "v0.19.2"
"""Of Kueue, whose decisions the cases are."""
REASONS_GATE = "UnadmittedWorkloadsObservability"
"""The feature gate that makes the reason of QuotaReserved=False granular."""

CYCLE = "one-scheduling-cycle"
SEARCH = "preemption-target-search"
LEVELS = (CYCLE, SEARCH)
HEAP = "heap"
PARKED = "inadmissible"


class JsonFields:
    """One object. ``path`` names it in errors. A field that is null counts as one that is not there.

    Every method raises InputError for a value of another kind, and where a field without default is missing.
    """

    def __init__(self, found: object, path: str) -> None:
        if not isinstance(found, Mapping):
            raise InputError(path, found, "an object")
        self.path = path
        self._found: Mapping[str, Any] = found
        self._taken: set[str] = set()

    def at(self, key: str) -> str:
        return f"{self.path}.{key}"

    def raw(self, key: str) -> Any:
        self._taken.add(key)
        return self._found.get(key)

    def unread(self) -> list[str]:
        """Names of fields that were not taken, for a person."""
        return [shorten(key, 80)[1:-1] for key in self._found if key not in self._taken]

    def text(self, key: str, default: str | None = None) -> str:
        return text(self._given(key, default), self.at(key))

    def name(self, key: str) -> str:
        """Of an object: text that is not empty."""
        found = self.text(key)
        if not found:
            raise InputError(self.at(key), found, "a name")
        return found

    def text_or_none(self, key: str) -> str | None:
        found = self.raw(key)
        return None if found is None else text(found, self.at(key))

    def one_of(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        found = self.text(key, default)
        if found not in allowed:
            raise InputError(self.at(key), found, ", ".join(each or '""' for each in allowed))
        return found

    def flag(self, key: str) -> bool:
        """False where it is not there."""
        found = self._given(key, False)
        if not isinstance(found, bool):
            raise InputError(self.at(key), found, "true or false")
        return found

    def flag_or_none(self, key: str) -> bool | None:
        return None if self.raw(key) is None else self.flag(key)

    def whole(self, key: str, default: int | None = None, least: int = -MOST_NUMBER) -> int:
        found = self._given(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= MOST_NUMBER:
            said = "a whole number" if least < 0 else f"a whole number from {least}"
            raise InputError(self.at(key), found, f"{said}, below 2**63")
        return found

    def whole_or_none(self, key: str, least: int = -MOST_NUMBER) -> int | None:
        return None if self.raw(key) is None else self.whole(key, None, least)

    def seconds(self, key: str) -> int | None:
        """In ms, None where it is not there."""
        found: float | None = self.raw(key)
        if found is None:
            return None
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if not is_number or not abs(found) <= 10**10:
            raise InputError(self.at(key), found, "seconds from now, at most 10^10 either way")
        return round(found * 1000)

    def amount(self, key: str, resource: str) -> int:
        """In the units of ``gpucost.cluster.objects.metadata.Resources``."""
        return quantity_of(resource, self._given(key, None), self.at(key))

    def amount_or_none(self, key: str, resource: str) -> int | None:
        return None if self.raw(key) is None else self.amount(key, resource)

    def number(self, key: str, default: Fraction) -> Fraction:
        """The exact number of a quantity."""
        found = self.raw(key)
        return default if found is None else _quantity(found, self.at(key))

    def objects(self, key: str) -> Iterator[JsonFields]:
        """Each object of a list, closed once its unknown fields were refused; none where the list
        is missing."""
        for place, each in enumerate(items(self._given(key, []), self.at(key))):
            with fields(each, f"{self.at(key)}[{place}]") as part:
                yield part

    def texts(self, key: str) -> tuple[str, ...]:
        found = items(self._given(key, []), self.at(key))
        return tuple(text(each, f"{self.at(key)}[{place}]") for place, each in enumerate(found))

    def mapping(self, key: str, read: Callable[[object, str], T]) -> dict[str, T]:
        """Values by free names, each as ``read`` has it; empty where it is not there."""
        found = self._given(key, {})
        if not isinstance(found, Mapping):
            raise InputError(self.at(key), found, "an object")
        return {
            text(name, self.at(key)): read(each, f"{self.at(key)}.{shorten(name, 80)[1:-1]}")
            for name, each in found.items()
        }

    def _given(self, key: str, default: Any) -> Any:
        found = self.raw(key)
        if found is None and default is None:
            raise InputError(self.at(key), _MISSING, "a value")
        return default if found is None else found


@contextmanager
def fields(found: object, path: str) -> Iterator[JsonFields]:
    """An object whose fields that were not taken by the end are refused by name."""
    part = JsonFields(found, path)
    yield part
    for key in part.unread():
        raise InputError(part.at(key), ErrorRemark("unknown field"), "those of docs/advisor-cases.md")


def text(found: object, path: str) -> str:
    if not isinstance(found, str) or len(found) > MOST_TEXT:
        raise InputError(path, found, f"text of at most {MOST_TEXT:,} characters")
    return found


def items(found: object, path: str) -> list[Any]:
    if not isinstance(found, list):
        raise InputError(path, found, "a list")
    return found


def quantity_of(resource: str, found: object, path: str) -> int:
    return amount(resource, _quantity(found, path))


def _quantity(found: object, path: str) -> Fraction:
    is_quantity = isinstance(found, (str, int, float)) and not isinstance(found, bool)
    try:
        return parse_quantity(str(found) if is_quantity else "")
    except (InputError, ValueError):
        allowed = "a Kubernetes quantity such as 500m, 8 or 2Gi, not negative"
        raise InputError(path, found, allowed) from None


@dataclass(frozen=True, slots=True)
class ExpectedDecision:
    """What the scheduler did with one workload; None: not asserted. Workloads are named by their keys."""

    outcome: str | None = None
    cluster_queue: str | None = None
    flavors: Mapping[str, str] | None = None
    pod_sets: tuple[PodSetFlavors, ...] | None = None
    borrows: bool | None = None
    level: int | None = None
    nominated_mode: str | None = None
    nominated_pod_sets: tuple[PodSetFlavors, ...] | None = None
    nominated_level: int | None = None
    preempts: frozenset[str] | None = None
    preempted_by: str | None = None
    preempted_reason: str | None = None
    pending: str | None = None
    requeued_to: str | None = None
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class GivenFlavors:
    """Flavors that a search for victims starts from, by pod set and resource; ``fits`` are resources that
    need no preemption."""

    flavors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RecordingOrigin:
    """The Kueue whose decisions a file holds, from when to when they were watched (Unix ms; 0: not said).
    Of ``config`` only version, kind of preemption, feature gates and whether it was read are kept in a
    file."""

    config: KueueConfig
    from_ms: int = 0
    to_ms: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerCase:
    """``state`` and ``config`` are what the rules are asked with. ``keys`` names each workload
    (``namespace/name``) by its uid. ``searched`` is the uid of the workload that ``given`` is for.
    ``tags`` say which rules it touches. ``order`` is one tuple of keys per cohort tree, None where it is not
    asserted.
    """

    id: str
    level: str
    state: ClusterState
    config: KueueConfig
    keys: Mapping[str, str]
    expected: Mapping[str, ExpectedDecision]
    title: str = ""
    source: str = ""
    teaches: str = ""
    tags: tuple[str, ...] = ()
    order: frozenset[tuple[str, ...]] | None = None
    given: GivenFlavors = GivenFlavors()
    searched: str = ""
