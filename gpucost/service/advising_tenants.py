"""Whose is what in one state, so that an answer names nobody else's work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from gpucost.advisor.answers import Subject
from gpucost.advisor.redact import Reader
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.jobs import JobObject
from gpucost.cluster.kueue import Workload
from gpucost.cluster.overview import Overview
from gpucost.cluster.ownership import KUEUE_QUEUES
from gpucost.cluster.pods import Pod
from gpucost.cluster.volcano import PodGroup

Named = JobObject | Workload | PodGroup | Pod
"""What tenants name as they like."""


@dataclass(frozen=True)
class Tenants:
    """Of one state, by the team rules in force then. Built when it is first asked; teams are those of reports
    (``gpucost.attribution.teams``), and what no rule places is nobody's: only who sees all sees it."""

    overview: Overview
    rules: TeamRules

    @cached_property
    def named(self) -> Mapping[str, list[Named]]:
        """Everything of tenants by its name, in whatever namespace."""
        found: dict[str, list[Named]] = {}
        for each in self._everything():
            found.setdefault(each.meta.name, []).append(each)
        return found

    @cached_property
    def namespaces(self) -> Mapping[str, list[Named]]:
        """The same by namespace."""
        found: dict[str, list[Named]] = {}
        for each in self._everything():
            found.setdefault(each.meta.namespace, []).append(each)
        return found

    @cached_property
    def public(self) -> frozenset[str]:
        """Names of what belongs to the cluster: they tell of no tenant."""
        state = self.overview.state
        parts: Iterable[Mapping[str, object]] = (
            *(state.node_by_name, state.cluster_queue_by_name, state.cohort_by_name),
            *(state.flavor_by_name, state.volcano_queue_by_name),
        )
        return frozenset(name for part in parts for name in part)

    def of_namespace(self, namespace: str) -> Reader:
        """Whoever works in ``namespace``, whose team nobody knows."""
        return Reader(
            lambda subject: subject.namespace == namespace,
            lambda word: self._hides(word, lambda each: each.meta.namespace == namespace, {namespace}),
        )

    def of_teams(self, teams: frozenset[str]) -> Reader:
        def owns(found: Named) -> bool:
            return self.team_of(found) in teams

        return Reader(
            lambda subject: self.owns(teams, subject),
            lambda word: self._hides(word, owns, self._namespaces_of(teams, word)),
        )

    def owns(self, teams: frozenset[str], subject: Subject) -> bool:
        """Whether everything of that name and namespace is of ``teams``; False where there is nothing."""
        found = [
            each for each in self.named.get(subject.name, ()) if each.meta.namespace == subject.namespace
        ]
        return bool(found) and all(self.team_of(each) in teams for each in found)

    def works_in(self, teams: frozenset[str], namespace: str) -> bool:
        """Whether ``namespace`` is of ``teams``: what has no label there is theirs, or something there is."""
        state = self.overview.state
        known = state.namespace_by_name.get(namespace)
        labels = {} if known is None else {**known.meta.annotations, **known.meta.labels}
        label = next((labels[key] for key in self.overview.owner_keys.team if labels.get(key)), "")
        if self._team(namespace, label, "", "") in teams:
            return True
        return any(self.team_of(each) in teams for each in self.namespaces.get(namespace, ()))

    def team_of(self, found: Named) -> str:
        """By the rules. A condition on the project or the user holds for pods only."""
        meta = found.meta
        if isinstance(found, Pod):
            known = self.overview.ownership.of(found)
            return self._team(
                *(meta.namespace, known.team, known.queue, known.cluster_queue, known.project, known.user)
            )
        queue = next((meta.labels[key] for key in KUEUE_QUEUES if meta.labels.get(key)), "")
        if not isinstance(found, JobObject):
            queue = found.queue or queue
        local = self.overview.state.local_queue_by_name.get((meta.namespace, queue))
        return self._team(
            meta.namespace,
            self.overview.ownership.team_of(found),
            queue,
            "" if local is None else local.cluster_queue,
        )

    def _team(
        self, namespace: str, label: str, queue: str, cluster_queue: str, project: str = "", user: str = ""
    ) -> str:
        holder = {
            "namespace": namespace,
            "team_label": label,
            "project": project,
            "queue": queue,
            "cluster_queue": cluster_queue,
            "user": user,
        }
        return self.rules.team_of(holder, self.overview.state.at_ms)

    def _hides(self, word: str, owns: Callable[[Named], bool], own_namespaces: Set[str]) -> bool:
        if word in self.public or word in own_namespaces:
            return False
        if word in self.overview.state.namespace_by_name:
            return True
        found = self.named.get(word)
        return found is not None and not any(map(owns, found))

    def _namespaces_of(self, teams: frozenset[str], word: str) -> set[str]:
        is_one = word in self.overview.state.namespace_by_name
        return {word} if is_one and self.works_in(teams, word) else set()

    def _everything(self) -> Iterator[Named]:
        state = self.overview.state
        for part in (state.jobs, state.workloads, state.pod_groups, state.pods):
            yield from part.values()
