"""Series about the collector itself: whether its view is current, and what went wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gpucost.cluster.state import CollectionStatus
from gpucost.contract import queue_metrics as m
from gpucost.contract.gpu_metrics import SOURCE_ERRORS, SOURCE_UP
from gpucost.contract.metrics import STATE_UP
from gpucost.contract.spec import MetricSpec
from gpucost_queue_collector.lines import line

SPECS = (
    STATE_UP,
    m.STATE_REPLICAS,
    m.STATE_REFRESHED,
    m.COLLECTION_UP,
    m.COLLECTION_OBJECTS,
    m.COLLECTION_SEEN,
    m.COLLECTION_ERRORS,
    SOURCE_UP,
    SOURCE_ERRORS,
    m.STATE_OTHERS,
)
NO_VERSION = "none"


class Self(NamedTuple):
    """``counts`` are objects by collection, ``errors`` by collection and reason; ``failures`` count by part
    of the series, ``failed`` are the parts that could not be renewed the last time; ``others`` count what has
    no series of its own, by part."""

    is_current: bool
    replicas: int
    refreshed_ms: int | None
    collections: Mapping[str, CollectionStatus]
    counts: Mapping[str, int]
    errors: Mapping[tuple[str, str], int]
    failures: Mapping[str, int]
    failed: Collection[str]
    others: Mapping[str, int] = MappingProxyType({})


def write_self(found: Self) -> Sequence[bytes]:
    """One text for each of SPECS."""
    by_name = found.collections.items()
    seen = ((name, each.seen_ms) for name, each in by_name)
    refreshed_ms = found.refreshed_ms
    return (
        line(STATE_UP, (), found.is_current),
        line(m.STATE_REPLICAS, (), found.replicas),
        b"" if refreshed_ms is None else line(m.STATE_REFRESHED, (), refreshed_ms / 1000),
        _lines(m.COLLECTION_UP, (((name, _version(each)), _is_up(each)) for name, each in by_name)),
        _lines(m.COLLECTION_OBJECTS, (((name,), n) for name, n in found.counts.items())),
        _lines(m.COLLECTION_SEEN, (((name,), at / 1000) for name, at in seen if at is not None)),
        _lines(m.COLLECTION_ERRORS, found.errors.items()),
        _lines(SOURCE_UP, (((part,), part not in found.failed) for part in found.failures)),
        _lines(SOURCE_ERRORS, (((part,), n) for part, n in found.failures.items())),
        _lines(m.STATE_OTHERS, (((part,), n) for part, n in found.others.items())),
    )


def write_problems(count: tuple[str, int]) -> Sequence[bytes]:
    """The text of STATE_PROBLEMS."""
    return (line(m.STATE_PROBLEMS, count[:1], count[1]),)


def _lines(spec: MetricSpec, samples: Iterable[tuple[tuple[str, ...], float]]) -> bytes:
    return b"".join(line(spec, values, number) for values, number in samples)


def _version(status: CollectionStatus) -> str:
    return NO_VERSION if status.absent else status.version


def _is_up(status: CollectionStatus) -> bool:
    return status.synced and not status.problem
