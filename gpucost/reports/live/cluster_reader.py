"""Who reads the state of a cluster, and what of it they may see.

A reader who is bound to teams sees what is their teams', and the configuration of queues that they may use;
no sum in which others are. Whatever stands in such a row was computed from the reader's own objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.pods import Pod, PodPhase, PodTemplate
from gpucost.cluster.objects.volcano import PodGroup
from gpucost.cluster.views.overview import ClusterOverview

HeldObject = Pod | Workload | PodGroup
"""What holds GPUs or quota, or waits for it."""


def _same(text: str, names: Iterable[str]) -> str:
    del names
    return text


def _everywhere(namespace: str) -> bool:
    del namespace
    return True


@dataclass(frozen=True, slots=True)
class ClusterReader:
    """``teams`` are those that the reader may see, None for all. ``team_of`` is the team of an object, empty
    where it has none; ``works_in`` says whether a namespace is the reader's too, and ``said`` makes a message
    of a scheduler about an object with these ``names`` harmless.
    """

    team_of: Callable[[HeldObject], str]
    teams: frozenset[str] | None = None
    works_in: Callable[[str], bool] = _everywhere
    said: Callable[[str, Iterable[str]], str] = _same

    @property
    def sees_every_team(self) -> bool:
        return self.teams is None

    def sees(self, found: HeldObject) -> bool:
        """What no rule places has no team: only who sees every team sees it."""
        return self.teams is None or self.team_of(found) in self.teams


def label_reader(overview: ClusterOverview) -> ClusterReader:
    """Who sees everything; teams are what labels say."""
    return ClusterReader(lambda found: overview.ownership.of(as_pod(found)).team)


def as_pod(found: HeldObject) -> Pod:
    """The pod itself, or the one that a workload's or group's job would make: whose it is, is known before it
    exists."""
    return found if isinstance(found, Pod) else Pod(found.meta, PodPhase.PENDING, PodTemplate({}))
