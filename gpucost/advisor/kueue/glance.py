"""Whether a workload could be admitted without anybody leaving, told at a glance."""

from __future__ import annotations

from gpucost.advisor.kueue.asks import Ask, requested
from gpucost.advisor.kueue.snapshot import Snapshot
from gpucost.cluster.kueue import FlavorResource

_Need = list[list[tuple[tuple[FlavorResource, int], ...]]]


class Glance:
    """Necessary, not sufficient: each pod set at its smallest finds, in each resource group, a flavor that
    takes it and has enough left. What an ask needs is worked out once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._needs: dict[str, tuple[Ask, _Need | None]] = {}

    def may_fit(self, ask: Ask) -> bool:
        known = self._needs.get(ask.uid)
        if known is None or known[0] is not ask:
            known = self._needs[ask.uid] = ask, self._need(ask)
        need = known[1]
        if need is None:
            return False
        available = self._snapshot.queues[ask.queue].node.available
        return all(
            any(all(amount <= available(key) for key, amount in flavor) for flavor in alternatives)
            for alternatives in need
        )

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
                        if self._snapshot.refusal(asked.template, flavor) is None
                    ]
                )
        return need
