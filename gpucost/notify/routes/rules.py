"""Routes: which notices go to which channels, and with which patience."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.notify.channels import Channel
from gpucost.notify.notices import Kind, Notice, Rank
from gpucost.notify.routes.quiet import Quiet

RANKED = (Kind.FINDING, Kind.ALERT)
"""Kinds that a least severity, names and an escalation are about."""


@dataclass(frozen=True, slots=True)
class Escalation:
    """Whom to tell, with their mention, what nobody took on within ``after_ms`` of its first telling."""

    channels: tuple[str, ...]
    after_ms: int = 4 * HOUR_MS
    least: Rank = Rank.HIGH


@dataclass(frozen=True, slots=True)
class Route:
    """One entry of the list; empty ``teams``, ``kinds``, ``clusters`` and ``names`` ask for nothing.

    ``teams`` are names as they are; with ``platform``, what is about no team is meant as well. ``clusters``
    and ``names`` (of anti-patterns and alerts) are shell patterns; what is about no one cluster is of all.
    ``least`` and ``names`` are asked of findings and alerts only, and ``names`` let nothing else through.
    After a route with ``stop`` that applies, no later one is asked.
    """

    channels: tuple[str, ...]
    teams: frozenset[str] = frozenset()
    platform: bool = False
    kinds: frozenset[Kind] = frozenset()
    least: Rank = Rank.INFO
    clusters: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    stop: bool = False
    quiet: tuple[Quiet, ...] = ()
    cool_down_ms: int = DAY_MS
    escalation: Escalation | None = None

    def applies(self, notice: Notice) -> bool:
        """Whether ``notice`` is one of those it asks for."""
        if not self._is_of_teams(notice.team) or (self.kinds and notice.kind not in self.kinds):
            return False
        if notice.kind in RANKED and notice.rank.order < self.least.order:
            return False
        if self.names and not (notice.kind in RANKED and _is_like(notice.name, self.names)):
            return False
        return not (self.clusters and notice.cluster) or _is_like(notice.cluster, self.clusters)

    def _is_of_teams(self, team: str) -> bool:
        if not team:
            return self.platform or not self.teams
        return team in self.teams or not (self.teams or self.platform)


@dataclass(frozen=True, slots=True)
class Rules:
    """All of it. ``update_every_ms`` is the least time between two changes of a posted message;
    ``alert_cool_down_ms`` is what alerts have instead of the cool-down of their route; ``most_per_hour`` how
    many findings and advices, but critical ones, a channel is told of in an hour."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    update_every_ms: int = 5 * 60_000
    alert_cool_down_ms: int = HOUR_MS
    most_per_hour: int = 30

    def routes_of(self, notice: Notice) -> Iterator[Route]:
        """The routes that apply, in their order, up to the first that stops."""
        for route in self.routes:
            if route.applies(notice):
                yield route
                if route.stop:
                    return

    def may_tell(self, route: Route, channel: str, notice: Notice) -> bool:
        """Whether the readers of ``channel`` may see it: those that see all, else those of a named team."""
        found = self.channels.get(channel)
        return found is not None and (found.sees_all or (bool(notice.team) and notice.team in route.teams))


def _is_like(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
