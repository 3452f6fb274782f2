"""Ownership of the objects in one state, so that an answer names no other tenant's work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gpucost.advisor.model.answers import AdviceSubject
from gpucost.advisor.model.redaction import AnswerReader, redact_message, words_in
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.volcano import PodGroup
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.ownership import KUEUE_QUEUES
from gpucost.domain.buckets import NO_TEAM
from gpucost.reports.live.cluster_reader import ClusterReader

NamedObject = JobObject | Workload | PodGroup | Pod
"""Objects whose names tenants choose."""


@dataclass(frozen=True)
class TenantViews:
    """Ownership in one state, by the team rules in force then; built when first needed. Teams are those of
    reports (``gpucost.attribution.teams``). What no rule places has no team: only a caller that may see
    everything sees it.
    """

    overview: ClusterOverview
    rules: TeamRules

    @cached_property
    def teams_of(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """The teams of everything with a namespace and name; of all in a namespace under the name ``""``, of
        all with a name under the namespace ``""``. Built once, so that the time of an answer does not depend
        on how much other tenants have.
        """
        found: dict[tuple[str, str], set[str]] = {}
        team_by_holder: dict[tuple[str, ...], str] = {}
        for each in self._everything():
            holder = self._holder(each)
            team = team_by_holder.get(holder)
            if team is None:
                team = team_by_holder[holder] = self._team(*holder)
            space, name = each.meta.namespace, each.meta.name
            for key in ((space, name), (space, ""), ("", name)):
                found.setdefault(key, set()).add(team)
        return {key: frozenset(teams) for key, teams in found.items()}

    @cached_property
    def namespaces(self) -> Mapping[str, list[NamedObject]]:
        """All objects of tenants, by namespace."""
        found: dict[str, list[NamedObject]] = {}
        for each in self._everything():
            found.setdefault(each.meta.namespace, []).append(each)
        return found

    @cached_property
    def public(self) -> frozenset[str]:
        """Names of what belongs to the cluster: they reveal nothing about tenants."""
        state = self.overview.state
        parts: Iterable[Mapping[str, object]] = (
            *(state.node_by_name, state.cluster_queue_by_name, state.cohort_by_name),
            *(state.flavor_by_name, state.volcano_queue_by_name),
        )
        return frozenset(name for part in parts for name in part)

    @cached_property
    def words(self) -> frozenset[str]:
        """Names of what belongs to the cluster, with the labels, taints and resources of its nodes."""
        found = set(self.public)
        for node in self.overview.state.nodes.values():
            found.update(node.labels, node.labels.values(), node.allocatable)
            found.update(word for taint in node.taints for word in (taint.key, taint.value))
        return frozenset(found) | words_in(found)

    def of_namespace(self, namespace: str) -> AnswerReader:
        """A reader who works in ``namespace`` and whose team is unknown."""

        return self._reader(
            lambda subject: subject.namespace == namespace,
            lambda word: (namespace, word) in self.teams_of,
            lambda word: word == namespace,
        )

    def of_teams(self, teams: frozenset[str]) -> AnswerReader:
        return self._reader(
            lambda subject: self.owns(teams, subject),
            lambda word: not teams.isdisjoint(self.teams_of.get(("", word), ())),
            lambda word: self.works_in(teams, word),
        )

    def cluster_reader(self, teams: frozenset[str] | None) -> ClusterReader:
        """A reader of the state itself, who sees ``teams``; all of them where these are None."""
        if teams is None:
            return ClusterReader(self._shown_team)
        reader = self.of_teams(teams)
        return ClusterReader(
            self._shown_team,
            teams,
            lambda namespace: self.works_in(teams, namespace),
            lambda text, own: redact_message(text, reader, own),
        )

    def _shown_team(self, found: NamedObject) -> str:
        team = self.team_of(found)
        return "" if team == NO_TEAM else team

    def _reader(
        self,
        shows: Callable[[AdviceSubject], bool],
        owns: Callable[[str], bool],
        owns_namespace: Callable[[str], bool],
    ) -> AnswerReader:
        def is_own(word: str) -> bool:
            if self._is_namespace(word):
                return owns_namespace(word)
            return owns(word)

        return AnswerReader(
            shows,
            lambda word: self._is_tenants(word) and not is_own(word),
            is_own,
            lambda word: word in self.words or is_own(word),
        )

    def written_for(self, uid: str, namespace: str) -> Iterator[object]:
        """What the author of an existing job wrote, without what controllers report about it."""
        ownership = self.overview.ownership
        for each in self.namespaces.get(namespace, ()):
            job = ownership.of(each).job if isinstance(each, Pod) else ownership.job_of(each)
            if job.uid == uid:
                yield each.meta.labels
                yield each.meta.annotations
                if not isinstance(each, PodGroup):
                    yield each.template if isinstance(each, Pod) else each.pod_sets

    def teams_of_namespace(self, namespace: str) -> frozenset[str]:
        """The teams of ``namespace`` by its own labels: one or none."""
        return frozenset({self._team_of_namespace(namespace)}) - {NO_TEAM}

    def owns(self, teams: frozenset[str], subject: AdviceSubject) -> bool:
        """Whether everything with that name and namespace is of ``teams``; False where there is nothing."""
        found = self.teams_of.get((subject.namespace, subject.name), frozenset())
        return bool(subject.name) and bool(found) and found <= teams

    def works_in(self, teams: frozenset[str], namespace: str) -> bool:
        """Whether ``namespace`` is of ``teams``: by its labels, or because something in it is of theirs."""
        own = self._team_of_namespace(namespace) in teams
        return own or not teams.isdisjoint(self.teams_of.get((namespace, ""), frozenset()))

    def _team_of_namespace(self, namespace: str) -> str:
        known = self.overview.state.namespace_by_name.get(namespace)
        labels = {} if known is None else {**known.meta.annotations, **known.meta.labels}
        label = next((labels[key] for key in self.overview.owner_keys.team if labels.get(key)), "")
        return self._team(namespace, label, "", "")

    def team_of(self, found: NamedObject) -> str:
        """By the team rules. A condition on the project or the user holds for pods only."""
        return self._team(*self._holder(found))

    def _holder(self, found: NamedObject) -> tuple[str, ...]:
        """The attributes that the rules match on, as ``_team`` takes them."""
        meta = found.meta
        if isinstance(found, Pod):
            known = self.overview.ownership.of(found)
            return meta.namespace, known.team, known.queue, known.cluster_queue, known.project, known.user
        queue = next((meta.labels[key] for key in KUEUE_QUEUES if meta.labels.get(key)), "")
        if not isinstance(found, JobObject):
            queue = found.queue or queue
        local = self.overview.state.local_queue_by_name.get((meta.namespace, queue))
        cluster_queue = "" if local is None else local.cluster_queue
        return meta.namespace, self.overview.ownership.team_of(found), queue, cluster_queue

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

    def _is_tenants(self, word: str) -> bool:
        return (("", word) in self.teams_of or self._is_namespace(word)) and word not in self.public

    def _is_namespace(self, word: str) -> bool:
        return word in self.overview.state.namespace_by_name or word in self.namespaces

    def _everything(self) -> Iterator[NamedObject]:
        state = self.overview.state
        for part in (state.jobs, state.workloads, state.pod_groups, state.pods):
            yield from part.values()
