"""Whether a workload could be admitted without anybody leaving, told at a glance."""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.advisor.kueue.asks import Ask, requested
from gpucost.advisor.kueue.snapshot import Snapshot
from gpucost.cluster.kueue import FlavorResource

_Need = list[list[tuple[tuple[FlavorResource, int], ...]]]


@dataclass(slots=True)
class _Kind:
    """What some of a queue need, and whether it is there, while usage stays as it is."""

    queue: str
    need: _Need | None
    said: bool | None = None


class Glance:
    """Necessary, not sufficient: each pod set at its smallest finds, in each resource group, a flavor that
    takes it and has enough left. What an ask needs is worked out once, and whether it is there once for all
    that need the same, until ``forget``."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._needs: dict[str, tuple[Ask, _Kind]] = {}
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._told: list[_Kind] = []
        self._left: dict[tuple[str, FlavorResource], int] = {}

    def forget(self) -> None:
        """After usage changed: what was told of it holds no more."""
        for kind in self._told:
            kind.said = None
        self._told.clear()
        self._left.clear()

    def may_fit(self, ask: Ask) -> bool:
        known = self._needs.get(ask.uid)
        if known is None or known[0] is not ask:
            known = self._needs[ask.uid] = ask, self._shared(ask.queue, self._need(ask))
        kind = known[1]
        if kind.said is None:
            kind.said = self._may_fit(kind)
            self._told.append(kind)
        return kind.said

    def _shared(self, queue: str, need: _Need | None) -> _Kind:
        """Many that wait in a queue need the same."""
        return self._kinds.setdefault((queue, repr(need)), _Kind(queue, need))

    def _may_fit(self, kind: _Kind) -> bool:
        if kind.need is None:
            return False
        return all(
            any(all(amount <= self._available(kind.queue, key) for key, amount in flavor) for flavor in each)
            for each in kind.need
        )

    def _available(self, queue: str, key: FlavorResource) -> int:
        left = self._left.get((queue, key))
        if left is None:
            left = self._left[queue, key] = self._snapshot.queues[queue].node.available(key)
        return left

    def _need(self, ask: Ask) -> _Need | None:
        """Alternatives for each pod set and resource group; None where some resource is not covered."""
        queue = self._snapshot.queues[ask.queue]
        need: _Need = []
        for asked in ask.pod_sets:
            by_group: dict[int, dict[str, int]] = {}
            for resource, amount in requested(asked, asked.least, queue.covered).items():
                group = queue.covered.get(resource)
                if group is None and amount and not self._snapshot.config.ignores_undeclared:
                    return None
                if group is not None:
                    by_group.setdefault(group, {})[resource] = amount
            for group, amounts in by_group.items():
                flavors = queue.spec.groups[group].flavors
                need.append(
                    [
                        tuple((FlavorResource(flavor, name), amount) for name, amount in amounts.items())
                        for flavor in flavors
                        if self._snapshot.refusal(queue, asked, flavor) is None
                    ]
                )
        return need
