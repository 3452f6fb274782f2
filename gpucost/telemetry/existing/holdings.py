"""Who held which units when: what series of GPUs, which name pods and no uids, are matched with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucost.contract.frames import ALLOCATIONS, CAPACITY
from gpucost.domain.time import Window
from gpucost.telemetry.rows import Row

_HOLD = ("pod_uid", "namespace", "pod", "node", "resource", "count", "start_ms", "end_ms")


@dataclass(frozen=True, slots=True)
class Hold:
    """``count`` units of ``resource`` held by one pod during ``[start_ms, end_ms)``.

    ``replicas`` is how many units a board, or MIG slice, is handed out as: above 1 it is shared.
    """

    pod_uid: str
    namespace: str
    pod: str
    node: str
    resource: str
    count: int
    start_ms: int
    end_ms: int
    replicas: int = 1


class Holdings:
    """What the pods of one cluster held in one stretch of time."""

    def __init__(self, holds: Iterable[Hold]) -> None:
        self._by_name: dict[tuple[str, str], list[Hold]] = {}
        self._by_uid: dict[str, list[Hold]] = {}
        for hold in sorted(holds, key=lambda each: (each.start_ms, each.pod_uid)):
            self._by_name.setdefault((hold.namespace, hold.pod), []).append(hold)
            self._by_uid.setdefault(hold.pod_uid, []).append(hold)

    @classmethod
    def of(cls, allocations: Sequence[Row], capacity: Sequence[Row]) -> Holdings:
        """Of rows of frames.ALLOCATIONS and frames.CAPACITY."""
        at = {name: CAPACITY.column_names.index(name) for name in ("node", "resource", "replicas")}
        replicas: dict[tuple[str, str], int] = {}
        for row in capacity:
            key = str(row[at["node"]]), str(row[at["resource"]])
            replicas[key] = max(replicas.get(key, 1), int(str(row[at["replicas"]])))
        return cls(_hold(row, replicas) for row in allocations)

    def named(self, namespace: str, pod: str, inside: Window) -> Sequence[Hold]:
        """The holds of the pods of that name that reach into ``inside``: names are reused, uids are not."""
        return _reaching(self._by_name.get((namespace, pod), ()), inside)

    def of_uid(self, uid: str, inside: Window) -> Sequence[Hold]:
        """The holds of one pod that reach into ``inside``."""
        return _reaching(self._by_uid.get(uid, ()), inside)

    def __iter__(self) -> Iterator[Hold]:
        return (hold for holds in self._by_uid.values() for hold in holds)


def _hold(row: Row, replicas: Mapping[tuple[str, str], int]) -> Hold:
    values = dict(zip(ALLOCATIONS.column_names, row, strict=True))
    uid, namespace, pod, node, resource = (str(values[name]) for name in _HOLD[:5])
    count, start, end = (int(str(values[name])) for name in _HOLD[5:])
    return Hold(uid, namespace, pod, node, resource, count, start, end, replicas.get((node, resource), 1))


def _reaching(holds: Sequence[Hold], inside: Window) -> Sequence[Hold]:
    return [hold for hold in holds if hold.start_ms < inside.end_ms and hold.end_ms > inside.start_ms]
